from __future__ import annotations

import asyncio

import pytest
from support.memory_store import MemoryStore
from support.nodes import Cluster, RunningNode
from support.waiting import eventually

from loadmanager.errors import OutdatedMirrorError
from loadmanager.http import lookup_routes
from loadmanager.http.openapi import number_parameter
from loadmanager.store.metadata_store import SessionState

pytestmark = pytest.mark.usefixtures("namespace")

TOPIC = "persistent://t/ns/x"
OWNERSHIP = "/loadbalance/v1/ownership/persistent/t/ns/x"


async def test_ownership_of_a_free_bundle_is_returned_without_assignment(node: RunningNode) -> None:
    reply = await node.get(OWNERSHIP)
    assert reply.status == 200
    assert reply.json() == {"bundle": node.bundle_of(TOPIC), "state": "Free", "version": 0, "epoch": 0}
    assert node.node.assigner.assignments == 0


async def test_ownership_names_the_incarnation(cluster: Cluster, node: RunningNode) -> None:
    await node.lookup(TOPIC)
    assert (await node.get(OWNERSHIP)).json() == {
        "bundle": node.bundle_of(TOPIC),
        "state": "Owned",
        "owner": "b1:8080",
        "incarnation": cluster.brokers["b1:8080"].registration.incarnation,
        "version": 1,
        "epoch": 1,
    }


@pytest.mark.parametrize(("path", "status"), [("persistent/t/other/x", 404), ("queue/t/ns/x", 412)])
async def test_ownership_of_an_unknown_topic_is_an_error(node: RunningNode, path: str, status: int) -> None:
    reply = await node.get(f"/loadbalance/v1/ownership/{path}")
    assert reply.status == status
    assert reply.reason


async def test_ownership_read_in_a_lost_session_is_not_returned(node: RunningNode) -> None:
    """ZooKeeper may have been set back since, and give an incarnation out again that an old view names."""
    refused: dict[SessionState, bool] = {}

    def heard(state: SessionState) -> None:
        try:
            node.node.must_be_current()
        except OutdatedMirrorError:
            refused[state] = True

    assert isinstance(node.store, MemoryStore)
    node.store.on_session(heard)
    node.store._cluster.expire(node.store)
    await eventually(lambda: refused and node.node.mirror.is_fresh, what="all is read again in another session")
    assert refused == {SessionState.LOST: True, SessionState.CONNECTED: True}
    assert (await node.get(OWNERSHIP)).status == 200


@pytest.mark.parametrize("waits", ["", "?owner=b2:8080&waitMs=1"])
async def test_no_answer_in_a_doubtful_session(node: RunningNode, waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "lease_valid_until_s", property(lambda _: 0.0))
    reply = await node.get(OWNERSHIP + waits)
    assert (reply.status, reply.reason) == (503, "the session with ZooKeeper may be over")


async def test_long_poll_for_an_owner(cluster: Cluster, node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_routes, "OWNER_WAIT", number_parameter("waitMs", "", 0, 60_000, least=0))
    await node.lookup(TOPIC)
    await cluster.a_broker("b2:8080")
    told = asyncio.create_task(node.get(f"{OWNERSHIP}?owner=b2:8080&waitMs=60000"))
    others = asyncio.create_task(node.get(f"{OWNERSHIP}?owner=b1:8080&waitMs=60000"))
    assert (await others).json()["version"] == 1
    await node.put(f"/admin/v2/namespaces/{node.bundle_of(TOPIC)}/unload?destinationBroker=b2:8080")
    answer = (await told).json()
    assert (answer["state"], answer["owner"], answer["version"]) == ("Owned", "b2:8080", 3)


async def test_long_poll_that_times_out_returns_the_current_owner(node: RunningNode) -> None:
    await node.lookup(TOPIC)
    assert (await node.get(f"{OWNERSHIP}?owner=b2:8080&waitMs=1")).json()["owner"] == "b1:8080"
    assert (await node.get(f"{OWNERSHIP}?owner=b2:8080")).json()["owner"] == "b1:8080"
    assert (await node.get("/loadbalance/v1/ownership/persistent/t/other/x?owner=b2:8080&waitMs=1000")).status == 404
    reply = await node.get(f"{OWNERSHIP}?owner=b2:8080&waitMs=1001")
    assert (reply.status, reply.reason) == (400, "waitMs '1001': expected a number from 0 to 1000")
