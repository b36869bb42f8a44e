"""Whole moves beside a Pulsar: by its REST, watched in its metadata, and what became of them in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.beside import NAMESPACE, NEVER, Beside, beside_pulsar, ownership
from support.fake_pulsar import FakePulsar, PulsarBroker
from support.registrations import write
from support.waiting import eventually

from loadmanager.beside.rails import RailError
from loadmanager.beside.service import BesideNode
from loadmanager.cli.recorded import find_start, planner_settings_of, recorded_items
from loadmanager.core.leading.acting import Acts
from loadmanager.core.names import BundleName
from loadmanager.core.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.plan import Unload
from loadmanager.core.reasons import OwnershipReason, RailReason, Reason
from loadmanager.errors import InvalidRecordError, UnloadCancelledError, UnloadFailedError
from loadmanager.history.reader import History
from loadmanager.sim.replay import replay
from loadmanager.store import paths
from loadmanager.store.base import Delete
from loadmanager.store.pulsars_paths import local_policies
from loadmanager.wire.plans import PlanRequest

BUNDLES = [
    f"{NAMESPACE}/{each}" for each in ("0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xc0000000")
]
BUNDLE = BUNDLES[0]


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    async with beside_pulsar(tmp_path) as beside:
        yield beside


def life(node: BesideNode, broker: PulsarBroker) -> Registration:
    return node.view.registrations[broker.broker_id]


async def move(node: BesideNode, to: PulsarBroker | None, bundle: str = BUNDLE) -> Ownership:
    """At an operator's word."""
    destination = None if to is None else life(node, to)
    return await node.executor.unload(BundleName.parse(bundle), destination, OwnershipReason.ADMIN_UNLOAD)


def asked(pulsar: FakePulsar, what: str) -> list[str]:
    """The requests of the kind, as they came to whichever broker."""
    return [each.path for each in pulsar.asked if what in each.path]


async def is_settled(beside: Beside, node: BesideNode) -> None:
    """Nothing is under way, and the view is as Pulsar's metadata are."""
    for bundle in list(node.intake.owners):
        owner, seen = await beside.pulsar.owner(bundle), ownership(node, bundle)
        assert (seen.owner.broker if seen.owner else None) == owner
        assert seen.state is (OwnershipState.FREE if owner is None else OwnershipState.OWNED)
    assert (await beside.acts()).under_way == {}


# A move


async def test_a_bundle_goes_where_it_is_sent(beside: Beside) -> None:
    node = await beside.leader()
    source, to, _ = beside.pulsar.brokers
    done = await move(node, to)
    assert await beside.pulsar.owner(BUNDLE) == to.broker_id
    assert (done.state, done.owner, done.version) == (OwnershipState.OWNED, life(node, to), 3)
    await is_settled(beside, node)
    acts = await beside.acts()
    assert acts == Acts(touched_s=acts.touched_s)
    assert acts.touched_s.keys() == {source.broker_id, to.broker_id}
    assert len(asked(beside.pulsar, "/unload")) == 1
    assert f"destinationBroker={to.broker_id.replace(':', '%3A')}" in asked(beside.pulsar, "/unload")[0]


async def test_without_a_destination_pulsar_places_it(beside: Beside) -> None:
    node = await beside.leader()
    done = await move(node, None)
    assert done.state is OwnershipState.OWNED
    assert "destinationBroker" not in asked(beside.pulsar, "/unload")[0]
    await is_settled(beside, node)
    assert (await beside.acts()).failures == 0


async def test_while_it_is_under_way_it_is_written_down_and_nobody_elses_word_counts(beside: Beside) -> None:
    node = await beside.leader()
    _, to, other = beside.pulsar.brokers
    beside.pulsar.lands[BUNDLE] = None
    moving = asyncio.create_task(move(node, to))
    await eventually(lambda: asked(beside.pulsar, "/lookup"))
    assert (await beside.acts()).under_way.keys() == {BUNDLE}
    assert ownership(node, BUNDLE).state is OwnershipState.RELEASING
    with pytest.raises(Exception, match="cannot release"):
        await move(node, other)
    del beside.pulsar.lands[BUNDLE]
    assert (await moving).owner == life(node, to)
    await is_settled(beside, node)


