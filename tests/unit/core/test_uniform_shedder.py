from __future__ import annotations

import time

import numpy as np
import pytest
from support.builders import MIB, Load, broker, bundle, owned, releasing, report, snapshot, throughput

from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.shedding.uniform_shedder import UniformLoadShedder, UniformReason

UNIFORM = UniformLoadShedder(PlannerSettings())


def rated(messages_per_s: float, first: int = 0, bundles: int = 10) -> dict[str, Load]:
    return {bundle(first + i): (messages_per_s / bundles, 0, 0, 0) for i in range(bundles)}


def verdicts(given: Snapshot, strategy: UniformLoadShedder = UNIFORM) -> dict[str, Verdict]:
    return {each.subject: each for each in strategy.find_bundles_for_unloading(given, {}).verdicts}


def test_verdicts_name_the_shedding_broker_and_its_difference() -> None:
    found = verdicts(snapshot({"a": report(rated(30_000)), "b": report(rated(10_000, 100)), "c": report()}))
    assert found["a:8080"].verdict is UniformReason.MSG_RATE_DIFFERENCE
    assert found["a:8080"].sentence() == (
        "Shed 1 of 10 bundles because its 30000 messages/s are 2999900 % above the lowest, 1, more than"
        " loadBalancerMsgRateDifferenceShedderThreshold 50 %: need 5999 messages/s"
    )
    assert found["b:8080"].sentence() == "No move because only the busiest broker sheds, a:8080"
    assert set(found) == {"a:8080", "b:8080", "c:8080"}


def test_throughput_decides_when_the_message_rates_are_close() -> None:
    loads = {bundle(i): throughput(5) for i in range(10)}
    found = verdicts(snapshot({"a": report(loads), "b": report({bundle(50): throughput(10)})}))["a:8080"]
    assert (found.verdict, found.acted) == (UniformReason.THROUGHPUT_DIFFERENCE, True)
    assert found.sentence() == (
        "Shed 1 of 10 bundles because its 100 MiB/s are 5 times the lowest, 20, more than"
        " loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold 4: need 16 MiB/s"
    )


def test_small_differences_have_one_cluster_verdict() -> None:
    found = verdicts(snapshot({"a": report(rated(15_000)), "b": report(rated(10_000, 100))}))
    assert found["cluster"].sentence() == (
        "No move because the highest message rate is 50 % above the lowest"
        " (loadBalancerMsgRateDifferenceShedderThreshold 50), and the highest throughput 0 times the lowest"
        " (loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold 4)"
    )


def test_need_below_the_minimum_of_its_rule_has_a_verdict() -> None:
    found = verdicts(snapshot({"a": report(rated(5_000)), "b": report()}))["a:8080"]
    assert found.sentence() == "No move because need 999 messages/s is below minUnloadMessage 1000"
    small = {bundle(i): throughput(0.2) for i in range(10)}
    found = verdicts(snapshot({"a": report(small), "b": report()}))["a:8080"]
    assert found.sentence() == ("No move because need 0.8 MiB/s is below minUnloadMessageThroughput 1048576 bytes/s")


def test_throughput_need_of_exactly_the_minimum_is_shed() -> None:
    loads: dict[str, Load] = {bundle(i): (0, 0, 600, 0) for i in range(10)}
    given = snapshot({"a": report(loads), "b": report({bundle(50): (0, 0, 1000, 0)})})
    for minimum, acted in ((1000, True), (1001, False)):
        strategy = UniformLoadShedder(PlannerSettings(min_unload_message_throughput=minimum))
        assert verdicts(given, strategy)["a:8080"].acted is acted


def test_limit_of_no_bundles_sheds_none() -> None:
    none = UniformLoadShedder(PlannerSettings(max_unload_bundle_num_per_shedding=0))
    found = verdicts(snapshot({"a": report(rated(30_000)), "b": report()}), none)["a:8080"]
    assert found.sentence().endswith("fits into need 5999 messages/s and maxUnloadBundleNumPerShedding 0")


