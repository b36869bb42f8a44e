from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from unittest.mock import AsyncMock

import pytest
from support.registrations import write
from support.stores import MemoryWorld

from loadmanager.errors import ForeignStoreError
from loadmanager.store.pulsar_detection import find_pulsar, refuse_pulsar
from loadmanager.wire.broker_data import AGENT_PROTOCOL

OF_PULSAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
LEADER = "/loadbalance/leader"
BROKER = "/loadbalance/brokers/b1:8080"


def a_broker(**more: object) -> dict[str, Any]:
    return {"webServiceUrl": "http://b1:8080", "loadManagerClassName": OF_PULSAR, **more}


@pytest.mark.parametrize(
    ("path", "content", "found"),
    [
        ("/admin/clusters", {}, "/admin/clusters"),
        ("/admin/local-policies", {}, "/admin/local-policies"),
        ("/admin/policies/public", {}, "/admin/policies"),
        (LEADER, {"serviceUrl": "http://b1:8080", "brokerId": "b1:8080"}, f"{LEADER} names a leader without an epoch"),
        (BROKER, a_broker(), f"{BROKER} is a broker without an agent of loadmanager's"),
        (BROKER, a_broker(protocols=None), f"{BROKER} is a broker without an agent of loadmanager's"),
        (BROKER, a_broker(protocols={AGENT_PROTOCOL: "http://b1:1"}), None),
        (BROKER, {"webServiceUrl": "http://b1:8080"}, None),
        (LEADER, {"serviceUrl": "http://n1:8080", "brokerId": "n1:8080", "epoch": 3}, None),
        ("/loadbalance/namespaces", {}, None),
    ],
)
async def test_pulsar_is_detected_by_its_znodes(path: str, content: Mapping[str, Any], found: str | None) -> None:
    world = MemoryWorld()
    store = await world.connect()
    await write(store, path, json.dumps(content).encode())
    assert await find_pulsar(store) == found


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b"\xff", b"\x1f\x8bbroken"])
async def test_unreadable_znode_is_no_sign_of_pulsar(garbage: bytes) -> None:
    store = await MemoryWorld().connect()
    for path in (LEADER, BROKER):
        await write(store, path, garbage)
    await refuse_pulsar(store)


async def test_broker_that_vanishes_during_the_read_is_no_sign_of_pulsar(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await MemoryWorld().connect()
    await write(store, BROKER, json.dumps(a_broker()).encode())
    monkeypatch.setattr(store, "get_many", AsyncMock(return_value=[None]))
    assert await find_pulsar(store) is None


async def test_refusal_names_the_znode_and_the_remedies() -> None:
    store = await MemoryWorld().connect()
    await store.ensure_path("/admin/clusters")
    with pytest.raises(ForeignStoreError, match=r"\(/admin/clusters\).*a chroot of its own.*pulsar observe"):
        await refuse_pulsar(store)
