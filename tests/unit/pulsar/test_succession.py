"""Several processes beside a Pulsar, whole: who acts, and what becomes of a move whose process is gone."""

from __future__ import annotations

import asyncio
import contextlib
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs
from support.fake_pulsar import PulsarBroker
from support.pulsar_harness import NAMESPACE, ON_BOTH, Harness, ownership
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Ownership, OwnershipState
from loadmanager.core.domain.reasons import GuardrailReason, OwnershipReason
from loadmanager.core.protocol.guardrails import MoveHistory, PendingMove
from loadmanager.errors import LoadManagerError, NotLeaderError, StoreUnavailableError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.pulsar.move_log import Recovery
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create
from loadmanager.wire.pulsar_records import encode_move_history

BUNDLE = f"{NAMESPACE}/0x00000000_0x40000000"


async def move(node: PulsarService, to: PulsarBroker) -> Ownership:
    name, destination = BundleName.parse(BUNDLE), node.mirror.registrations[to.broker_id]
    return await node.executor.unload(name, destination, OwnershipReason.ADMIN_UNLOAD)


async def kill(node: PulsarService) -> None:
    """Without a word: its tasks do nothing more, and its session ends when it would have."""
    tasks = [*node._tasks, *node.executor._tasks.values()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await node.store.close()


@ON_BOTH
async def test_only_the_leader_moves_bundles(harness: Harness) -> None:
    leader, standby = await harness.leader(), await harness.start()
    to = harness.pulsar.brokers[1]
    with pytest.raises(NotLeaderError):
        await move(standby, to)
    assert not [each for each in harness.pulsar.asked if "/unload" in each.path]
    await move(leader, to)
    await eventually(lambda: ownership(standby, BUNDLE).owner == standby.mirror.registrations[to.broker_id])
    assert (leader.is_leading, standby.is_leading) == (True, False)


async def test_successor_knows_failures_and_touched_brokers(harness: Harness) -> None:
    leader, standby = await harness.leader(), await harness.start()
    await move(leader, harness.pulsar.brokers[1])
    before = leader.actuator.move_log.history
    await leader.election.resign()
    await eventually(lambda: standby.is_leading and not standby.actuator.move_log.open_moves)
    known = standby.actuator.move_log.history
    assert known.touched_s == {broker: pytest.approx(at_s, abs=0.001) for broker, at_s in before.touched_s.items()}
    assert (known.failures, known.in_progress) == (0, {})


@pytest.mark.parametrize(
    ("others_lead", "is_away", "told"), [(False, False, True), (False, True, True), (True, False, False)]
)
async def test_undo_commands_are_logged_when_nobody_gives_back_the_switches(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, *, others_lead: bool, is_away: bool, told: bool
) -> None:
    await harness.pulsar.set_dynamic({})
    node = await harness.leader(take_over=True)
    await eventually(node.take_over.undo_commands)
    node.leading.clear()
    monkeypatch.setattr(PulsarService, "leader_url", "http://127.0.0.1:1" if others_lead else None)
    if is_away:
        monkeypatch.setattr(node.store, "get", AsyncMock(side_effect=StoreUnavailableError("away")))
    with capture_logs() as logs:
        await node._restore_switches()
    said = [
        (each["event"], each["log_level"], each["undo_commands"])
        for each in logs
        if each["event"] == "pulsar_balancing_not_restored"
    ]
    assert said == ([("pulsar_balancing_not_restored", "error", node.take_over.undo_commands())] if told else [])


@ON_BOTH
@pytest.mark.parametrize("done", [False, True])
async def test_move_of_a_killed_process_is_finished_by_the_next(harness: Harness, *, done: bool) -> None:
    leader, standby = await harness.leader(), await harness.start()
    first, to, _ = harness.pulsar.brokers
    harness.pulsar.faults.hold("/unload", done=done)
    moving = asyncio.create_task(move(leader, to))
    await eventually(lambda: [each for each in harness.pulsar.asked if "/unload" in each.path])
    await kill(leader)
    moving.cancel()
    with contextlib.suppress(asyncio.CancelledError, LoadManagerError):
        await moving
    await eventually(lambda: standby.is_leading and not standby.actuator.move_log.open_moves)
    owner = await harness.pulsar.owner(BUNDLE)
    assert owner == (to.broker_id if done else first.broker_id)
    assert (await harness.move_history()).in_progress == {}
    (entry,) = [each for each in standby.decision_log.recent(100) if each["kind"] == "repair"]
    assert entry["sentence"] == (
        f"A move of an earlier term from {first.broker_id} to {to.broker_id} was interrupted: it is on {owner}"
    )
    await eventually(lambda: ownership(standby, BUNDLE).owner == standby.mirror.registrations[owner])
    assert standby.actuator.guardrails.check_round() == []


async def test_lost_lease_during_a_move_ends_its_requests(harness: Harness) -> None:
    node = await harness.leader()
    harness.pulsar.lands[BUNDLE] = None
    moving = asyncio.create_task(move(node, harness.pulsar.brokers[1]))
    await eventually(lambda: [each for each in harness.pulsar.asked if "/lookup" in each.path])
    node.election.violated()
    with pytest.raises(NotLeaderError):
        await moving
    await eventually(lambda: node.is_leading and not node.actuator.move_log.open_moves)
    assert ownership(node, BUNDLE).state is OwnershipState.FREE, "Pulsar would not place it"
    assert [each["subject"] for each in node.decision_log.recent(100) if each["kind"] == "repair"] == [BUNDLE]


async def test_recovered_move_is_logged_when_the_term_ends_meanwhile() -> None:
    move = PendingMove(BrokerId("a:8080"), None, 1.0, is_own=True)
    move_log = Mock(history=MoveHistory({BUNDLE: move}), end=AsyncMock(side_effect=NotLeaderError("deposed")))
    decision_log = DecisionLog(10)
    with pytest.raises(NotLeaderError):
        await Recovery(move_log, Mock(find=AsyncMock(return_value=None)), decision_log).run(epoch=7)
    assert [(each["kind"], each["subject"]) for each in decision_log.recent(10)] == [("repair", BUNDLE)]


async def test_unreadable_record_stops_everything_until_an_operator_resumes(
    harness: Harness,
) -> None:
    await harness.store.ensure_path(paths.PULSAR)
    await harness.store.commit([Create(paths.PULSAR_MOVES, b'{"failures":"many"}')])
    node = await harness.start()
    await eventually(lambda: node.is_leading)
    await eventually(lambda: "failures" in node.actuator.move_log.open_moves)
    (stop,) = node.actuator.guardrails.check_round()
    assert stop.verdict is GuardrailReason.EARLIER_MOVES_UNRESOLVED
    assert f"{paths.PULSAR_MOVES}: failures" in stop.sentence()
    with pytest.raises(LoadManagerError, match="the outcome of earlier moves is unknown"):
        await move(node, harness.pulsar.brokers[1])
    await node.resume()
    await move(node, harness.pulsar.brokers[1])
    assert (await harness.move_history()).failures == 0


async def test_pending_bundle_without_a_destination_is_looked_up(harness: Harness) -> None:
    first, to, _ = (broker.broker_id for broker in harness.pulsar.brokers)
    await harness.pulsar.broker(first).release(BUNDLE)
    await harness.store.ensure_path(paths.PULSAR)
    left = MoveHistory({BUNDLE: PendingMove(first, None, 1.0, is_own=True)}, failures=1)
    await harness.store.commit([Create(paths.PULSAR_MOVES, encode_move_history(left))])
    harness.pulsar.lands[BUNDLE] = to
    node = await harness.leader()
    assert await harness.pulsar.owner(BUNDLE) == to
    assert [each["sentence"] for each in node.decision_log.recent(100) if each["kind"] == "repair"] == [
        f"A move of an earlier term from {first} was interrupted: it is on {to}"
    ]
