from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from support.worlds import EAGER, MIB, QUIET, brokers_named, load_of, namespaces_dealt, steady, violations, world

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, BundleRange
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.reasons import ChurnReason, OwnershipReason, PlacementReason, SplitReason
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.load import BrokerReport, FloatArray
from loadmanager.core.planning import churn, planner
from loadmanager.core.planning.churn import MoveMemory
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason
from loadmanager.lab.simulate.fleet_events import (
    BrokerFallsSick,
    BrokerJoins,
    BrokersCrash,
    BrokerSlows,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    Event,
    LeaderElected,
    LoadJumps,
    NamespaceSpec,
    NewNamespace,
    ReportFault,
    ReportsGoBad,
)
from loadmanager.lab.simulate.run_rules import CostModel, WorldRules
from loadmanager.lab.simulate.sim_bundles import _Order
from loadmanager.lab.simulate.sim_result import Result
from loadmanager.lab.simulate.workload import BundleTopics, Purpose, RampShape, ShapedWorkload, generator, random_topics
from loadmanager.lab.simulate.world import Progress, World
from loadmanager.lab.simulate.world_state import START_S

_WEIGHTS = (9.0, 1.0, 1.0, 8.0, 1.0, 1.0, 7.0, 1.0, 1.0, 6.0, 1.0, 1.0)
"""Weights of bundles; of three brokers the first has the heavy ones."""


def _broker(number: int) -> BrokerId:
    return brokers_named(number + 1)[number].id


class _ByHand:
    """Calls of a leader of the world of `_WEIGHTS`, written by hand."""

    def __init__(self, settings: PlannerSettings, seed: int) -> None:
        self.settings = settings
        self.specs = brokers_named(3)
        self.registrations = [Registration(spec.id, number + 1) for number, spec in enumerate(self.specs)]
        (self.namespace,) = namespaces_dealt(1, len(_WEIGHTS), [spec.id for spec in self.specs])
        self.names = self.namespace.bundle_names()
        self.load = np.array(_WEIGHTS)[:, None] * np.array(load_of(20.0))
        self.owner = [number % 3 for number in range(len(_WEIGHTS))]
        self.model = ClusterModel(settings)
        self.state: planner.State = {}
        self.churn_state: churn.State = {}
        self.rng = generator(seed, Purpose.PLANNER)

    def write(self, changes: dict[int, Ownership] | None = None) -> None:
        owned = [Ownership(OwnershipState.OWNED, self.registrations[owner], None, 1) for owner in self.owner]
        entries = [(changes or {}).get(row, ownership) for row, ownership in enumerate(owned)]
        self.model.set_namespace(self.namespace.name, self.names, entries)

    def report(self, broker: int, at_s: float) -> None:
        rows = [row for row, owner in enumerate(self.owner) if owner == broker]
        load: FloatArray = self.load[rows]
        total = load.sum(axis=0)
        topics = np.full(len(rows), 10, dtype=np.int64)
        usage = CostModel().usage(total[None, :], np.array([10.0 * len(rows)]), np.ones(1))[0]
        given = BrokerReport(
            usage=np.stack([usage, np.array(self.specs[broker].capacity)], axis=1),
            load=total,
            num_topics=10 * len(rows),
            num_bundles=len(rows),
            num_consumers=20 * len(rows),
            num_producers=0,
            bundle_names=tuple(self.names[row] for row in rows),
            bundle_load=load,
            bundle_topics=topics,
            bundle_sessions=2 * topics,
            bundle_cache_bytes=0 * topics,
            last_update_ms=round((START_S + at_s) * 1000),
            start_timestamp_ms=round(START_S * 1000),
            version="1.0.0",
            load_manager_class="",
            persistent_enabled=True,
            non_persistent_enabled=True,
        )
        self.model.apply_report(self.registrations[broker], given)

    def shed(self, at_s: float) -> Plan:
        self.snapshot = self.model.snapshot(START_S + at_s, 1800.0)
        plan, self.state = planner.plan_shedding(self.snapshot, self.settings, self.state, self.rng)
        limited, self.churn_state = churn.limit(plan, self.snapshot, self.settings, self.churn_state)
        return limited

    def release(self, steps: list[Unload]) -> None:
        self.write(
            {
                self.names.index(step.bundle): Ownership(
                    OwnershipState.RELEASING, step.source, step.destination, version=2
                )
                for step in steps
            }
        )

    def complete(self, steps: list[Unload], at_s: float) -> None:
        for step in steps:
            assert step.destination is not None
            self.owner[self.names.index(step.bundle)] = self.registrations.index(step.destination)
        self.write()
        for step in steps:
            self.model.mark_unloaded(step.bundle, START_S + at_s, step.source.broker)
            share = share_of(self.snapshot, step.bundle)
            self.churn_state, _ = churn.noted(
                self.churn_state,
                step.bundle,
                step.source,
                step.destination,
                share,
                self.settings,
                at_s=START_S + at_s,
                is_own=True,
            )


