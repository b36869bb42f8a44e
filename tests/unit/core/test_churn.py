from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from support.builders import broker, bundle, report, snapshot

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import ChurnReason, OwnershipReason, PlacementReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn
from loadmanager.core.planning.churn import KEY, MOST_MOVES, MoveMemory, State
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.repeated_moves import PastMove
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason

A, B, C = broker("a"), broker("b"), broker("c")
SETTINGS = PlannerSettings()
NOW_S = 1_000_000.0
MINUTE_S = 60.0


def of_loads(*loads: float) -> Snapshot:
    """Broker a with bundles of so many bytes/s each, and b and c without any."""
    carried = {bundle(i): (0.0, 0.0, each, 0.0) for i, each in enumerate(loads)}
    return snapshot({"a": report(carried), "b": report(), "c": report()}, taken_at_s=NOW_S)


def unload(number: int, source: Registration = A, destination: Registration | None = B) -> Unload:
    return Unload(bundle(number), source, destination, OverloadReason.BROKER_OVERLOADED)


def a_plan(*steps: Unload | Assign) -> Plan:
    verdicts = [Verdict(A.broker, OverloadReason.BROKER_OVERLOADED, acted=True)]
    verdicts += [Verdict(step.bundle, PlacementReason.DECIDED_BEFORE, acted=True) for step in steps]
    return Plan(1, NOW_S, steps, tuple(verdicts))


def limited(
    plan: Plan,
    cluster: Snapshot,
    state: State | None = None,
    **settings: Any,  # noqa: ANN401 - whatever a setting may be
) -> tuple[Sequence[str], dict[str, Verdict]]:
    """The bundles that still move, and the verdicts about those that do not."""
    result, _ = churn.limit(plan, cluster, PlannerSettings(**settings), state or {})
    return [step.bundle for step in result.steps], {v.subject: v for v in result.verdicts if not v.acted}


def moved(
    state: State,
    number: int,
    source: Registration,
    destination: Registration | None,
    *,
    at_s: float = NOW_S,
    share: float = 0.1,
    is_own: bool = True,
    settings: PlannerSettings = SETTINGS,
) -> State:
    return churn.noted(state, bundle(number), source, destination, share, settings, at_s=at_s, is_own=is_own)[0]


def test_round_skips_a_bundle_above_its_budget_and_moves_smaller_ones() -> None:
    moving, refused = limited(
        a_plan(unload(0), unload(1), unload(2)), of_loads(40, 30, 5, 25), max_load_moved_per_cycle_percentage=50
    )
    assert moving == [bundle(0), bundle(2)]
    assert refused[bundle(1)].sentence() == (
        "No move because its 30 % of all load plus the 40 % that this round already moves exceed"
        " loadBalancerMaxLoadMovedPerCyclePercentage 50 %"
    )


def test_single_step_is_refused_for_the_same_reason_as_in_a_plan() -> None:
    state = moved({}, 0, B, A, at_s=NOW_S - 10 * MINUTE_S)
    refusal = churn.find_excess(unload(0, A, B), of_loads(1, 9), SETTINGS, state)
    in_plan = limited(a_plan(unload(0, A, B)), of_loads(1, 9), state)[1][bundle(0)]
    assert refusal is not None
    assert refusal.sentence() == in_plan.sentence()
    assert churn.find_excess(unload(0, A, C), of_loads(1, 9), SETTINGS, state) is None


EXCHANGE, ASSIGNMENT = a_plan(unload(1, A, B), unload(0, A, B)), a_plan(Assign(bundle(0), A, OwnershipReason.LOOKUP))
AFTER_RESTART = Registration(BrokerId("b:8080"), 99)


@pytest.mark.parametrize(
    ("plan", "loads", "state", "per_cycle", "moving"),
    [
        pytest.param(a_plan(unload(0), unload(1)), (80, 10, 10), {}, 50, [0], id="heavier than the limit, first"),
        pytest.param(a_plan(unload(0), unload(1)), (10, 80, 10), {}, 50, [0], id="heavier than the limit, second"),
        pytest.param(a_plan(unload(0), unload(1)), (80, 10, 10), {}, 0, [], id="limit of nothing"),
        pytest.param(a_plan(unload(0)), (40, 60), moved({}, 8, A, B, share=1.0, is_own=False), 50, [0], id="operator"),
        pytest.param(a_plan(unload(0, A, B)), (1, 1, 9), moved({}, 0, B, A, is_own=False), 50, [], id="back"),
        pytest.param(a_plan(unload(0, A, B)), (1, 1, 9), moved({}, 0, AFTER_RESTART, A), 50, [0], id="restarted"),
        pytest.param(EXCHANGE, (40, 10, 50), {}, 30, [1], id="one direction is no exchange"),
        pytest.param(ASSIGNMENT, (1,), {}, 0, [0], id="assignment"),
        pytest.param(a_plan(unload(0)), (0, 0), {}, 0, [0], id="no load"),
    ],
)
def test_limits(plan: Plan, loads: tuple[float, ...], state: State, per_cycle: float, moving: list[int]) -> None:
    left, _ = limited(plan, of_loads(*loads), state, max_load_moved_per_cycle_percentage=per_cycle)
    assert left == [bundle(number) for number in moving]


