from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from support.scenarios import a_file, a_scenario

from loadmanager.errors import ConfigurationError, ScenarioError
from loadmanager.history.synthetic_fleet import Series
from loadmanager.lab.simulate.scenario import Scenario, parse_as
from loadmanager.lab.simulate.scenario_run import run, settings_for
from loadmanager.lab.simulate.world_builder import world_of

LOAD_JUMPS = {"kind": "loadJumps", "atS": 1, "untilS": 2, "bundles": ["t/ns#0"], "factor": 2}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"brokrs": 1}, "brokrs: unknown key; did you mean 'brokers'?"),
        ({"events": [{**LOAD_JUMPS, "factr": 2}]}, "events.0.factr: unknown key; did you mean 'factor'?"),
        ({"events": [{"kind": "loadJump", "atS": 1}]}, "events.0: .*loadJumps"),
        ({"durationS": -1}, r"durationS: Input should be greater than 0 \(got -1\)"),
        ({"durationS": 1, "stepS": 2}, "stepS: expected at most durationS"),
        ({"durationS": 1e7, "stepS": 0.1}, "durationS / stepS: expected at most"),
        ({"namespaces": []}, "expected namespaces or traces"),
        ({"namespaces": [{"name": "ns", "bundles": 1}]}, "namespaces.0.name: .*tenant/namespace"),
        ({"namespaces": [{"name": "t/ns", "count": 1000, "bundles": 1500}]}, "at most 1000000 bundles, got 1500000"),
        ({"brokers": [{"count": 9000}, {"count": 9000}]}, "at most 10000 brokers"),
        ({"brokers": [{"id": "b", "count": 1}]}, "brokers.0.id: .*host:port"),
        ({"brokers": [{"id": "b:1", "count": 2}]}, "brokers.0: an id goes with count 1"),
        ({"expect": {"said": [{"reason": "limit_unknwn"}]}}, "reason 'limit_unknwn', did you mean limit_unknown?"),
        ({"expect": {"said": [{"reason": 1}]}}, "expect.said.0.reason"),
        ({"traces": {"bundles": 1, "files": ["a"], "directory": "b"}}, "traces: expected either files or directory"),
        (
            {"shapes": [{"kind": "bursts", "factor": 2, "lastsS": 61, "everyS": 60}]},
            "shapes.0: lastsS: expected at most everyS",
        ),
        (
            {"shapes": [{"kind": "drift", "factor": 0.5, "periodS": 60}]},
            "shapes.0.factor: Input should be greater than or equal to 1",
        ),
        ({"shapes": [{"kind": "drift", "factor": 2}]}, "shapes.0.periodS: Field required"),
        (
            {"shapes": [{"kind": "diurnal", "amplitude": 0.5, "phases": "zones"}]},
            "shapes.0.phases: Input should be 'together', 'namespaces' or 'spread'",
        ),
        (
            {"namespaces": [{"name": "t/ns", "bundles": 4, "weights": {"kind": "zipf", "exponent": 0}}]},
            "namespaces.0.weights.exponent: Input should be greater than 0",
        ),
        ({"brokers": [{"count": 1, "speed": 0}]}, "brokers.0.speed: Input should be greater than 0"),
        (
            {"brokers": [{"count": 1, "capacity": {"cpuCores": 0}}]},
            "brokers.0.capacity.cpuCores: Input should be greater than 0",
        ),
        ({"name": "A name"}, "name: String should match pattern"),
    ],
)
def test_bad_file_is_refused_with_key_and_allowed_values(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint) as refused:
        parse_as(Scenario, a_file(**changes), "my.yaml")
    assert str(refused.value).startswith("my.yaml: ")
    assert "\n" not in str(refused.value)


def test_scenario_must_be_a_mapping() -> None:
    with pytest.raises(
        ScenarioError, match=re.escape("my.yaml: expected a mapping with the keys of a scenario, got []")
    ):
        parse_as(Scenario, [], "my.yaml")