def test_small_world_decides_as_hand_written_calls() -> None:
    settings = replace(EAGER, broker_threshold_shedder_percentage=3, history_resource_percentage=0.0)
    made = world(
        _WEIGHTS, mib_per_s=20.0, settings=settings, rules=WorldRules(reconnect_cpu_s=0, backlog_most_s=0), seed=5
    )
    result = made.run(300.0)
    by_hand = _ByHand(settings, seed=5)
    by_hand.write()
    for number in range(3):
        by_hand.report(number, 0.0)
    expected: list[tuple[float, str, BrokerId, BrokerId]] = []
    at_s, step_s = 90.0, 120.0
    while at_s < 300.0:
        steps = [step for step in by_hand.shed(at_s).steps if isinstance(step, Unload)]
        by_hand.release(steps)
        by_hand.complete(steps, at_s + 2.0)
        expected += [(at_s + 2.0, s.bundle, s.source.broker, s.destination.broker) for s in steps if s.destination]
        involved = [registration for s in steps for registration in (s.source, s.destination) if registration]
        concerned = sorted({by_hand.registrations.index(registration) for registration in involved})
        for number in concerned:
            by_hand.report(number, step_s)
        at_s, step_s = at_s + 60.0, step_s + 60.0
    assert len(expected) >= 2
    assert [(m.at_s, m.bundle, m.source, m.destination) for m in result.moves] == expected
    assert made._leader.strategy_states == by_hand.state
    assert MoveMemory.of(made._leader.churn_state).moves == MoveMemory.of(by_hand.churn_state).moves


def test_rounds_keep_their_interval_however_long_moves_take() -> None:
    settings = replace(EAGER, broker_threshold_shedder_percentage=3, history_resource_percentage=0.0)
    rules = WorldRules(unload_s=50.0, max_concurrent_unloads=1, max_concurrent_unloads_per_broker=1)
    result = world(_WEIGHTS, mib_per_s=20.0, settings=settings, rules=rules).run(600.0, 10.0)
    assert result.moves[0].at_s == 90.0 + 50.0
    assert result.rounds == len(np.arange(90.0, 600.0 + 1, 60.0))
    assert len(result.moves) >= 2


def test_first_round_comes_one_interval_after_an_election() -> None:
    made = world(_WEIGHTS, settings=QUIET, events=[LeaderElected(200.0), LeaderElected(220.0)])
    rounds: list[float] = []
    decide = made._leader.shed

    def shed() -> Plan:
        rounds.append(made._state.agenda.now_s)
        return decide()

    made._leader.shed = shed  # type: ignore[method-assign]
    made.run(400.0, 10.0)
    assert rounds == [90.0, 150.0, 280.0, 340.0, 400.0]


def test_lagging_host_usage_is_reported_one_interval_late() -> None:
    def used(*, lags: bool) -> list[float]:
        rules = WorldRules(stats_interval_s=10.0, report_threshold_percent=0.1, host_usage_lags=lags)
        made = world(_WEIGHTS, settings=QUIET, rules=rules, shapes=[_growing()])
        seen: list[float] = []

        def note(_: Progress) -> None:
            seen.extend(report.usage[3, 0] for each, report in made._state.reports.items() if each.broker == _broker(0))

        made.run(100.0, 10.0, note)
        return seen

    now, before = used(lags=False), used(lags=True)
    assert before[2:] == pytest.approx(now[1:-1])
    assert len(set(now)) > 3


def test_waiting_steps_are_cancelled_at_the_next_round() -> None:
    settings = replace(EAGER, broker_threshold_shedder_percentage=3, history_resource_percentage=0.0)
    rules = WorldRules(unload_s=100.0, unload_deadline_s=200.0, max_concurrent_unloads=1)
    made = world(_WEIGHTS, mib_per_s=20.0, settings=settings, rules=rules)
    made.run(160.0, 10.0)
    known = made._executor._driver._machine.known  # type: ignore[attr-defined]  # it is the machine of moves
    assert len(known) == len({move.bundle for move in known}) >= 2
    assert list(violations(made)) == []


def test_backlog_of_an_unserved_bundle_is_sent_afterwards() -> None:
    rules = WorldRules(unload_s=20.0, stats_interval_s=10.0, backlog_most_s=15.0, catch_up_factor=2.5)
    made = _pin_to_the_second(world(_WEIGHTS, mib_per_s=10.0, settings=QUIET, rules=rules))
    result = made.run(100.0, 1.0)
    ((move,), series) = result.moves, result.series
    bytes_per_s, gone, back = 2 * 9.0 * 10.0 * MIB, round(move.at_s) - 20, round(move.at_s)
    assert series.unowned[gone + 1 : back].tolist() == [1] * 19
    assert series.unowned_load[gone + 1 : back].tolist() == pytest.approx([bytes_per_s] * 19)
    waiting = series.backlog / bytes_per_s
    assert waiting[gone : back + 1].tolist() == pytest.approx([min(gap, 15) for gap in range(21)])
    left = [max(15 - 1.5 * since, 0) for since in range(12)]
    assert waiting[back : back + 12].tolist() == pytest.approx(left, abs=1e-6)
    assert np.ptp(series.load) == 0