async def test_none_begins_where_it_cannot_be_read_how_a_namespace_is_cut(beside: Beside) -> None:
    node = await beside.leader()
    policies = local_policies(NAMESPACE)
    await write(beside.pulsar.operator, policies, b"{")
    await eventually(lambda: node.view.faults)
    with pytest.raises(InvalidRecordError, match=policies):
        await move(node, beside.pulsar.brokers[1])
    assert asked(beside.pulsar, "/unload") == []
    assert (await beside.acts()).under_way == {}


async def test_an_operator_may_cancel_one_that_is_under_way(beside: Beside) -> None:
    node = await beside.leader()
    source, to, _ = beside.pulsar.brokers
    beside.pulsar.faults.hold("/unload")
    moving = asyncio.create_task(move(node, to))
    await eventually(lambda: asked(beside.pulsar, "/unload"))
    await node.executor.cancel(BundleName.parse(BUNDLE))
    with pytest.raises(UnloadCancelledError, match=f"stays with {source.broker_id}"):
        await moving
    await is_settled(beside, node)
    assert (await beside.acts()).failures == 0


async def test_a_move_of_pulsars_is_followed(beside: Beside) -> None:
    node = await beside.leader()
    third = beside.pulsar.brokers[2]
    await beside.pulsar.move(BUNDLE, third.broker_id)
    await eventually(lambda: ownership(node, BUNDLE).owner == life(node, third))


# Rounds, drains and pins


async def load(beside: Beside, node: BesideNode) -> None:
    """All bundles are as busy as each other, and all brokers have reported."""
    for bundle in list(node.intake.owners):
        beside.pulsar.load(bundle, 200.0, bytes_each=100 * 1024.0)
    await report(beside, node)


async def report(beside: Beside, node: BesideNode) -> None:
    brokers = [broker.broker_id for broker in beside.pulsar.brokers if broker.reporting]
    before_s = {broker: node.intake.reports_at_s(broker) or 0.0 for broker in brokers}
    await asyncio.sleep(0.002)  # reports are told apart by milliseconds
    await beside.pulsar.report()
    await eventually(lambda: all((node.intake.reports_at_s(each) or 0.0) > before_s[each] for each in brokers))


async def counts(beside: Beside) -> list[int]:
    """How many bundles each broker owns."""
    return [len(await broker.owned()) for broker in beside.pulsar.brokers]


async def test_a_round_levels_what_pulsar_has_put_on_one_broker(beside: Beside) -> None:
    node = await beside.leader()
    await load(beside, node)
    plan = await node.shedding.cycle()
    assert len(plan.steps) == 2
    assert await counts(beside) == [2, 1, 1]
    await is_settled(beside, node)
    begun = [each for each in node.journal.recent(100) if each["kind"] == "unload"]
    assert {each["subject"] for each in begun} == {step.bundle for step in plan.steps}
    assert all("Shed 2 of 4 bundles because usage 80 %" in each["sentence"] for each in begun)
    assert len((await beside.acts()).began_s) == 2


async def test_a_second_round_waits_for_reports_that_are_younger_than_the_moves_of_the_first(beside: Beside) -> None:
    node = await beside.leader()
    await load(beside, node)
    (step, *_) = (await node.shedding.cycle()).steps
    assert isinstance(step, Unload)
    first, to = step.source, step.destination
    assert to is not None
    another = replace(step, bundle=(await beside.pulsar.broker(first.broker).owned())[0])

    def why_not() -> list[tuple[Reason, object]]:
        return [(stop.verdict, stop.why["broker"]) for stop in node.hands.rails.stops_of_step(another)]

    assert why_not() == [], "the moves of one round were decided on one picture"
    node.hands.rails.begin_round()
    assert why_not() == [(RailReason.REPORT_BEFORE_MOVE, broker) for broker in (first.broker, to.broker)]
    await report(beside, node)
    assert why_not() == []


