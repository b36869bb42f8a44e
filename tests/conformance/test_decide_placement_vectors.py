"""Pulsar's choices of an owner (rows C and L2), through `loadmanager decide`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support.builders import bundle
from support.dumps import Line, answers, broker, history, settings, stats

from loadmanager.core.domain.reasons import PlacementReason
from loadmanager.core.strategies.placement.avg_placement import AvgPlacementReason

NEW = bundle(999)
HALF_HISTORY = {
    "loadBalancerHistoryResourcePercentage": 0.5,
    "loadBalancerAverageResourceUsageDifferenceThresholdPercentage": 5,
    "loadBalancerDirectMemoryResourceWeight": 0.1,
}


def place(lines: Sequence[Line] | Line, strategy: str, *arguments: str) -> list[dict[str, Any]]:
    return answers(lines, "--place", strategy, "--bundle", NEW, *arguments)


def destination(answer: Mapping[str, Any]) -> str | None:
    (decision,) = answer["decisions"]
    assert (decision["action"], decision["bundle"]) == ("assign", NEW)
    found: str | None = decision["destination"]
    return found


def with_rates(rates: Mapping[str, float], cpu: Mapping[str, float] | None = None) -> Line:
    """Each broker reports one bundle of this long-term message rate in."""
    return {
        "brokers": {name: broker([bundle(int(name))], cpu=(cpu or {}).get(name, 0)) for name in rates},
        "bundleData": {bundle(int(name)): history(stats(), stats(rate)) for name, rate in rates.items()},
    }


RATES = {"1": 400, "2": 200, "3": 300}


@pytest.mark.parametrize(
    ("line", "weight", "selected"),
    [
        (with_rates({"1": 100, "2": 200, "3": 300}), 1, "1"),
        (with_rates(RATES), 1, "2"),
        (with_rates(RATES, {"2": 90}), 1, "3"),
        (with_rates(RATES, {"2": 90}), 0, "2"),
        (with_rates(RATES, {"2": 85}), 1, "2"),
    ],
)
def test_c1_a_to_d_and_f_least_message_rate_not_overloaded(line: Line, weight: int, selected: str) -> None:
    (answer,) = place(line, "LeastLongTermMessageRate", "--set", f"loadBalancerCPUResourceWeight={weight}")
    assert (destination(answer), answer["candidates"]) == (selected, [selected])


def test_c1_with_time_averages_in_place_of_bundle_data() -> None:
    line = {
        "brokers": {name: broker() for name in "123"},
        "timeAverages": {name: {"longTermMsgRateIn": rate + 0.5} for name, rate in RATES.items()},
    }
    (answer,) = place(line, "LeastLongTermMessageRate")
    assert destination(answer) == "2"
    assert answer["verdicts"][0]["why"]["msg_rate_per_s"] == 200.5


def test_c1_e_and_g_any_of_overloaded_brokers_and_none_without_candidates() -> None:
    line = with_rates(RATES, dict.fromkeys("123", 90))
    found = {destination(place(line, "LeastLongTermMessageRate", "--seed", str(seed))[0]) for seed in range(20)}
    assert found == {"1", "2", "3"}
    (answer,) = place(line, "LeastLongTermMessageRate")
    assert answer["candidates"] == ["1", "2", "3"]
    assert answer["verdicts"][0]["verdict"] == PlacementReason.ALL_BROKERS_OVERLOADED
    (answer,) = place({**line, "candidates": []}, "LeastLongTermMessageRate")
    assert (destination(answer), answer["candidates"]) == (None, [])


def test_c1_h_preallocated_bundle_counts() -> None:
    line = with_rates({"3": 300})
    line["bundleData"][bundle(7)] = history(stats(), stats(150, 100))
    line["preallocated"] = {"3": [bundle(7)]}
    (answer,) = place(line, "LeastLongTermMessageRate")
    assert answer["verdicts"][0]["why"]["msg_rate_per_s"] == 550


def used(*percents: float, idle: int = 0) -> Line:
    """Brokers 1, 2, ... with equal usage of all resources; the idle one has no bundle."""
    others = ("memory", "directMemory")
    brokers = {}
    for number, percent in enumerate(percents, start=1):
        usage: dict[str, Any] = {name: {"usage": percent, "limit": 100} for name in others}
        own = [] if number == idle else [bundle(number)]
        brokers[str(number)] = broker(own, cpu=percent, bandwidth=(percent, 100), load=stats(100, 100), **usage)
    return {"brokers": brokers}


def test_c2_each_line_is_one_choice_and_advances_averages() -> None:
    steps = [
        ((10, 30, 60), (0.1, 0.30000001907, 0.60000003815), "1"),
        ((20, 30, 50), (0.15, 0.30000001907, 0.55000001907), "1"),
        ((30, 30, 40), (0.22500000954, 0.30000001907, 0.47500000954), "1"),
        ((30, 30, 40), (0.26250001431, 0.30000001907, 0.43750000477), "1"),
        ((35, 20, 45), (0.30625000715, 0.25000000954, 0.44375000238), "2"),
        ((35, 20, 0), (0.32812500358, 0.22500000477, 0), "3"),
    ]
    lines: list[Line] = [{**used(10, 30, 60, 5), "candidates": ["1", "2", "3", "4"]}]
    for number, (percents, _, _) in enumerate(steps, start=1):
        lines.append({**used(*percents, 5, idle=3 if number == 6 else 0), "candidates": ["1", "2", "3"]})
    _, *found = place(lines, "LeastResourceUsageWithWeight", *settings(HALF_HISTORY))
    for answer, (_, averages, selected) in zip(found, steps, strict=True):
        assert (destination(answer), answer["candidates"]) == (selected, [selected])
        remembered = answer["state"]["LeastResourceUsageWithWeight"]["usage"]
        assert [remembered[name][1] for name in "123"] == pytest.approx(averages, abs=1e-10)
        assert answer["verdicts"][0]["why"]["average_percent"] == pytest.approx(sum(averages) / 3 * 100)


@pytest.mark.parametrize(
    ("averages", "selected"),
    [
        ((0.1, 0.3, 0.6), "1"),
        ((0.2, 0.3, 0.5), "1"),
        ((0.25, 0.3, 0.45), "1"),
        ((0.275, 0.3, 0.425), "1"),
        ((0.3125, 0.25, 0.4375), "2"),
        ((0.33125, 0.225, 0), "3"),
        ((0.1, 0.3, 0.6, 0.05), "1"),
    ],
)
@pytest.mark.parametrize(
    "strategy",
    [
        "LeastResourceUsageWithWeightExtensible",
        "org.apache.pulsar.broker.loadbalance.extensions.strategy.LeastResourceUsageWithWeight",
    ],
)
def test_c5_and_c6_extensible_uses_published_averages(averages: Sequence[float], selected: str, strategy: str) -> None:
    names = [str(number) for number in range(1, len(averages) + 1)]
    line = {
        "brokers": {name: broker() for name in names},
        "brokerLoad": {
            name: {"weightedMaxEMA": average, "updatedAt": 5} for name, average in zip(names, averages, strict=True)
        },
        "candidates": ["1", "2", "3"],
    }
    (answer,) = place(line, strategy, *settings(HALF_HISTORY))
    assert (destination(answer), answer["candidates"]) == (selected, [selected])


def test_c8_round_robin_keeps_its_order_for_equal_candidate_counts() -> None:
    lines: list[Line] = []
    expected = ""
    for candidates, chosen in (
        ("123", "1231231231"),
        ("231", "2312312312"),
        ("124", "412412"),
        ("24", "2424"),
    ):
        line = {"brokers": {name: broker() for name in "1234"}, "candidates": list(candidates)}
        lines += [line] * len(chosen)
        expected += chosen
    found = place(lines, "RoundRobinBrokerSelector")
    assert "".join(destination(answer) or "-" for answer in found) == expected
    last = {"RoundRobinBrokerSelector": {"turn": 2147483647}}
    (answer,) = place({**lines[0], "state": last}, "RoundRobinBrokerSelector")
    assert (destination(answer), answer["state"]["RoundRobinBrokerSelector"]["turn"]) == ("2", 0)


def three(candidates: str, state: Line | None = None) -> Line:
    line: Line = {"brokers": {name: broker() for name in "123"}, "candidates": list(candidates)}
    return line if state is None else {**line, "state": state}


def test_c9_planned_destination_is_chosen_while_it_is_a_candidate() -> None:
    planned = {"AvgShedder": {"planned": {NEW: "1"}}}
    found = place([three("123", planned), three("2"), three("123")], "AvgShedder")
    assert [destination(answer) for answer in found] == ["1", "2", "2"]


def test_c9_without_a_plan_any_candidate_is_drawn_and_stored() -> None:
    drawn = set()
    for seed in range(20):
        first, second, third = place([three("123"), three("123"), three("23")], "AvgShedder", "--seed", str(seed))
        assert first["candidates"] == ["1", "2", "3"]
        assert first["verdicts"][0]["verdict"] == AvgPlacementReason.DRAWN_BY_CHANCE
        assert destination(first) == destination(second)
        assert destination(third) in ("2", "3")
        drawn.add(destination(first))
    assert drawn == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("min_limit", "available", "selected"),
    [
        (1, "123", ["b1:8080"]),
        (1, "23", ["b2:8080"]),
        (1, "3", []),
        (2, "123", ["b1:8080", "b2:8080"]),
        (2, "23", ["b2:8080"]),
        (2, "3", []),
    ],
)
def test_l2_isolation_policies_filter_candidates(min_limit: int, available: str, selected: list[str]) -> None:
    policy = {
        "namespaces": ["tenant/ns"],
        "primary": ["b1"],
        "secondary": ["b2"],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": str(min_limit)}},
    }
    line = {
        "brokers": {f"b{number}:8080": broker() for number in "123"},
        "candidates": [f"b{number}:8080" for number in available],
        "isolationPolicies": {"p": policy},
    }
    (answer,) = place(line, "LeastLongTermMessageRate")
    assert answer["candidates"] == selected


def test_min_limit_of_an_isolation_policy_may_be_a_number() -> None:
    failover = {"policy_type": "min_available", "parameters": {"min_limit": 2, "usage_threshold": 80}}
    policy = {"namespaces": [".*"], "primary": ["b1"], "secondary": ["b2"], "auto_failover_policy": failover}
    line = {"brokers": {f"b{number}:8080": broker() for number in "123"}, "isolationPolicies": {"p": policy}}
    (answer,) = place(line, "LeastLongTermMessageRate")
    assert answer["candidates"] == ["b1:8080", "b2:8080"]


def test_later_versions_are_preferred_when_enabled() -> None:
    versions = {"1": "1.2.0-SNAPSHOT", "2": "1.2.0", "3": "1.2.0"}
    line: Line = {"brokers": {name: broker(brokerVersionString=version) for name, version in versions.items()}}
    prefer = ("--set", "preferLaterVersions=true")
    (answer,) = place(line, "LeastLongTermMessageRate", *prefer)
    assert answer["candidates"] == ["2", "3"]
    assert answer["verdicts"][0]["why"]["older_version"] == 1
    line["brokers"]["3"]["brokerVersionString"] = "latest"
    assert place(line, "LeastLongTermMessageRate", *prefer)[0]["candidates"] == ["1", "2", "3"]


def test_l1_namespace_is_spread_evenly_when_enabled() -> None:
    """Even distribution is on by default in a leader; `decide` enables it only on request."""
    own = {"1": [bundle(1)], "2": [bundle(2), bundle(3)], "3": [bundle(4)]}
    line = {"brokers": {name: broker(bundles) for name, bundles in own.items()}}
    evenly = ("--set", "loadBalancerDistributeBundlesEvenlyEnabled=true")
    assert place(line, "AvgShedder")[0]["candidates"] == ["1", "2", "3"]
    planned = {**line, "state": {"AvgShedder": {"planned": {NEW: "2"}}}}
    assert place(planned, "AvgShedder", *evenly)[0]["candidates"] == ["2"]
    assert place(line, "AvgShedder", *evenly)[0]["candidates"] == ["1", "3"]
    assert place({**line, "candidates": ["2", "1"]}, "AvgShedder", *evenly)[0]["candidates"] == ["1"]
    assert place({**line, "candidates": ["2"]}, "AvgShedder", *evenly)[0]["candidates"] == ["2"]


def test_overloaded_preferred_broker_is_replaced_by_any_allowed_one() -> None:
    line = {"brokers": {"1": broker(cpu=90), "2": broker([bundle(2)], cpu=85)}}
    evenly = ("--set", "loadBalancerDistributeBundlesEvenlyEnabled=true")
    (answer,) = place(line, "LeastLongTermMessageRate", *evenly)
    assert (destination(answer), answer["candidates"]) == ("2", ["2"])
    line["brokers"]["1"] = broker(cpu=85)
    (answer,) = place(line, "LeastLongTermMessageRate", *evenly)
    assert (destination(answer), answer["verdicts"][0]["why"]["owns_more_of_namespace"]) == ("1", 1)