@pytest.mark.parametrize(("mib_per_s", "share"), [(5.0, 1.0), (40.0, 0.0)])
def test_late_messages_show_in_reports(mib_per_s: float, share: float) -> None:
    rules = WorldRules(unload_s=20.0, stats_interval_s=1.0, report_threshold_percent=0.1)
    made = _pin_to_the_second(world(_WEIGHTS, mib_per_s=mib_per_s, settings=QUIET, rules=rules))
    seen: list[float] = []

    def note(_: Progress) -> None:
        seen.extend(report.load[2] / MIB for each, report in made._state.reports.items() if each.broker == _broker(1))

    made.run(100.0, 1.0, note)
    usual = mib_per_s * sum(_WEIGHTS[1::3])
    assert (min(seen), seen[-1]) == pytest.approx((usual, usual + 9 * mib_per_s))
    assert max(seen) == pytest.approx(usual + 9 * mib_per_s * (1 + share), rel=0.01)


def test_reconnections_cost_cpu_until_the_next_measurement() -> None:
    def used(reconnect_cpu_s: float) -> tuple[Result, FloatArray]:
        rules = WorldRules(stats_interval_s=10.0, reconnect_cpu_s=reconnect_cpu_s, catch_up_factor=1.000001)
        made = _pin_to_the_second(world(_WEIGHTS, mib_per_s=20.0, settings=QUIET, rules=rules))
        result = made.run(100.0, 1.0)
        return result, result.series.worst_usage

    (free, without), (dear, with_cost) = used(0.0), used(100.0)
    (move,) = free.moves
    assert free.reconnections == dear.reconnections == move.clients > 0
    more = with_cost - without
    shown = np.flatnonzero(more > 1e-9) - move.at_s
    assert (shown.min(), shown.max()) == (0.0, 9.0)


def _growing() -> RampShape:
    return RampShape(factor=5.0, from_s=0.0, until_s=200.0)


def _pin(made: World, at_s: float, bundle: str, broker: BrokerId) -> World:
    """Pin the bundle to the broker from that time on."""

    def hold() -> None:
        made._state.set_controls(Controls(pinned={bundle: broker}))
        made._drains.changed()

    made._state.agenda.put(at_s, hold)
    return made


def _pin_to_the_second(made: World) -> World:
    """At 40 s the heaviest bundle is to go to the second broker."""
    return _pin(made, 40.0, made._state.table.names[0], _broker(1))


def test_unserved_load_counts_in_the_total_only() -> None:
    made = world(_WEIGHTS, mib_per_s=20.0, settings=QUIET, events=[BrokersCrash(at_s=20.0, brokers=(_broker(0),))])
    series = made.run(40.0, 1.0).series
    at, served = 25, sum(_WEIGHTS[1::3]) + sum(_WEIGHTS[2::3])
    assert series.unowned_load[at] == pytest.approx(series.load[at] - 2 * 20.0 * MIB * served)
    assert series.imbalance[at] == pytest.approx(1.0)
    capacity = BrokerSpec(_broker(0)).capacity
    demand = CostModel().demand(np.array([load_of(20.0 * served)]), np.array([80]))[0]
    assert series.level[at] == pytest.approx(max(demand / (2 * np.array(capacity))))


def test_bound_allows_for_brokers_limited_by_different_resources() -> None:
    few_cores, slow_network = (400.0, 16384.0, 8192.0, 1e7, 1e7), (1600.0, 16384.0, 8192.0, 2.5e6, 2.5e6)
    specs = [BrokerSpec(_broker(0), few_cores), BrokerSpec(_broker(1), slow_network)]
    series = world([1.0] * 12, brokers=specs, settings=QUIET).run(60.0).series
    need = CostModel().demand(np.array([load_of(120.0)]), np.array([120]))[0]
    each = (need / few_cores).max(), (need / slow_network).max()
    lowest = each[0] * each[1] / sum(each)
    assert series.lower_bound[0] * series.level[0] == pytest.approx(lowest)
    assert 1.2 < series.lower_bound[0] <= series.imbalance[0]


def test_balanced_world_moves_nothing() -> None:
    result = world([1.0] * 12).run(3600.0)
    assert result.moves == ()
    assert result.unowned_bundle_s == 0.0
    assert result.series.imbalance == pytest.approx(np.ones(60))
    assert (result.thrash, result.returns, result.clients_disturbed) == (0.0, 0, 0)


def test_uneven_world_is_levelled_and_each_move_costs_a_pause() -> None:
    result = world(_WEIGHTS, mib_per_s=20.0, settings=replace(EAGER, history_resource_percentage=0.0)).run(1800.0, 10.0)
    assert result.moves
    assert result.series.imbalance[-1] < result.series.imbalance[0]
    assert result.unowned_bundle_s == pytest.approx(2.0 * len(result.moves))
    assert result.clients_disturbed == 20 * len(result.moves)
    assert result.series.moves.sum() == len(result.moves)
    assert result.series.moved_load.sum() == pytest.approx(sum(move.load for move in result.moves))


