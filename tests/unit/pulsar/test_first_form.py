"""Bundles of namespaces of Pulsar's first form, `tenant/cluster/namespace`: they are seen, and never moved."""

from __future__ import annotations

import asyncio

from support.beside import Beside
from support.waiting import eventually

from loadmanager.core.domain.bundles import equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.pulsar.pulsar_service import BesideNode

WHOLE = "0x00000000_0xffffffff"
OLD = f"t/c1/old/{WHOLE}"


async def a_leader_that_has_seen_it(beside: Beside) -> tuple[BesideNode, BrokerId]:
    """And the broker that owns it, all other bundles, which carry less, and what it tests itself in."""
    owner = beside.pulsar.brokers[0]
    await beside.pulsar.cut("t/c1/old", equal_boundaries(1))
    for name in (OLD, f"pulsar/c1/{owner.broker_id}/{WHOLE}", f"pulsar/{owner.broker_id}/{WHOLE}"):
        await owner.acquire(name)
    node = await beside.leader()
    for name in (*node.intake.owners, f"pulsar/c1/{owner.broker_id}/{WHOLE}"):
        beside.pulsar.load(name, 300.0 if name == OLD else 200.0, bytes_each=100 * 1024.0)
    at_s = node.intake.reports_at_s(owner.broker_id) or 0.0
    await asyncio.sleep(0.002)  # reports are told apart by milliseconds
    await beside.pulsar.report()
    await eventually(lambda: (node.intake.reports_at_s(owner.broker_id) or 0.0) > at_s)
    assert node.view.faults == {}
    return node, owner.broker_id


async def test_a_drain_gives_all_others_away_and_the_term_goes_on(beside: Beside) -> None:
    node, owner = await a_leader_that_has_seen_it(beside)
    await node.drains_to_order.start(owner)
    await eventually(lambda: node.drains_to_order.progress(owner).failed > 0)
    await eventually(lambda: node.drains_to_order.progress(owner).bundles_left == 1)
    assert await beside.pulsar.owner(OLD) == owner
    assert node.is_leading


async def test_a_round_moves_others(beside: Beside) -> None:
    node, owner = await a_leader_that_has_seen_it(beside)
    plan = await node.shedding.cycle()
    assert plan.steps
    assert OLD not in [step.bundle for step in plan.steps]
    assert await beside.pulsar.owner(OLD) == owner
    assert node.is_leading