@pytest.mark.parametrize(("per_cycle", "acted"), [(50, {A.broker, bundle(0)}), (0, set[str]())])
def test_refused_steps_lose_their_verdicts(per_cycle: float, acted: set[str]) -> None:
    settings = PlannerSettings(max_load_moved_per_cycle_percentage=per_cycle)
    plan, _ = churn.limit(a_plan(unload(0), unload(1)), of_loads(40, 30, 30), settings, {})
    assert {verdict.subject for verdict in plan.verdicts if verdict.acted} == acted


def test_broker_whose_steps_are_all_refused_says_the_first_refusal() -> None:
    state = moved({}, 8, A, B, at_s=NOW_S - 50 * MINUTE_S, share=0.95)
    _, refused = limited(a_plan(unload(0), unload(1)), of_loads(40, 30, 30), state)
    assert refused[A.broker].sentence() == (
        f"No move because limits keep all 2 bundles chosen. {bundle(0)}: No move because its 40 % of all load plus the"
        " 95 % moved within the hour exceed loadBalancerMaxLoadMovedPerHourPercentage 100 %; there is room for it in"
        " 600 s"
    )


def test_hourly_limit_counts_moves_of_the_last_hour_only() -> None:
    state = moved({}, 7, A, B, at_s=NOW_S - 61 * MINUTE_S, share=0.9)
    state = moved(state, 8, A, B, at_s=NOW_S - 59 * MINUTE_S, share=0.05)
    state = moved(state, 9, A, B, at_s=NOW_S - 50 * MINUTE_S, share=0.65)
    moving, refused = limited(a_plan(unload(0), unload(1)), of_loads(40, 20, 40), state)
    assert moving == [bundle(1)]
    assert refused[bundle(0)].sentence() == (
        "No move because its 40 % of all load plus the 70 % moved within the hour exceed"
        " loadBalancerMaxLoadMovedPerHourPercentage 100 %; there is room for it in 600 s"
    )


def test_moves_in_progress_count_against_the_hourly_limit() -> None:
    plan, cluster = a_plan(unload(0), unload(1)), of_loads(40, 20, 40)
    result, _ = churn.limit(plan, cluster, SETTINGS, {}, in_progress=0.7)
    assert [step.bundle for step in result.steps] == [bundle(1)]
    assert [v.verdict for v in result.verdicts if not v.acted] == [ChurnReason.MOVED_ENOUGH_THIS_HOUR]
    assert churn.find_excess(unload(1), cluster, SETTINGS, {}, in_progress=0.7) is None
    refusal = churn.find_excess(unload(0), cluster, SETTINGS, {}, in_progress=0.7)
    assert refusal is not None
    assert refusal.verdict is ChurnReason.MOVED_ENOUGH_THIS_HOUR


@pytest.mark.parametrize(
    ("namespace", "is_counted"), [("t/deleted", False), ("t/idle", False), ("t/busy", True), ("tenant/ns", True)]
)
def test_moves_of_idle_namespaces_use_no_budget(
    namespace: str,
    is_counted: bool,  # noqa: FBT001 - of the table
) -> None:
    carried = {bundle(0): 40.0, bundle(1): 46.0, bundle(0, "t/idle"): 4.0, bundle(0, "t/busy"): 10.0}
    loads = {name: (0.0, 0.0, each, 0.0) for name, each in carried.items()}
    cluster = snapshot({"a": report(loads), "b": report()}, taken_at_s=NOW_S)
    state, _ = churn.noted({}, bundle(0, namespace), A, B, 0.7, SETTINGS, at_s=NOW_S, is_own=True)
    assert limited(a_plan(unload(0)), cluster, state)[0] == ([] if is_counted else [bundle(0)])
    often = MoveMemory(tuple(PastMove(NOW_S, bundle(0, namespace), "a", 1, 0.09, is_own=True) for _ in range(20)))
    counted = 0.0 if namespace == "t/deleted" else 1.8
    assert often.moved_share(cluster, NOW_S) == pytest.approx(counted), "that of a bundle that moves often is its own"