def test_unowned_bundles_are_placed_in_one_batch() -> None:
    specs = brokers_named(3)
    result = world([1.0] * 9, brokers=specs, namespaces=[NamespaceSpec.of("tenant/ns", 9)], settings=QUIET).run(
        60.0, 10.0
    )
    assert result.placements == 9
    assert result.unowned_bundle_s == pytest.approx(9 * 0.5)
    assert result.series.unowned.tolist() == [9, 0, 0, 0, 0, 0]


def test_bundles_of_a_crashed_broker_are_served_after_its_session() -> None:
    made = world([1.0] * 9, settings=QUIET, events=[BrokersCrash(at_s=100.0, brokers=(_broker(0),))])
    result = made.run(300.0, 10.0)
    assert result.unowned_bundle_s == pytest.approx(3 * (10.0 + 0.5))
    assert result.placements == 3
    assert result.series.brokers.tolist() == [3] * 10 + [2] * 20
    assert list(violations(made)) == []


def test_stopped_broker_is_drained_first() -> None:
    made = world([1.0] * 12, events=[BrokersStop(at_s=100.0, brokers=(_broker(1),))])
    result = made.run(300.0, 10.0)
    assert [move.reason for move in result.moves] == [OwnershipReason.DRAIN] * 4
    assert {move.source for move in result.moves} == {_broker(1)}
    assert not any(move.is_own for move in result.moves)
    assert result.unowned_bundle_s == pytest.approx(4 * 2.0)
    assert result.series.brokers[-1] == 2
    assert _broker(1) in made._state.controls.draining, "until another process registers"
    assert list(violations(made)) == []


def test_restarted_broker_is_another_registration() -> None:
    result = world([1.0] * 9, events=[BrokersRestart(at_s=100.0, brokers=(_broker(0),), down_s=20.0)]).run(300.0, 10.0)
    assert [(found.at_s, found.broker, found.incarnation) for found in result.first_reports[3:]] == [
        (120.5, _broker(0), 4)
    ]


def test_broker_back_before_its_session_ended_serves_new_grants() -> None:
    events: list[Event] = [
        BrokersCrash(at_s=100.0, brokers=(_broker(0),)),
        BrokersRestart(at_s=102.0, brokers=(_broker(0),), down_s=3.0),
    ]
    made = world([1.0] * 9, settings=QUIET, events=events)
    result = made.run(300.0, 10.0)
    assert list(violations(made)) == []
    assert result.series.brokers[-1] == 3
    assert result.unowned_bundle_s == pytest.approx(3 * (2.0 + 0.5))


def test_unload_unanswered_by_a_crashed_broker_ends_with_its_session() -> None:
    rules = WorldRules(first_round_s=30.0, unload_s=5.0, session_timeout_s=30.0)
    settings = replace(EAGER, broker_threshold_shedder_percentage=3, history_resource_percentage=0.0)
    made = world(
        _WEIGHTS,
        mib_per_s=20.0,
        settings=settings,
        rules=rules,
        events=[BrokersCrash(at_s=32.0, brokers=(_broker(0),))],
    )
    result = made.run(120.0, 10.0)
    assert result.moves[0].source == _broker(0)
    assert 62.0 <= result.moves[0].at_s <= 64.0
    assert list(violations(made)) == []


def test_unload_without_an_answer_fails_at_its_deadline() -> None:
    rules = WorldRules(first_round_s=30.0, unload_s=5.0, unload_deadline_s=20.0, session_timeout_s=300.0)
    settings = replace(EAGER, broker_threshold_shedder_percentage=3, history_resource_percentage=0.0)
    made = world(
        _WEIGHTS,
        mib_per_s=20.0,
        settings=settings,
        rules=rules,
        events=[BrokersCrash(at_s=32.0, brokers=(_broker(0),))],
    )
    result = made.run(80.0, 10.0)
    assert result.verdicts["shed", OwnershipReason.UNLOAD_FAILED, True] >= 1
    assert list(violations(made)) == []


def test_placement_is_retried_while_there_is_no_broker() -> None:
    events: list[Event] = [
        BrokersStop(at_s=50.0, brokers=(_broker(0),), drain=False),
        BrokerJoins(100.0, BrokerSpec(BrokerId("new:8080"))),
    ]
    made, reasons = world([1.0] * 3, brokers=1, events=events), list[set[str]]()

    def look(_: Progress) -> None:
        reasons.append({each.reason for state in made._state.table.states().values() for each in state.ownerships})

    result = made.run(200.0, 10.0, look)
    assert reasons[7] == {OwnershipReason.OWNER_GONE.value}, "nobody has got them, so they are free"
    assert np.isnan(result.series.imbalance[5:10]).all()
    assert result.verdicts["assign", PlacementReason.NO_BROKER_AVAILABLE, False] > 3
    assert result.series.unowned[-1] == 0