def test_unknown_keys_are_named_before_other_errors() -> None:
    changes = {"brokrs": 1, "durationS": -1, "stepS": -1, "seed": -1, "name": ""}
    with pytest.raises(ScenarioError, match=r"^my\.yaml: brokrs: unknown key.*; and 2 more$"):
        parse_as(Scenario, a_file(**changes), "my.yaml")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"events": [{**LOAD_JUMPS, "bundles": ["t/ns#4"]}]}, "no bundle 't/ns#4'; expected tenant/namespace#0"),
        ({"events": [{**LOAD_JUMPS, "bundles": ["t/other#*"]}]}, "no bundle 't/other#*'"),
        ({"events": [{"kind": "brokersCrash", "atS": 1, "brokers": ["x:1"]}]}, "events.0: there is no broker 'x:1'"),
        (
            {"events": [{"kind": "reportsGoBad", "atS": 1, "broker": "x:1", "fault": "silent"}]},
            "events.0: there is no broker 'x:1'; there are broker-0000:8080, broker-0001:8080",
        ),
        ({"expect": {"movesTo": [{"broker": "x:1", "atMost": 0}]}}, "expect.moves_to: there is no broker 'x:1'"),
        ({"namespaces": [{"name": "t/ns", "bundles": 2, "owners": ["x:1"]}]}, "owners: no broker 'x:1'"),
        (
            {"namespaces": [{"name": "t/ns", "bundles": 2, "weights": {"kind": "steady", "weights": [1, 2, 3]}}]},
            "weights: expected at most 2, got 3",
        ),
        ({"namespaces": [{"name": "t/ns", "bundles": 2}] * 2}, "t/ns"),
        ({"traces": {"bundles": 1}}, "no series was read"),
    ],
)
def test_contradictory_scenario_is_rejected(changes: dict[str, Any], complaint: str) -> None:
    scenario = a_scenario(**changes)
    with pytest.raises(ScenarioError, match=re.escape(complaint)):
        world_of(scenario, settings_for(scenario, "", {}))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"loadBalancerShedingEnabled": True}, "loadBalancerSheddingEnabled"),
        ({"loadBalancerHistoryResourcePercentage": 2}, "loadBalancerHistoryResourcePercentage"),
    ],
)
def test_invalid_settings_are_rejected_by_key(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"scenario a-scenario: settings.*{complaint}"):
        run(a_scenario(settings=settings))


def test_series_of_zeros_is_rejected() -> None:
    scenario = a_scenario(traces={"bundles": 2})
    with pytest.raises(ScenarioError, match="series 'c' is 0 throughout"):
        world_of(scenario, settings_for(scenario, "", {}), [Series("c", "c.csv", 0, 5_000, np.zeros(3))])


@pytest.mark.parametrize(
    ("strategy", "shedding", "placement"),
    [
        ("", "ThresholdShedder", "LeastLongTermMessageRate"),
        ("OverloadShedder", "OverloadShedder", "LeastLongTermMessageRate"),
        ("RoundRobinBrokerSelector", "ThresholdShedder", "RoundRobinBrokerSelector"),
        ("AvgShedder", "AvgShedder", "AvgShedder"),
        ("TransferShedder+LeastResourceUsageWithWeight", "TransferShedder", "LeastResourceUsageWithWeight"),
        ("org.apache.pulsar.broker.loadbalance.impl.OverloadShedder", "OverloadShedder", "LeastLongTermMessageRate"),
    ],
)
def test_strategy_name_sets_all_keys_it_needs(strategy: str, shedding: str, placement: str) -> None:
    settings = settings_for(a_scenario(), strategy, {})
    assert settings.planner_settings().shedding_strategy.endswith(shedding)
    assert settings.planner_settings().placement_strategy == placement


def test_half_of_a_paired_strategy_is_replaced_with_the_other_half() -> None:
    bound = dict.fromkeys(("loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy"), "AvgShedder")
    settings = settings_for(a_scenario(settings=bound), "UniformLoadShedder", {})
    assert settings.planner_settings().placement_strategy == "LeastLongTermMessageRate"


def test_unknown_strategy_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="--strategy 'Foo': expected one of OverloadShedder"):
        settings_for(a_scenario(), "Foo", {})


def test_simple_load_manager_is_a_strategy() -> None:
    assert (
        settings_for(a_scenario(), "SimpleLoadManagerImpl", {}).planner_settings().load_manager_class_name
        == "SimpleLoadManagerImpl"
    )


def test_overrides_take_precedence_over_scenario_settings() -> None:
    scenario = a_scenario(settings={"maxUnloadPercentage": 0.1})
    assert settings_for(scenario, "", {"maxUnloadPercentage": "0.4"}).planner_settings().max_unload_percentage == 0.4