async def test_pinned_and_frozen_bundles_stay_in_a_round(beside: Beside) -> None:
    node = await beside.leader()
    first = beside.pulsar.brokers[0].broker_id
    pinned, frozen = BUNDLES[:2]
    await node.operators.update_controls(
        lambda controls: replace(controls, pinned={pinned: first}, frozen_bundles={frozen: "it is being looked at"})
    )
    await load(beside, node)
    plan = await node.shedding.cycle()
    assert {step.bundle for step in plan.steps}.isdisjoint({pinned, frozen})
    assert [await beside.pulsar.owner(bundle) for bundle in (pinned, frozen)] == [first, first]
    await node.operators.update_controls(lambda controls: replace(controls, frozen="a migration"))
    assert (await node.shedding.cycle()).steps == ()


async def test_so_much_load_an_hour_is_moved_and_no_more(beside: Beside) -> None:
    node = await beside.leader(overrides={**NEVER, "loadBalancerMaxLoadMovedPerHourPercentage": "30"})
    await load(beside, node)
    assert len((await node.shedding.cycle()).steps) == 1
    assert await counts(beside) == [3, 1, 0] or await counts(beside) == [3, 0, 1]


async def test_a_drain_empties_a_broker_and_says_so(beside: Beside) -> None:
    node = await beside.leader()
    first = beside.pulsar.brokers[0].broker_id
    await load(beside, node)
    await node.drains_to_order.start(first)
    await eventually(lambda: node.drains_to_order.progress(first).bundles_left == 0)
    assert (await counts(beside))[0] == 0
    await is_settled(beside, node)
    assert (await beside.acts()).began_s == (), "they are not counted as shedding's"


async def test_a_pinned_bundle_is_brought_home(beside: Beside) -> None:
    node = await beside.leader()
    third = beside.pulsar.brokers[2].broker_id
    await load(beside, node)
    await node.operators.update_controls(lambda controls: replace(controls, pinned={BUNDLE: third}))
    await eventually(lambda: ownership(node, BUNDLE).owner == life(node, beside.pulsar.brokers[2]))
    assert await beside.pulsar.owner(BUNDLE) == third


async def test_a_plan_is_executed_by_its_hash(beside: Beside) -> None:
    node = await beside.leader()
    await load(beside, node)
    plan = await node.plans_to_order.compute(PlanRequest(kind="shed"))
    done = await node.plans_to_order.execute(plan.hash, even_if_frozen=False)
    assert done.executed == len(plan.steps) == 2
    assert await counts(beside) == [2, 1, 1]


# Rails


async def sheds(pulsar: FakePulsar) -> None:
    pulsar.brokers[1].settings["loadBalancerSheddingEnabled"] = "true"
    await pulsar.set_dynamic({"loadBalancerAutoBundleSplitEnabled": "false"})