def test_rate_rule_precedes_the_throughput_rule_as_in_pulsar() -> None:
    loads: dict[str, Load] = {bundle(i): (100, 0, 50 * MIB, 0) for i in range(10)}
    found = verdicts(snapshot({"a": report(loads), "b": report()}))["a:8080"]
    assert found.verdict is SheddingReason.NEED_BELOW_MINIMUM
    assert "need_mib_per_s" not in found.why


def test_bundles_larger_than_the_need_stay() -> None:
    found = verdicts(snapshot({"a": report(rated(30_000, bundles=2)), "b": report()}))["a:8080"]
    assert found.sentence() == (
        "No move because none of 2 bundles that may move fits into need 5999 messages/s"
        " and maxUnloadBundleNumPerShedding -1"
    )


def test_verdicts_without_movable_bundles() -> None:
    only = snapshot({"a": report({bundle(1): (9e4, 0, 0, 0)}), "b": report()})
    assert verdicts(only)["a:8080"].sentence() == ("No move because its only bundle causes all of its load")
    none = snapshot({"a": report(load=(9e4, 0, 0, 0)), "b": report()})
    assert verdicts(none)["a:8080"].sentence() == "No move because it reports no bundle"
    loads = rated(30_000)
    recent = snapshot({"a": report(loads), "b": report()}, recently_unloaded=list(loads))
    assert verdicts(recent)["a:8080"].verdict is SheddingReason.NO_ELIGIBLE_BUNDLE
    assert verdicts(recent)["a:8080"].why["recently_unloaded"] == 10


def test_broker_with_a_release_in_progress_sheds_nothing() -> None:
    a, b = broker("a"), broker("b")
    loads = rated(30_000)
    model = ClusterModel()
    model.set_namespace("tenant/ns", list(loads), [releasing(a, b), *[owned(a)] * 9])
    model.apply_report(a, report(loads))
    model.apply_report(b, report())
    assert verdicts(model.snapshot(0, 0))["a:8080"].verdict is SheddingReason.AWAITING_REPORT


def test_first_of_equally_loaded_brokers_sheds() -> None:
    given = snapshot({"b": report(rated(30_000)), "a": report(rated(30_000, 100)), "c": report()})
    assert [given.brokers.ids[pick.broker] for pick in UNIFORM.find_bundles_for_unloading(given, {}).bundles] == [
        "a:8080"
    ]


def test_no_shedding_and_no_verdict_without_brokers() -> None:
    shed = UNIFORM.find_bundles_for_unloading(snapshot({}), {})
    assert (shed.bundles, shed.verdicts) == ((), ())


def test_need_is_capped_at_a_32_bit_integer() -> None:
    gib = 1024 * MIB
    loads: dict[str, Load] = {bundle(i): (0, 0, gib, 0) for i in range(50)}
    given = snapshot({"a": report(loads), "b": report()})
    found = verdicts(given)["a:8080"]
    assert found.why["need_mib_per_s"] == (2**31 - 1) / MIB
    assert found.why["bundles_taken"] == 1


def test_non_finite_loads_shed_nothing() -> None:
    loads = rated(30_000)
    given = snapshot({"a": report(loads, load=(np.nan, 0, 0, 0)), "b": report(rated(10_000, 50))})
    assert not UNIFORM.find_bundles_for_unloading(given, {}).bundles
    infinite = snapshot({"a": report(loads, load=(np.inf, 0, 0, 0)), "b": report()})
    nothing = UniformLoadShedder(PlannerSettings(min_unload_message=0, max_unload_percentage=0.0))
    assert verdicts(infinite, nothing)["a:8080"].why["need_msg_rate_per_s"] == 0


@pytest.mark.deep
@pytest.mark.parametrize(("carried", "taken"), [(0.0, 100_000), (10.0, 19_999)])
def test_broker_with_100_000_bundles_is_decided_quickly(carried: float, taken: int) -> None:
    loads: dict[str, Load] = {bundle(i): (carried, 0, 0, 0) for i in range(100_000)}
    given = snapshot({"a": report(loads, load=(1e6, 0, 0, 0)), "b": report()})
    started_s = time.process_time()
    shed = UNIFORM.find_bundles_for_unloading(given, {})
    assert time.process_time() - started_s < 0.3
    assert [len(pick.bundles) for pick in shed.bundles] == [taken]