def relative_load(**changes: Any) -> list[float]:  # noqa: ANN401 - whatever a key may hold
    """All load of each step of 10 s, by what it is with nothing in `changes`, of two namespaces with four bundles."""
    fixed = {"stepS": 10, "namespaces": [{"name": "t/ns", "count": 2, "bundles": 4, "owners": "dealt"}]}
    changed, still = run(a_scenario(**{**fixed, **changes})), run(a_scenario(**fixed))
    factors: list[float] = (changed.result.series.load / still.result.series.load).tolist()
    return factors


def test_all_bundles_of_a_namespace_can_be_named_at_once() -> None:
    ramp = {"kind": "ramp", "factor": 3, "fromS": 100, "untilS": 100, "bundles": ["t/ns-0001#*"]}
    assert set(relative_load(shapes=[ramp])) == {1.0, 2.0}
    jump = {**LOAD_JUMPS, "atS": 100, "untilS": 200, "bundles": ["t/ns-0000#*", "t/ns-0001#0"]}
    assert max(relative_load(events=[jump])) == pytest.approx(1 + 5 / 8)


def test_diurnal_phase_can_be_per_namespace() -> None:
    one = [{"name": "t/ns", "bundles": 8, "owners": "dealt"}]
    shape = {"kind": "diurnal", "amplitude": 0.5, "periodS": 600, "phases": "namespaces"}
    together = relative_load(namespaces=one, shapes=[shape])
    assert (min(together), max(together)) == pytest.approx((0.5, 1.5), abs=0.01)
    apart = relative_load(shapes=[shape])
    assert max(apart) < 1.49, "two namespaces have theirs at other times"


def test_bursts_are_per_namespace() -> None:
    bursts = {"kind": "bursts", "factor": 2, "lastsS": 50, "everyS": 300}
    load = relative_load(shapes=[bursts], seed=3)
    assert set(load) == {1.0, 1.5, 2.0}, "nobody, one of two, both at once"
    assert sum(load) - len(load) == pytest.approx(10), "half of the load, for five steps, of two namespaces, twice"


def test_zipf_weights_of_namespaces_differ() -> None:
    weights = {"kind": "zipf", "exponent": 1}
    like = [{"name": f"t/{name}", "bundles": 4, "owners": "dealt", "weights": weights} for name in "ab"]
    first = {"kind": "ramp", "factor": 2, "fromS": 0, "untilS": 0, "bundles": ["t/a#0"]}
    shares = {relative_load(namespaces=like, shapes=[first], seed=seed)[0] - 1.0 for seed in range(1, 9)}
    law = np.array([1.0, 1 / 2, 1 / 3, 1 / 4])
    expected = law / law.sum() / 2
    assert all(np.isclose(share, expected, atol=1e-6).any() for share in shares)
    assert len(shares) > 1, "the seed says who is first"


def test_crashed_broker_returns_at_its_time() -> None:
    crash = {"kind": "brokersCrash", "atS": 100, "brokers": ["broker-0001:8080"]}
    for down_s, back_at_s in ((200, 300), (5, 105), (None, None)):
        result = run(a_scenario(stepS=10, events=[{**crash, "downS": down_s}])).result
        brokers = dict(zip(result.series.t_s.tolist(), result.series.brokers.tolist(), strict=True))
        assert brokers[110.0] == (2 if down_s == 5 else 1)
        assert brokers[590.0] == (1 if back_at_s is None else 2)
        assert [each.at_s for each in result.first_reports if each.incarnation == 3] == (
            [] if back_at_s is None else [pytest.approx(back_at_s, abs=1)]
        )


def test_workload_is_computed_without_a_run() -> None:
    shapes = [{"kind": "noise", "spread": 0.2}, {"kind": "drift", "factor": 2, "periodS": 300}]
    scenario = a_scenario(stepS=60, seed=3, shapes=shapes, traces={"bundles": 3})
    recorded = [Series("a", "a.csv", 0, 60_000, np.array([1.0, 2.0, 3.0]))]
    workload = world_of(scenario, settings_for(scenario, "", {}), recorded).workload
    series = run(scenario, recorded=recorded).result.series
    assert len(workload) == scenario.bundles() == 7
    throughput = [workload.load_at(t_s)[:, 2:].sum() for t_s in series.t_s.tolist()]
    assert throughput == pytest.approx(series.load.tolist())