def test_standing_limits_are_known_before_a_round() -> None:
    cluster = of_loads(40, 60)
    assert churn.standing_limits({}, cluster, SETTINGS, NOW_S, 1.0) == [], "what is under way ends by itself"
    state = moved(moved({}, 0, A, B, at_s=NOW_S - 600, share=0.4), 1, A, B, at_s=NOW_S - 60, share=0.5)
    assert churn.standing_limits(state, cluster, SETTINGS, NOW_S, 0.0) == []
    (hour,) = churn.standing_limits(state, cluster, SETTINGS, NOW_S, 0.1)
    assert (hour.reason, hour.until_s) == (ChurnReason.MOVED_ENOUGH_THIS_HOUR, NOW_S + 3000)
    stopped = MoveMemory(stopped_until_s=NOW_S + 5).into({})
    (breaker,) = churn.standing_limits(stopped, cluster, SETTINGS, NOW_S, 0.0)
    assert (breaker.reason, breaker.until_s) == (ChurnReason.SHEDDING_STOPPED, NOW_S + 5)


def test_bundle_does_not_return_within_the_cool_down() -> None:
    state = moved({}, 0, B, A, at_s=NOW_S - 10 * MINUTE_S)
    moving, refused = limited(a_plan(unload(0, A, B)), of_loads(1, 1, 9), state)
    assert moving == []
    assert refused[bundle(0)].sentence() == (
        "No move because it would return to b:8080, which it left 600 s ago (loadBalancerReturnCoolDownMinutes 60)"
    )
    assert limited(a_plan(unload(0, A, C)), of_loads(1, 1, 9), state)[0] == [bundle(0)], "it may go elsewhere"
    assert limited(a_plan(unload(1, A, B)), of_loads(1, 1, 9), state)[0] == [bundle(1)], "others may go there"
    assert limited(a_plan(unload(0, A, None)), of_loads(1, 1, 9), state)[0] == [bundle(0)]
    later = moved({}, 0, B, A, at_s=NOW_S - 61 * MINUTE_S)
    assert limited(a_plan(unload(0, A, B)), of_loads(1, 1, 9), later)[0] == [bundle(0)]


def test_exchange_with_a_refused_step_is_dropped_as_a_whole() -> None:
    plan = a_plan(unload(3, A, C), unload(0, A, B), unload(1, B, A), unload(2, A, C))
    moving, refused = limited(plan, of_loads(40, 10, 10, 10, 30), max_load_moved_per_cycle_percentage=40)
    assert moving == [bundle(3), bundle(2)]
    assert refused[bundle(1)].sentence() == f"No move because it is part of an exchange, and {bundle(0)} stays"


def test_moved_back_is_the_load_that_shedding_returned_within_the_window() -> None:
    state = moved({}, 0, A, B, at_s=NOW_S - 50 * MINUTE_S)
    assert MoveMemory.of(state).moved_back(NOW_S) == 0
    state = moved(state, 1, C, B, at_s=NOW_S - 45 * MINUTE_S)
    state = moved(state, 0, B, A, at_s=NOW_S - 40 * MINUTE_S, share=0.2)
    state = moved(state, 1, B, A, at_s=NOW_S - 39 * MINUTE_S)
    assert MoveMemory.of(state).moved_back(NOW_S) == 0.2
    assert MoveMemory.of(state).moved_back(NOW_S + 199 * MINUTE_S) == 0.2
    assert MoveMemory.of(state).moved_back(NOW_S + 200 * MINUTE_S) == 0


def test_bundle_returned_by_an_operator_does_not_count_as_moved_back() -> None:
    state = moved(moved({}, 0, A, B), 0, B, A, is_own=False)
    assert MoveMemory.of(state).moved_back(NOW_S) == 0