def test_slower_broker_uses_more_cpu_for_the_same_load() -> None:
    usages: list[float] = []
    made = world([1.0] * 9, mib_per_s=50.0, events=[BrokerSlows(at_s=100.0, broker=_broker(0), factor=0.25)])
    made.run(150.0, 10.0, lambda progress: usages.append(progress.worst_usage))
    assert usages[-1] > 2 * usages[0]


def test_sick_broker_serves_less_until_it_recovers_or_restarts() -> None:
    loads: list[float] = []
    events: list[Event] = [
        BrokerFallsSick(at_s=100.0, broker=_broker(0), until_s=300.0),
        BrokerFallsSick(at_s=100.0, broker=_broker(1)),
        BrokersRestart(at_s=600.0, brokers=(_broker(1),)),
        BrokerFallsSick(at_s=610.0, broker=_broker(1)),
    ]
    made = world([1.0] * 9, events=events)

    def observe(_: Progress) -> None:
        state = made._state
        carried = state.fleet.carried(state.table, state.loads, np.zeros(len(state.fleet)))
        loads.append(float(state.fleet.served(carried, state.agenda.now_s).load[0, 2]))

    made.run(1200.0, 10.0, observe)
    assert loads[12] == pytest.approx(0.1 * loads[0])
    assert loads[40] == loads[0]
    said = [made._state.reports[registration].health for registration in made._state.registrations.values()]
    assert all(each is not None and (each.error_share, each.queue) == (0.0, 0.0) for each in said)


def test_health_is_not_reported_without_sick_brokers() -> None:
    made = world([1.0] * 9)
    made.run(120.0, 10.0)
    assert {report.health for report in made._state.reports.values()} == {None}


def test_hot_spot_lasts_for_its_time_only() -> None:
    bundle = NamespaceSpec.of("tenant/ns-0000", 9).bundle_names()[4]
    result = world([1.0] * 9, events=[LoadJumps(at_s=100.0, until_s=200.0, bundles=(bundle,), factor=0.0)]).run(
        300.0, 10.0
    )
    load = result.series.load
    assert load[:10].tolist() == [load[0]] * 10
    assert load[10:20] == pytest.approx(load[0] * 8 / 9)
    assert load[20:].tolist() == [load[0]] * 10


def test_namespace_created_later_takes_the_next_workload_rows() -> None:
    events = [NewNamespace(100.0, NamespaceSpec.of("tenant/new", 2))]
    namespaces = namespaces_dealt(1, 3, [_broker(0), _broker(1), _broker(2)])
    made = world([1.0, 1.0, 1.0, 5.0, 7.0], namespaces=namespaces, events=events)
    result = made.run(200.0, 10.0)
    load = result.series.load / result.series.load[0] * 3
    assert load[:10] == pytest.approx(3.0)
    assert load[10:] == pytest.approx(15.0)
    assert result.placements == 2
    assert list(violations(made)) == []


def test_world_may_start_without_bundles() -> None:
    events = [NewNamespace(100.0, NamespaceSpec.of("tenant/new", 2))]
    made = world([5.0, 7.0], namespaces=[], events=events)
    result = made.run(200.0, 10.0)
    assert result.series.load[:10].tolist() == [0.0] * 10
    assert (result.series.load[10:] > 0).all()
    assert result.placements == 2


def test_bundles_above_a_limit_are_split_and_load_is_kept() -> None:
    settings = replace(
        EAGER,
        auto_bundle_split_enabled=True,
        namespace_bundle_max_bandwidth_mbytes=50,
        namespace_bundle_split_algorithm="flow_or_qps_equally_divide",
    )
    (namespace,) = namespaces_dealt(1, 3, [_broker(0), _broker(1), _broker(2)])
    contents = {0: random_topics(namespace.ranges()[0], 40, 1, 0)}
    workload = steady([1.0, 0.1, 0.1], load_of(60.0), contents=contents)
    made = world([], namespaces=[namespace], workload=workload, settings=settings)
    seen: list[str] = []
    result = made.run(600.0, 10.0, lambda _: seen.extend(violations(made)))
    assert not seen
    assert [split.reason for split in result.splits] == [SplitReason.BANDWIDTH]
    assert result.bundles == 3 + len(result.splits[0].boundaries)
    assert result.series.load == pytest.approx(result.series.load[0])
    assert result.series.lower_bound[-1] < result.series.lower_bound[0]
    assert {move.reason for move in result.moves} <= {
        SplitReason.SPLIT_PART_PLACED,
        ThresholdReason.BROKER_ABOVE_AVERAGE,
    }


