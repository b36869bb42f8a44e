"""Whole moves beside a Pulsar: by its REST, watched in its metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.beside import NAMESPACE, Beside, beside_pulsar

from loadmanager.core.leading.acting import Acts
from loadmanager.core.names import BundleName
from loadmanager.core.reasons import OwnershipReason

BUNDLES = [
    f"{NAMESPACE}/0x{n}0000000_0x{end}"
    for n, end in zip("048c", ["40000000", "80000000", "c0000000", "ffffffff"], strict=True)
]


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    async with beside_pulsar(tmp_path) as beside:
        yield beside


async def test_a_bundle_goes_where_it_is_sent(beside: Beside) -> None:
    node = await beside.leader()
    source, to, _ = beside.pulsar.brokers
    name = BundleName.parse(BUNDLES[0])
    done = await node.executor.unload(name, node.view.registrations[to.broker_id], OwnershipReason.ADMIN_UNLOAD)
    assert await beside.pulsar.owner(BUNDLES[0]) == to.broker_id
    assert done.owner == node.view.registrations[to.broker_id]
    assert node.view.get_ownership(name) == done
    acts = await beside.acts()
    assert acts.touched_s.keys() == {source.broker_id, to.broker_id}
    assert (acts.under_way, acts.began_s, acts.failures) == ({}, (), 0)
    assert acts == Acts(touched_s=acts.touched_s)