def test_bundle_that_keeps_returning_is_frozen_for_an_hour() -> None:
    settings = PlannerSettings(return_cool_down_minutes=0.1)
    state = moved({}, 0, A, B, at_s=NOW_S - 30, share=0.01)
    state = moved(state, 0, B, A, at_s=NOW_S - 20, share=0.01)
    state, said = churn.noted(state, bundle(0), A, B, 0.01, settings, at_s=NOW_S - 10, is_own=True)
    assert [(v.subject, v.sentence()) for v in said] == [
        (bundle(0), "Not shed for an hour: it was returned to a former owner 2 times within four hours")
    ]
    moving, refused = limited(a_plan(unload(0), unload(1)), of_loads(1, 1, 98), state)
    assert moving == [bundle(1)]
    assert refused[bundle(0)].sentence() == (
        "No move for another 3590 s because it returned to former owners 2 times within four hours"
    )
    assert limited(a_plan(unload(0, A, C)), of_loads(1, 1, 98), churn.lifted(state, bundle(0)))[0] == [bundle(0)]
    assert limited(a_plan(unload(0, A, C)), of_loads(1, 1, 98), churn.lifted(state, bundle(1)))[0] == []
    assert limited(a_plan(unload(0, A, C)), of_loads(1, 1, 98), churn.lifted(state))[0] == [bundle(0)]


def test_breaker_trips_on_returned_load_until_it_ends_or_is_lifted() -> None:
    state = moved({}, 0, A, B, at_s=NOW_S - 20, share=0.3)
    state, (verdict,) = churn.noted(state, bundle(0), B, A, 0.3, SETTINGS, at_s=NOW_S - 10, is_own=True)
    assert (verdict.subject, verdict.acted) == ("cluster", True)
    assert verdict.sentence() == (
        "Nothing is shed for half an hour: of all load 30 % (limit 20 %) were returned to former owners within four"
        " hours, and 30 % (limit 50 %) moved again within two hours"
    )
    moving, refused = limited(a_plan(unload(1), unload(2)), of_loads(1, 1, 1, 97), state)
    assert moving == []
    assert refused[bundle(1)].sentence() == (
        "No move because shedding is stopped for another 1790 s: of all load it returned 30 % (limit 20 %)"
        " to former owners, and moved 30 % (limit 50 %) again within two hours"
    )
    assert limited(a_plan(unload(1)), of_loads(1, 1, 98), churn.lifted(state))[0] == [bundle(1)]
    past = moved(moved({}, 0, A, B, at_s=NOW_S - 3000), 0, B, A, at_s=NOW_S - 1801, share=0.5)
    assert limited(a_plan(unload(1)), of_loads(1, 1, 98), past)[0] == [bundle(1)]


def test_breaker_trips_on_load_moved_again() -> None:
    state = moved({}, 0, A, B, at_s=NOW_S - 7000, share=0.6)
    state = moved(state, 1, A, B, at_s=NOW_S - 6000, share=0.6, is_own=False)
    state, said = churn.noted(state, bundle(1), B, C, 0.6, SETTINGS, at_s=NOW_S - 5000, is_own=True)
    assert said == []  # it was an operator who had moved it
    state, (verdict,) = churn.noted(state, bundle(0), B, C, 0.6, SETTINGS, at_s=NOW_S - 10, is_own=True)
    assert (verdict.subject, verdict.verdict) == ("cluster", ChurnReason.SHEDDING_STOPPED)
    assert (verdict.why["again_percent"], verdict.why["back_percent"]) == (60, 0)
    assert limited(a_plan(unload(2)), of_loads(1, 1, 98), state)[0] == []
    memory = MoveMemory.of(state)
    assert (memory.moved_again(NOW_S), memory.moved_back(NOW_S)) == (0.6, 0.0)
    assert memory.moved_again(NOW_S + 7190) == 0.0


def test_disabled_breaker_neither_trips_nor_stays_tripped() -> None:
    off = PlannerSettings(return_cool_down_minutes=0)
    state = moved({}, 0, A, B, at_s=NOW_S - 20, share=0.3, settings=off)
    state, verdicts = churn.noted(state, bundle(0), B, A, 0.3, off, at_s=NOW_S - 10, is_own=True)
    assert (verdicts, MoveMemory.of(state).stopped_until_s) == ([], 0.0)
    stopped = MoveMemory(frozen_until_s={bundle(1): NOW_S + 5}, stopped_until_s=NOW_S + 5).into({})
    assert limited(a_plan(unload(1)), of_loads(1, 1, 98), stopped, return_cool_down_minutes=0)[0] == [bundle(1)]
    assert churn.standing_limits(stopped, of_loads(1, 1), off, NOW_S, 0.0) == []