def test_bundle_with_one_hot_topic_is_not_split() -> None:
    settings = replace(EAGER, auto_bundle_split_enabled=True, namespace_bundle_max_bandwidth_mbytes=50)
    (namespace,) = namespaces_dealt(1, 3, [_broker(0), _broker(1), _broker(2)])
    contents = {0: random_topics(namespace.ranges()[0], 10, 1, 0, lambda number: float(number == 3))}
    workload = steady([1.0, 0.1, 0.1], load_of(60.0), contents=contents)
    result = world([], namespaces=[namespace], workload=workload, settings=settings).run(600.0)
    assert result.splits == ()
    assert result.verdicts["split", SplitReason.ONE_HOT_TOPIC, False] > 0


def test_bundle_with_unknown_topics_is_not_split_by_topics() -> None:
    settings = replace(
        EAGER,
        auto_bundle_split_enabled=True,
        namespace_bundle_max_bandwidth_mbytes=50,
        namespace_bundle_split_algorithm="topic_count_equally_divide",
    )
    result = world([1.0, 0.1, 0.1], mib_per_s=60.0, settings=settings).run(300.0)
    assert result.splits == ()
    assert result.verdicts["split", SplitReason.OWNER_SILENT, False] > 0


def test_extensible_rule_splits_after_consecutive_rounds() -> None:
    settings = replace(
        EAGER,
        auto_bundle_split_enabled=True,
        namespace_bundle_max_bandwidth_mbytes=50,
        load_manager_class_name="ExtensibleLoadManagerImpl",
        shedding_strategy="TransferShedder",
        placement_strategy="LeastResourceUsageWithWeightExtensible",
    )
    brokers = [replace(spec, load_manager_class="ExtensibleLoadManagerImpl") for spec in brokers_named(3)]
    result = world([1.0, 0.1, 0.1], mib_per_s=40.0, brokers=brokers, settings=settings).run(600.0)
    assert [split.at_s for split in result.splits][:1] == [4 * 60.0]
    assert result.verdicts["split", SplitReason.TOO_FEW_SPLIT_HITS, False] >= 3


@pytest.mark.parametrize("fault", ReportFault)
def test_report_fault_ends_at_its_time(fault: ReportFault) -> None:
    made = world([1.0] * 9, events=[ReportsGoBad(at_s=0.0, broker=_broker(0), fault=fault, until_s=100.0)])
    made.run(1200.0)
    last = made._state.reports[made._state.registrations[_broker(0)]]
    rates = made._state.loads.load[[0, 3, 6]].sum(axis=0)
    assert last.load == pytest.approx(rates)
    assert last.usage[:, 1] == pytest.approx(made._state.fleet.capacity[0])


def test_report_faults_change_reports_only() -> None:
    found = {}
    for fault in (ReportFault.DECAYED, ReportFault.UNKNOWN_NIC, ReportFault.WRONG_CAPACITY, ReportFault.SUM_DIFFERS):
        made = world([1.0] * 9, events=[ReportsGoBad(at_s=10.0, broker=_broker(0), fault=fault, factor=4.0)])
        result = made.run(1200.0)
        found[fault] = made._state.reports[made._state.registrations[_broker(0)]]
        assert result.series.imbalance[1] == pytest.approx(1.0)
    assert found[ReportFault.DECAYED].bundle_load.max() == pytest.approx(1e-20)
    assert found[ReportFault.UNKNOWN_NIC].usage[3:, 1].tolist() == [0.0, 0.0]
    assert found[ReportFault.WRONG_CAPACITY].usage[0, 1] == pytest.approx(3200.0)
    assert found[ReportFault.SUM_DIFFERS].load == pytest.approx(
        4 * found[ReportFault.SUM_DIFFERS].bundle_load.sum(axis=0)
    )


def test_silent_broker_sends_no_reports_and_stale_one_repeats_itself() -> None:
    ramp = RampShape(bundles=("#0", "#3", "#6"), factor=3.0, from_s=100.0, until_s=100.0)
    reported = {}
    for fault in (ReportFault.SILENT, ReportFault.STALE):
        made = world([1.0] * 9, shapes=[ramp], events=[ReportsGoBad(at_s=10.0, broker=_broker(0), fault=fault)])
        made.run(1200.0)
        reported[fault] = made._state.reports[made._state.registrations[_broker(0)]]
    assert reported[ReportFault.SILENT].last_update_ms == round(START_S * 1000)
    assert reported[ReportFault.STALE].last_update_ms > round((START_S + 900) * 1000)
    assert reported[ReportFault.STALE].load.tolist() == reported[ReportFault.SILENT].load.tolist()


def test_reports_come_only_when_due() -> None:
    quiet = world([1.0] * 9).run(3600.0)
    ramped = world([1.0] * 9, shapes=[RampShape(factor=2.0, from_s=600.0, until_s=600.0)]).run(3600.0)
    assert int(quiet.series.reports.sum()) == 3 * (1 + 3)  # at first, and when the last one is more than 15 minutes old
    assert int(ramped.series.reports[11:13].sum()) == 3


def test_brokers_measure_at_different_times_when_steps_are_short() -> None:
    ramp = RampShape(factor=2.0, from_s=100.0, until_s=100.0)
    result = world([1.0] * 30, brokers=10, shapes=[ramp]).run(300.0, 5.0)
    coming = np.flatnonzero(result.series.reports[20:]) + 20
    assert len(coming) > 4
    assert result.series.t_s[coming].max() <= 100.0 + 60.0 + 5.0 + 5.0 + 5.0