async def splits(pulsar: FakePulsar) -> None:
    pulsar.brokers[1].settings["loadBalancerSheddingEnabled"] = "false"
    await pulsar.set_dynamic({"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "true"})


async def another_load_manager(pulsar: FakePulsar) -> None:
    pulsar.brokers[2].load_manager = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
    await pulsar.report()


async def no_leader(pulsar: FakePulsar) -> None:
    await pulsar.operator.commit([Delete("/loadbalance/leader")])


async def an_unregistered_leader(pulsar: FakePulsar) -> None:
    pulsar.elects = False
    await pulsar.brokers[0].store.commit([Delete(pulsar.brokers[0].path)])


async def read_only(pulsar: FakePulsar) -> None:
    await pulsar.make_policies_readonly()


Breaks = Callable[[FakePulsar], Awaitable[None]]


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        (sheds, RailReason.PULSAR_SHEDS),
        (splits, RailReason.PULSAR_SPLITS),
        (another_load_manager, RailReason.LOAD_MANAGER_NOT_MODULAR),
        (no_leader, RailReason.PULSAR_HAS_NO_LEADER),
        (an_unregistered_leader, RailReason.PULSAR_HAS_NO_LEADER),
        (read_only, RailReason.POLICIES_READ_ONLY),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_what_is_not_as_it_has_to_be_stops_rounds_and_moves(
    beside: Beside, breaks: Breaks, reason: RailReason
) -> None:
    node = await beside.leader()
    await load(beside, node)
    await breaks(beside.pulsar)
    await eventually(lambda: reason in reasons(node))
    await stops(beside, node, reason)


def reasons(node: BesideNode) -> list[Reason]:
    return [stop.verdict for stop in node.hands.rails.stops_of_round()]


async def stops(beside: Beside, node: BesideNode, reason: RailReason) -> None:
    """A round is planned and shown, a move at an operator's word refused, and nobody asked to let go."""
    before = await counts(beside)
    plan = await node.shedding.cycle()
    for step in plan.steps:
        (entry, *_) = node.journal.recent(1, step.bundle)
        assert (entry["kind"], entry["acted"]) == ("would_unload", False)
        assert entry["sentence"].startswith("No move because ")
    said = [each["sentence"] for each in node.journal.recent(100) if each["kind"] == "rail"]
    beginnings = [sentence.split("{")[0] for sentence in reason.sentences]
    assert [each for each in said if any(beginning in each for beginning in beginnings)]
    with pytest.raises(RailError) as refused:
        await move(node, beside.pulsar.brokers[1], next(iter(await beside.pulsar.brokers[0].owned())))
    assert reason in [stop.verdict for stop in refused.value.stops]
    assert (await counts(beside), asked(beside.pulsar, "/unload")) == (before, [])
    assert (await beside.acts()).under_way == {}


async def test_while_brokers_join_and_leave_nothing_is_moved(beside: Beside) -> None:
    node = await beside.leader(settling_seconds=3_600.0)
    assert reasons(node) == [], "they were there when it began to look"
    await load(beside, node)
    await beside.pulsar.join()
    await eventually(lambda: len(node.view.registrations) == 4 and not node.brokers.unknown())
    assert reasons(node) == [RailReason.BROKERS_SETTLING]
    await stops(beside, node, RailReason.BROKERS_SETTLING)


async def test_a_broker_that_does_not_say_what_it_goes_by_stops_everything(beside: Beside) -> None:
    node = await beside.leader()
    await load(beside, node)
    beside.pulsar.faults.refuse("/configuration/runtime", 500, times=1_000, at=beside.pulsar.brokers[2].broker_id)
    await beside.pulsar.set_dynamic({**await beside.pulsar.dynamic(), "loadBalancerNamespaceBundleMaxTopics": "2000"})
    await eventually(lambda: reasons(node) == [RailReason.SETTINGS_UNKNOWN])
    await stops(beside, node, RailReason.SETTINGS_UNKNOWN)


async def test_shadow_moves_nothing_and_writes_nothing_down(beside: Beside) -> None:
    node = await beside.leader(mode="shadow")
    await load(beside, node)
    await stops(beside, node, RailReason.MODE_IS_SHADOW)
    assert await beside.store.get(paths.BESIDE_MOVES) is None


async def test_of_namespaces_that_are_left_out_nothing_moves_and_others_are_chosen(beside: Beside) -> None:
    others = await beside.pulsar.add_namespace("lm/other", 4, [beside.pulsar.brokers[0].broker_id])
    node = await beside.leader(excluded_namespaces=("lm/b.*",))
    await load(beside, node)
    plan = await node.shedding.cycle()
    assert {step.bundle for step in plan.steps} <= {*others}
    assert await beside.pulsar.brokers[1].owned() + await beside.pulsar.brokers[2].owned() != []
    with pytest.raises(RailError, match=f"{BUNDLE}: No move because lm/bench is left out by lm/b"):
        await move(node, beside.pulsar.brokers[1])
    await is_settled(beside, node)


@pytest.mark.parametrize(
    ("limit", "reason"), [("moves_per_round", "round_is_full"), ("moves_per_hour", "hour_is_full")]
)
async def test_so_many_moves_are_made_and_no_more(beside: Beside, limit: str, reason: str) -> None:
    node = await beside.leader(**{limit: 1})
    await load(beside, node)
    assert len((await node.shedding.cycle()).steps) == 2
    assert sorted(await counts(beside)) == [0, 1, 3]
    assert [each["reason"] for each in node.journal.recent(100) if each["kind"] == "rail"] == [reason]
    await is_settled(beside, node)


async def test_an_overdue_report_of_a_destination_stops_what_goes_there(beside: Beside) -> None:
    node = await beside.leader()
    await load(beside, node)
    third = beside.pulsar.brokers[2].broker_id
    node.view.brokers[third].record["lastUpdate"] -= 31 * 60 * 1000
    plan = await node.shedding.cycle()
    there = [step.bundle for step in plan.steps if step.destination is not None and step.destination.broker == third]
    (entry, *_) = node.journal.recent(1, there[0])
    assert entry["kind"] == "would_unload"
    assert f"the last report of {third} is 18" in entry["sentence"]
    assert await counts(beside) == [3, 1, 0]


# What was recorded


async def test_what_was_recorded_beside_a_pulsar_is_decided_and_made_again(beside: Beside) -> None:
    node = await beside.leader()
    await load(beside, node)
    third = beside.pulsar.brokers[2]
    beside.pulsar.faults.refuse("/unload", 500)
    beside.pulsar.lands[BUNDLE] = third.broker_id
    with contextlib.suppress(UnloadFailedError):
        await move(node, beside.pulsar.brokers[1])
    await report(beside, node)
    assert (await node.shedding.cycle()).steps
    await beside.pulsar.make_policies_readonly()
    await eventually(lambda: reasons(node) == [RailReason.POLICIES_READ_ONLY])
    await report(beside, node)
    await node.shedding.cycle()
    await beside.close()
    history = History(str(beside.folder / "0" / "history"))
    outcome = replay(recorded_items(history, find_start(history, None), None), planner_settings_of)
    assert outcome.difference is None
    assert outcome.is_equal
    assert outcome.compared["shed"] == node.shedding.cycles == 3
    assert outcome.compared["step of moves"] > 0


# Faults


async def fails(beside: Beside, node: BesideNode, why: str, to: PulsarBroker | None = None) -> None:
    with pytest.raises(UnloadFailedError, match=why):
        await move(node, to or beside.pulsar.brokers[1])
    await is_settled(beside, node)


@pytest.mark.parametrize("status", [403, 404, 409, 412])
async def test_what_pulsar_refuses_is_not_asked_again(beside: Beside, status: int) -> None:
    node = await beside.leader()
    beside.pulsar.faults.refuse("/unload", status)
    await fails(beside, node, f"stays with {beside.pulsar.brokers[0].broker_id}: http.*/unload.* answered {status}")
    assert len(asked(beside.pulsar, "/unload")) == 1
    assert (await beside.acts()).failures == 1


async def test_a_token_that_is_refused_moves_nothing(beside: Beside) -> None:
    node = await beside.leader()
    beside.pulsar.token = "another"
    await fails(beside, node, "answered 401")
    assert (await beside.acts()).failures == 1


async def test_what_pulsar_cannot_do_now_is_asked_again(beside: Beside) -> None:
    node = await beside.leader()
    beside.pulsar.faults.refuse("/unload", 500, times=2)
    to = beside.pulsar.brokers[1]
    assert (await move(node, to)).owner == life(node, to)
    await is_settled(beside, node)
    assert (await beside.acts()).failures == 0


async def test_what_pulsar_never_does_fails_within_its_time(beside: Beside) -> None:
    node = await beside.leader(move_timeout_ms=1_000)
    beside.pulsar.faults.refuse("/unload", 500, times=1_000)
    await fails(beside, node, "answered 500")
    assert (await beside.acts()).failures == 1


async def test_a_redirect_to_a_host_that_is_none_of_pulsars_is_not_followed(beside: Beside) -> None:
    node = await beside.leader(move_timeout_ms=1_000)
    beside.pulsar.faults.send_away("/unload", "http://127.0.0.1:1", times=1_000)
    await fails(beside, node, "127.0.0.1:1")


async def test_an_answer_that_never_comes_ends_with_the_time_of_the_move(beside: Beside) -> None:
    node = await beside.leader(move_timeout_ms=1_000)
    beside.pulsar.faults.hold("/unload")
    await fails(beside, node, f"after 1.0 s {beside.pulsar.brokers[0].broker_id} has it")


async def test_an_unload_whose_answer_is_lost_is_seen_to_have_happened(beside: Beside) -> None:
    node = await beside.leader(move_timeout_ms=1_000)
    beside.pulsar.faults.hold("/unload", done=True)
    with pytest.raises(UnloadFailedError, match=r"after 1\.0 s nobody has it"):
        await move(node, beside.pulsar.brokers[1])
    await is_settled(beside, node)
    assert await beside.pulsar.owner(BUNDLE) is not None, "it was looked up in the end"


async def test_a_bundle_that_lands_elsewhere_is_a_failure_and_the_view_says_where_it_is(beside: Beside) -> None:
    node = await beside.leader()
    third = beside.pulsar.brokers[2]
    beside.pulsar.lands[BUNDLE] = third.broker_id
    await fails(beside, node, f"is with {third.broker_id}: it went to {third.broker_id}")
    assert ownership(node, BUNDLE).owner == life(node, third)
    assert len(asked(beside.pulsar, "/unload")) == 1
    acts = await beside.acts()
    assert (acts.failures, set(acts.touched_s)) == (1, {beside.pulsar.brokers[0].broker_id, third.broker_id})


async def test_a_bundle_that_lands_nowhere_is_a_failure(beside: Beside) -> None:
    node = await beside.leader(move_timeout_ms=1_000)
    beside.pulsar.lands[BUNDLE] = None
    await fails(beside, node, r"is with nobody: after 1\.0 s nobody has it")
    assert ownership(node, BUNDLE).state is OwnershipState.FREE
    assert (await beside.acts()).failures == 1


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("number", [0, 1], ids=["source", "destination"])
async def test_a_broker_that_dies_in_the_middle_of_a_move_leaves_a_bundle_that_somebody_owns(
    beside: Beside, number: int, *, done: bool
) -> None:
    node = await beside.leader(move_timeout_ms=5_000)
    await beside.pulsar.elect(beside.pulsar.brokers[2])
    leader = beside.pulsar.brokers[2].broker_id
    await eventually(lambda: node.intake.pulsars_leader == leader and node.view.is_fresh)
    dying, to = beside.pulsar.brokers[number], beside.pulsar.brokers[1]
    if number == 0:
        beside.pulsar.faults.kill("/unload", at=dying.broker_id, done=done)
    else:
        beside.pulsar.faults.hold("/lookup")
    moving = asyncio.create_task(move(node, to))
    if number == 1:
        await eventually(lambda: asked(beside.pulsar, "/lookup" if done else "/unload"))
        await beside.pulsar.kill(dying)
    with contextlib.suppress(UnloadFailedError):
        await moving
    await eventually(lambda: dying.broker_id not in node.view.registrations)
    owner = await beside.pulsar.owner(BUNDLE)
    assert owner is not None
    assert owner != dying.broker_id
    await is_settled(beside, node)


async def test_moves_that_keep_failing_stop_everything_until_an_operator_says_go_on(beside: Beside) -> None:
    node = await beside.leader()
    beside.pulsar.faults.refuse("/unload", 412, times=3)
    for failures in (1, 2, 3):
        await fails(beside, node, "answered 412")
        assert (await beside.acts()).failures == failures
    assert reasons(node) == [RailReason.MOVES_KEEP_FAILING]
    with pytest.raises(RailError, match="the last 3 moves failed"):
        await move(node, beside.pulsar.brokers[1])
    assert len(asked(beside.pulsar, "/unload")) == 3
    await node.go_on()
    assert (await beside.acts()).failures == 0
    assert (await move(node, beside.pulsar.brokers[1])).owner == life(node, beside.pulsar.brokers[1])


async def test_a_move_that_lands_sets_the_failures_before_it_back(beside: Beside) -> None:
    node = await beside.leader()
    beside.pulsar.faults.refuse("/unload", 412, times=2)
    for _ in range(2):
        await fails(beside, node, "answered 412")
    await move(node, beside.pulsar.brokers[1])
    assert (await beside.acts()).failures == 0