def test_return_after_the_default_cool_down_counts_and_freezes_in_the_end() -> None:
    state = moved({}, 0, A, B, at_s=NOW_S, share=0.01)
    after_s = (SETTINGS.return_cool_down_minutes + 1) * MINUTE_S
    state = moved(state, 0, B, A, at_s=NOW_S + after_s, share=0.01)
    assert MoveMemory.of(state).moved_back(NOW_S + after_s) == 0.01
    _, (verdict,) = churn.noted(state, bundle(0), A, B, 0.01, SETTINGS, at_s=NOW_S + 2 * after_s, is_own=True)
    assert (verdict.subject, verdict.verdict) == (bundle(0), ChurnReason.KEEPS_RETURNING)


def test_empty_plan_is_unchanged_and_outdated_moves_are_dropped() -> None:
    state = moved({"AvgShedder": {"x": 1}}, 0, A, B, at_s=NOW_S - 4 * 3600)
    plan = a_plan()
    result, after = churn.limit(plan, of_loads(1), SETTINGS, state)
    assert result is plan
    assert after["AvgShedder"] == {"x": 1}
    assert MoveMemory.of(after) == MoveMemory()


def test_the_memory_survives_as_json_in_the_store() -> None:
    state = moved(moved({}, 0, A, B, at_s=NOW_S - 20, share=0.5), 0, B, A, share=0.5)
    stored = orjson.loads(orjson.dumps(as_json(state)))
    assert MoveMemory.of(stored) == MoveMemory.of(state)
    assert MoveMemory.of(stored).stopped_until_s == NOW_S + 30 * MINUTE_S


@pytest.mark.parametrize(
    "content", [None, [], {"moves": 3}, {"moves": [[1, 2]]}, {"frozenUntilS": []}, {"stoppedUntilS": "soon"}]
)
def test_unreadable_memory_is_empty(content: object) -> None:
    assert MoveMemory.of({KEY: {"memory": content}}) == MoveMemory()


def test_memory_at_its_maximum_keeps_the_newest_moves() -> None:
    memory = MoveMemory(tuple(PastMove(NOW_S, bundle(i), "a:8080", 1, 0.0, is_own=True) for i in range(MOST_MOVES)))
    state = moved(memory.into({}), MOST_MOVES, A, B)
    kept = MoveMemory.of(state).at(NOW_S, SETTINGS).moves
    assert len(kept) == MOST_MOVES
    assert kept[-1].bundle == bundle(MOST_MOVES)


def test_restored_times_in_the_future_are_cut_to_now() -> None:
    day_s = 86_400.0
    noted = [[at_s, bundle(1), "a", 1, 0.5, True, None, None] for at_s in (NOW_S - 1, NOW_S + day_s)]
    frozen = {bundle(1): NOW_S + day_s, bundle(2): NOW_S + 5}
    stored = {"moves": noted, "frozenUntilS": frozen, "stoppedUntilS": NOW_S + day_s}
    memory = MoveMemory.of(churn.restored({}, {KEY: {"memory": stored}}, NOW_S))
    assert [move.at_s for move in memory.moves] == [NOW_S - 1, NOW_S]
    frozen_s = NOW_S + churn.FREEZE_S
    assert memory.frozen_until_s == {bundle(1): frozen_s, bundle(2): NOW_S + 5}
    assert memory.stopped_until_s == NOW_S + churn.STOP_S


def test_restore_merges_the_stored_memory_with_the_own_one() -> None:
    own = moved({}, 1, A, B, at_s=NOW_S)
    assert churn.restored(own, {}, NOW_S) == own
    stored = as_json(moved({}, 2, A, B, at_s=NOW_S - 5))
    stored[KEY]["memory"]["frozenUntilS"] = {bundle(3): NOW_S + 5}
    memory = MoveMemory.of(churn.restored(own, stored, NOW_S))
    assert [move.bundle for move in memory.moves] == [bundle(2), bundle(1)]
    assert memory.frozen_until_s == {bundle(3): NOW_S + 5}
    twice = churn.restored(memory.into({}), as_json(own), NOW_S)
    assert MoveMemory.of(twice).moves == memory.moves


def test_departure_is_found_by_bundle_registration_and_time() -> None:
    memory = MoveMemory((PastMove(NOW_S, bundle(0), A.broker, A.incarnation, 0.1, is_own=True),))
    assert memory.find_departure(bundle(0), A, NOW_S - 1.0) == NOW_S
    assert memory.find_departure(bundle(0), A, NOW_S) is None
    assert memory.find_departure(bundle(1), A, NOW_S - 1.0) is None
    assert memory.find_departure(bundle(0), Registration(A.broker, A.incarnation + 1), NOW_S - 1.0) is None