def test_progress_is_reported_at_each_step() -> None:
    told: list[Progress] = []
    world([1.0] * 6).run(300.0, 60.0, told.append)
    assert [progress.t_s for progress in told] == [0.0, 60.0, 120.0, 180.0, 240.0]
    assert {progress.duration_s for progress in told} == {300.0}


def test_split_algorithm_that_cannot_choose_is_rejected() -> None:
    algorithm = "specified_positions_divide"
    settings = replace(EAGER, auto_bundle_split_enabled=True, namespace_bundle_split_algorithm=algorithm)
    with pytest.raises(ValueError, match="told where to cut"):
        world([1.0] * 6, settings=settings)


def test_bundles_are_never_merged() -> None:
    merging = replace(EAGER, auto_bundle_merge_enabled=True)
    results = [world([1.0] * 6, settings=settings).run(1200.0) for settings in (EAGER, merging)]
    assert results[0].digest() == results[1].digest()


def test_unknown_strategy_is_rejected_before_the_run() -> None:
    with pytest.raises(UnknownStrategyError, match="NoSuchShedder"):
        world([1.0] * 6, settings=replace(EAGER, shedding_strategy="NoSuchShedder"))


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (BrokerJoins(1.0, BrokerSpec(BrokerId("broker-0000:8080"))), "broker broker-0000:8080: there are two"),
        (NewNamespace(1.0, NamespaceSpec.of("tenant/ns-0000", 1)), "namespace tenant/ns-0000: there are two"),
    ],
)
def test_impossible_events_are_rejected_by_name(event: Event, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        world([1.0] * 6, events=[event])


@pytest.mark.parametrize(("duration_s", "step_s"), [(10.0, 0.0), (10.0, 60.0), (float("nan"), 60.0)])
def test_invalid_step_is_rejected(duration_s: float, step_s: float) -> None:
    with pytest.raises(ValueError, match="step_s"):
        world([1.0]).run(duration_s, step_s)


def test_split_parts_without_topics_share_load_by_width() -> None:
    settings = replace(EAGER, auto_bundle_split_enabled=True, namespace_bundle_max_bandwidth_mbytes=50)
    made = world([1.0, 0.1, 0.1], mib_per_s=40.0, settings=settings, rules=WorldRules(unload_split_bundles=False))
    result = made.run(100.0)
    table, loads = made._state.table, made._state.loads
    assert len(result.splits) == 1
    first = table.row_of(result.splits[0].bundle)
    assert first is None
    assert loads.load[[0, 3], 2].tolist() == pytest.approx([20.0 * MIB, 20.0 * MIB], rel=1e-6)
    assert loads.topics.tolist() == [5, 10, 10, 5]
    assert loads.sessions.tolist() == [10, 20, 20, 10]
    assert table.serving[[0, 3]].tolist() == [0, 0]


def test_topics_of_a_split_part_are_those_in_its_range() -> None:
    (namespace,) = namespaces_dealt(1, 2, [_broker(0), _broker(1)])
    own: BundleRange = namespace.ranges()[0]
    hashes = np.array([own.lower, own.lower + 5, own.upper - 1], dtype=np.int64)
    contents = {0: BundleTopics(hashes, np.array([0.5, 0.2, 0.3]))}
    workload: ShapedWorkload = steady([1.0, 1.0], load_of(10.0), contents=contents)
    made = world([], namespaces=[namespace], workload=workload)
    table, state = made._state.table, made._state
    rows = table.split(0, [own.lower + 5], state.stamp("test"), state.loads.load[0])
    state.split_up(rows)
    topics = table.find_topics(rows[1], state.loads.load[rows[1]])
    assert topics is not None
    assert [topic.hash for topic in topics] == hashes[1:].tolist()
    assert sum(topic.throughput for topic in topics) == pytest.approx(10.0 * MIB)
    assert state.loads.topics[rows].tolist() == [1, 2]
    kept, anew = table._current_order(), _Order.of(table._places, table.names)
    assert all(np.array_equal(getattr(kept, each.name), getattr(anew, each.name)) for each in fields(_Order))
    assert list(violations(made)) == []


def _split_world(settings: PlannerSettings, **more: object) -> World:
    return world([1.0, 0.1, 0.1], mib_per_s=60.0, settings=settings, **more)  # type: ignore[arg-type]  # passed on


_SPLITTING = replace(EAGER, auto_bundle_split_enabled=True, namespace_bundle_max_bandwidth_mbytes=50)


def test_reason_is_counted_when_nothing_is_split() -> None:
    reasons = {
        SplitReason.SPLITTING_DISABLED: _split_world(EAGER),
        SplitReason.SPLIT_NEEDS_TWO_BROKERS: _split_world(_SPLITTING, brokers=1),
        SplitReason.NOTHING_TO_SPLIT: world([0.1] * 3, settings=_SPLITTING),
    }
    for reason, made in reasons.items():
        result = made.run(180.0)
        assert result.verdicts["split", reason, False] > 0
        assert result.splits == ()


@pytest.mark.parametrize(
    ("load_manager", "splits"),
    [("", 0), ("SimpleLoadManagerImpl", 1), ("ExtensibleLoadManagerImpl", 1)],
    ids=["modular", "simple", "extensible"],
)
def test_hot_bundle_is_split_by_latest_rates(load_manager: str, splits: int) -> None:
    """The modular rule goes by long-term averages: over hours the bundle carries little."""
    settings = replace(_SPLITTING, load_manager_class_name=load_manager)
    brokers = [replace(spec, load_manager_class=load_manager) for spec in brokers_named(3)]
    (namespace,) = namespaces_dealt(1, 3, [spec.id for spec in brokers])
    hot = f"{namespace.name}/{namespace.ranges()[0]}"
    surge = LoadJumps(at_s=4000.0, until_s=4600.0, bundles=(hot,), factor=100.0)
    made = world([0.1] * 3, mib_per_s=3.0, brokers=brokers, namespaces=[namespace], settings=settings, events=[surge])
    assert [split.bundle for split in made.run(4600.0).splits[:1]] == [hot] * splits


def test_split_parts_are_placed_or_stay() -> None:
    result = world([1.0] * 3, mib_per_s=60.0, settings=_SPLITTING).run(600.0)
    assert result.verdicts["split", SplitReason.SPLIT_PART_STAYS, False] > 0
    result = _split_world(_SPLITTING).run(600.0, 10.0)
    placed = [move for move in result.moves if move.reason is SplitReason.SPLIT_PART_PLACED]
    assert placed


def test_split_parts_stay_when_churn_limits_are_exhausted() -> None:
    result = _split_world(replace(_SPLITTING, max_load_moved_per_cycle_percentage=0)).run(600.0, 10.0)
    assert result.splits
    assert result.verdicts["split", ChurnReason.MOVED_ENOUGH_THIS_ROUND, False] > 0
    assert [move for move in result.moves if move.reason is SplitReason.SPLIT_PART_PLACED] == []


def test_rejected_report_splits_nothing() -> None:
    bad = [ReportsGoBad(at_s=0.0, broker=_broker(number), fault=ReportFault.SUM_DIFFERS) for number in range(3)]
    result = _split_world(_SPLITTING, events=bad).run(180.0, 10.0)
    assert result.verdicts["split", SplitReason.REPORT_NOT_BELIEVED, False] > 0
    assert result.splits == ()


def test_moving_bundle_is_not_split() -> None:
    made = _split_world(_SPLITTING, rules=WorldRules(unload_s=50.0))
    _pin(made, 57.0, made._state.table.names[0], _broker(1))
    made._state.agenda.put(59.0, lambda: made._state.set_controls(Controls()))
    result = made.run(100.0, 5.0)
    assert result.moves == ()
    assert result.splits == ()
    assert result.verdicts["split", SplitReason.SPLIT_FAILED, False] == 1


def test_step_of_a_bundle_split_meanwhile_is_skipped() -> None:
    rules = WorldRules(max_concurrent_unloads=1, unload_s=100.0)
    made = _split_world(_SPLITTING, rules=rules)
    _pin(made, 20.0, made._state.table.names[1], _broker(0))
    result = made.run(300.0, 10.0)
    assert list(violations(made)) == []
    assert result.splits


def test_namespace_may_be_partly_owned() -> None:
    mixed = NamespaceSpec.of("tenant/ns", 4, [_broker(0), None, _broker(1), None])
    made = world([1.0] * 4, namespaces=[mixed], settings=QUIET)
    result = made.run(60.0, 10.0)
    assert result.placements == 2
    assert made._state.table.serving[[0, 2]].tolist() == [0, 1]
    assert list(violations(made)) == []


@pytest.mark.parametrize(
    "event", [BrokersStop(at_s=1.0, brokers=(_broker(3),)), BrokerSlows(at_s=1.0, broker=_broker(3), factor=2.0)]
)
def test_events_of_a_broker_before_it_joins_have_no_effect(event: Event) -> None:
    more: list[Event] = [
        event,
        ReportsGoBad(at_s=1.0, broker=_broker(3), fault=ReportFault.SILENT),
        BrokersCrash(at_s=1.0, brokers=(_broker(3),)),
    ]
    joins = BrokerJoins(50.0, BrokerSpec(_broker(3)))
    made = world(
        [1.0] * 9, settings=QUIET, events=[*more, BrokersRestart(at_s=2.0, brokers=(_broker(3),), down_s=1.0), joins]
    )
    result = made.run(100.0, 10.0)
    assert result.series.brokers[[0, -1]].tolist() == [3, 4]
    assert made._state.fleet.speed.tolist() == [1.0] * 4
    assert made._state.controls.draining == {}
