"""Pulsar's choices for the Uniform and the Avg shedder (rows F, G and C9)."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.builders import MIB, Load, broker, bundle, report, snapshot

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan, Unload
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State, choose_destination, plan_shedding
from loadmanager.core.strategies.shedding import shedding_strategy

UNIFORM = PlannerSettings(shedding_strategy="UniformLoadShedder")
AVG = PlannerSettings(shedding_strategy="AvgShedder", placement_strategy="AvgShedder", max_unload_percentage=0.5)


def shed(given: Snapshot, settings: PlannerSettings) -> dict[str, list[str]]:
    ids, names = given.brokers.ids, given.bundles.names
    result = shedding_strategy(settings)[1].find_bundles_for_unloading(given, {})
    return {ids[pick.broker]: [names[row] for row in pick.bundles] for pick in result.bundles}


def five_brokers() -> Snapshot:
    rates = (50_000, 60_000, 70_000, 10_000, 20_000)
    mib_per_s = (50, 60, 70, 80, 10)
    reports = {}
    for number in range(5):
        load: Load = (rates[number] / 5, 0, mib_per_s[number] * MIB / 5, 0)
        reports[f"broker{number}"] = report({bundle(100 * number + i): load for i in range(5)})
    return snapshot(reports)


@pytest.mark.parametrize(
    ("rate_percentage", "multiplier", "source"),
    [
        pytest.param(50, 0, 2, id="f3: by message rate"),
        pytest.param(0, 4, 3, id="f4 (derived): by throughput"),
        pytest.param(50, 4, 2, id="f5: the message rate comes first"),
        pytest.param(0, 0, None, id="derived: neither"),
        pytest.param(600, 8, None, id="derived: exactly at both thresholds"),
    ],
)
def test_f3_to_f5_most_loaded_broker_sheds(rate_percentage: float, multiplier: float, source: int | None) -> None:
    settings = replace(
        UNIFORM,
        max_unload_bundle_num_per_shedding=1,
        max_unload_percentage=0.5,
        msg_rate_difference_shedder_threshold=rate_percentage,
        msg_throughput_multiplier_difference_shedder_threshold=multiplier,
    )
    expected = {} if source is None else {f"broker{source}:8080": [bundle(100 * source)]}
    assert shed(five_brokers(), settings) == expected


NO_MINIMUM = replace(UNIFORM, min_unload_message=0, min_unload_message_throughput=0, max_unload_percentage=0.5)


def against_an_idle_broker(loads: list[float], settings: PlannerSettings = NO_MINIMUM) -> list[str]:
    """Shed bundles with these message rates, as source and as target; the other broker has no load."""
    halves: dict[str, Load] = {bundle(i): (rate / 2, rate / 2, 0, 0) for i, rate in enumerate(loads)}
    given = snapshot({"broker-1": report(halves), "broker-2": report()})
    return shed(given, settings).get("broker-1:8080", [])


def test_f6_idle_broker_counts_as_1_and_the_need_is_not_exceeded() -> None:
    assert against_an_idle_broker([100] * 5) == [bundle(0), bundle(1)]


def test_f_derived_need_may_equal_the_minimum() -> None:
    assert against_an_idle_broker([100] * 5, replace(NO_MINIMUM, min_unload_message=249))
    assert not against_an_idle_broker([100] * 5, replace(NO_MINIMUM, min_unload_message=250))


def test_f_derived_only_the_integer_part_of_a_load_reduces_the_need() -> None:
    """The need is (12 - 1) / 2 = 5.5, rounded to 5. Each 2.5 reduces it by 2, so 1 remains for another bundle."""
    assert against_an_idle_broker([2.5, 2.5, 2.5, 2.5, 1.0, 1.0]) == [bundle(0), bundle(1), bundle(4)]


def test_q10_idle_bundles_fit_into_any_need_as_in_pulsar() -> None:
    assert against_an_idle_broker([100, 100, 0, 0, 100]) == [bundle(0), bundle(2), bundle(3)]
    limit = replace(NO_MINIMUM, max_unload_bundle_num_per_shedding=2)
    limited = against_an_idle_broker([100, 0, 0, 100, 100], limit)
    assert limited == [bundle(0), bundle(1)]


def unloads(plan: Plan) -> list[Unload]:
    return [step for step in plan.steps if isinstance(step, Unload)]


def rounds(given: Snapshot, settings: PlannerSettings, number: int) -> tuple[list[list[Unload]], State]:
    """Return the unloads of `number` rounds on the same load, and the state after JSON."""
    state: State = {}
    found = []
    for _ in range(number):
        plan, state = plan_shedding(given, settings, state, np.random.default_rng(0))
        state = json.loads(json.dumps(state))
        found.append(unloads(plan))
    return found, state


def test_g2_derived_small_difference_takes_eight_rounds() -> None:
    loads: dict[str, Load] = {bundle(i): (450, 450, 0, 0) for i in range(11)}
    given = snapshot(
        {
            "broker1": report(loads, cpu=60, load=(1e4, 1e4, 0, 0)),
            "broker2": report(cpu=40, load=(1e3, 1e3, 0, 0)),
        }
    )
    found, _ = rounds(given, AVG, 9)
    assert [len(each) for each in found] == [0] * 7 + [10, 0]


def test_g3_derived_each_pair_evens_out_by_itself() -> None:
    loads: list[dict[str, Load]] = [{bundle(1000 * n + i): (450, 450, 0, 0) for i in range(11)} for n in range(2)]
    given = snapshot(
        {
            "broker1": report(loads[0], cpu=90, load=(1e4, 1e4, 0, 0)),
            "broker2": report(cpu=10, load=(1e3, 1e3, 0, 0)),
            "broker3": report(loads[1], cpu=80, load=(5e3, 5e3, 0, 0)),
            "broker4": report(cpu=20, load=(1e3, 1e3, 0, 0)),
        }
    )
    (_, second), _ = rounds(given, AVG, 2)
    moves = [(str(step.source.broker), step.destination) for step in second]
    assert moves == [("broker1:8080", broker("broker2"))] * 10 + [("broker3:8080", broker("broker4"))] * 4


def three(*names: str) -> Snapshot:
    return snapshot({name: report() for name in names or ("1", "2", "3")})


def test_q11_unknown_bundles_are_drawn_individually_unlike_in_pulsar() -> None:
    state: State = {}
    chosen: list[BrokerId] = []
    for i in range(30):
        found, _, state = choose_destination(three(), bundle(i), None, AVG, state, np.random.default_rng(i))
        assert found is not None
        chosen.append(found.broker)
    assert set(chosen) == {"1:8080", "2:8080", "3:8080"}
