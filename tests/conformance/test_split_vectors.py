"""Pulsar's splits (rows S and N2).

Differences: an unknown algorithm is refused by name, where Pulsar uses the default one. The extensible rule splits at
several boundaries at once, where Pulsar does nothing.

The worked examples of Pulsar's documentation for splits by load (DOCUMENTED) name the topics between which a bundle is
cut; the positions it gives are averages of hexadecimal digits read as decimal ones, so ours are those of its code.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.dumps import MIB, Line, answers, broker, run, settings, stats

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting import SPLIT_ALGORITHMS, PositionsRequiredError, divide_at

TEN = "ten/ns/0x00000000_0x80000000"
BUNDLE_1, BUNDLE_2 = "my-tenant/my-namespace1/0x00000000_0xFFFFFFFF", "my-tenant/my-namespace2/0x00000000_0x0FFFFFFF"
EXTENSIBLE: dict[str, object] = {
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
    "loadBalancerNamespaceMaximumBundles": 100,
    "loadBalancerNamespaceBundleMaxTopics": 100,
    "loadBalancerNamespaceBundleMaxSessions": 100,
    "loadBalancerNamespaceBundleMaxMsgRate": 100,
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": 100,
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle": 1,
}
POSITIONS = [-1, 0, 1, 100, 200, 500, 800, 1000, 1100]


def cut(name: str, own: BundleRange, topics: list[TopicLoad], positions: list[int] | None = None) -> list[int] | None:
    return SPLIT_ALGORITHMS[name](own, topics, positions or [], PlannerSettings())


def reported(bundles: dict[str, dict[str, float]], **more: Any) -> Line:  # noqa: ANN401 - any other key
    return {"brokers": {"b1": broker(list(bundles), lastStats=bundles)}, **more}


def split(bundle: str, boundary: str, reason: str) -> dict[str, object]:
    return {"action": "split", "bundle": bundle, "source": "b1", "boundaries": [boundary], "reason": reason}


@pytest.mark.parametrize(("topics", "expected"), [(1, []), (2, [split(TEN, "0x40000000", "MsgRate")])])
def test_s1a_bundle_of_one_topic_is_not_split(topics: int, expected: list[object]) -> None:
    known = {TEN: {"longTermData": {"numSamples": 3, "msgRateIn": 30000, "msgRateOut": 1}, "topics": topics}}
    (answer,) = answers(reported({TEN: stats(topics=topics)}, bundleData=known), "--split")
    assert (answer["decisions"], answer["state"]) == (expected, {})


def test_s1_exactly_at_every_limit_is_not_hot() -> None:
    at = stats(30000, 0, 104857600, 0, topics=1000, consumerCount=500, producerCount=500)
    (answer,) = answers(reported({TEN: at}), "--split")
    assert answer["decisions"] == []
    assert answer["verdicts"][0]["verdict"] == "below_split_limits"


def busy(*bundles: str) -> Line:
    return reported({bundle: stats(51, 51, topics=5) for bundle in bundles})


def test_s2a_bundle_is_split_in_the_fourth_cycle_one_per_cycle() -> None:
    found = answers([busy(BUNDLE_1, BUNDLE_2)] * 5, "--split", *settings(EXTENSIBLE))
    assert [each["decisions"] for each in found[:3]] == [[], [], []]
    assert found[3]["decisions"] == [split(BUNDLE_1, "0x7fffffff", "MsgRate")]
    assert found[4]["decisions"] == [split(BUNDLE_2, "0x07ffffff", "MsgRate")]


def test_s2a_printed_state_is_continued_for_the_same_incarnation_only() -> None:
    asked = ("--split", *settings(EXTENSIBLE))
    state = answers([busy(BUNDLE_1)] * 3, *asked)[-1]["state"]
    (answer,) = answers({**busy(BUNDLE_1), "state": state}, *asked)
    assert len(answer["decisions"]) == 1
    line = busy(BUNDLE_1)
    line["brokers"]["b1"]["startTimestamp"] = 5
    (answer,) = answers({**line, "state": state}, *asked)
    assert answer["decisions"] == []


def test_s2e_first_cycle_splits_without_a_threshold() -> None:
    threshold = {"loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0}
    line = reported({BUNDLE_1: stats(101, topics=5)})
    (answer,) = answers(line, "--split", *settings(EXTENSIBLE | threshold))
    assert answer["decisions"] == [split(BUNDLE_1, "0x7fffffff", "MsgRate")]


def test_s3a_range() -> None:
    assert cut("range_equally_divide", BundleRange(10, HASH_SPACE_END), []) == [2147483652]


@pytest.mark.parametrize("name", ["topic_count_equally_divide", "specified_positions_divide"])
def test_s3c_one_topic_is_not_divided(name: str) -> None:
    assert cut(name, BundleRange(1, 1000), [TopicLoad(7)], [5]) is None


def test_s3d_positions_inside() -> None:
    topics = [TopicLoad(7), TopicLoad(8)]
    assert cut("specified_positions_divide", BundleRange(1, 1000), topics, POSITIONS) == [100, 200, 500, 800]
    line = {"topics": {"t/ns/0x00000001_0x000003e8": [{"topic": "a", "hash": 7}, {"topic": "b", "hash": 8}]}}
    positions = ",".join(map(str, POSITIONS))
    asked = ("--bundle", "t/ns/0x00000001_0x000003e8", "--positions", positions)
    (answer,) = answers(line, "--split", "specified_positions_divide", *asked)
    (decision,) = answer["decisions"]
    assert decision["boundaries"] == ["0x00000064", "0x000000c8", "0x000001f4", "0x00000320"]
    assert (decision["source"], decision["reason"]) == (None, "admin_split")


def test_s3e_positions_by_force() -> None:
    assert divide_at(BundleRange(0, HASH_SPACE_END), [1, 2]) == [1, 2]


def test_s3f_no_positions() -> None:
    with pytest.raises(PositionsRequiredError):
        cut("specified_positions_divide", BundleRange(1, 1000), [TopicLoad(7), TopicLoad(8)])


def test_s3i_flow_or_qps() -> None:
    bundle, hashes = "t/ns/0x00000000_0x80000000", (10, 20, 80, 90, 100, 110)
    topics = [
        {"topic": f"t{i}", "hash": each, "msgRateIn": i * 100, "msgThroughputIn": i * 10 * MIB}
        for i, each in enumerate(hashes, start=1)
    ]
    limits = {"loadBalancerNamespaceBundleMaxMsgRate": 1100, "loadBalancerNamespaceBundleMaxBandwidthMbytes": 110}
    line = reported({bundle: stats(2100, topics=6)}, topics={bundle: topics})
    (answer,) = answers(line, "--split", "flow_or_qps_equally_divide", *settings(limits))
    assert answer["decisions"] == [split(bundle, "0x00000060", "MsgRate")]


DOCUMENTED = {0x10000000: 1, 0x15000000: 2, 0x24000000: 3, 0x39000000: 4, 0x58000000: 5, 0x76000000: 6}
"""Hashes of topics t1 to t6; topic i has i * 100 messages/s and i * 10 MiB/s."""


@pytest.mark.parametrize(
    ("max_rate", "max_mbytes", "left_topics", "boundaries"),
    [
        (450, 200, [2, 3, 4, 5], ["0x1c800001", "0x2e800001", "0x48800001", "0x67000001"]),
        (1900, 90, [3, 5], ["0x2e800001", "0x67000001"]),
        (1100, 110, [4], ["0x48800001"]),
    ],
)
@pytest.mark.parametrize("manager", ["ModularLoadManagerImpl", "ExtensibleLoadManagerImpl"])
def test_s3_documented_cases_of_flow_or_qps(
    max_rate: int, max_mbytes: int, left_topics: list[int], boundaries: list[str], manager: str
) -> None:
    bundle = "t/ns/0x00000000_0x80000000"
    topics = [
        {"topic": f"t{i}", "hash": each, "msgRateIn": i * 100, "msgThroughputIn": i * 10 * MIB}
        for each, i in DOCUMENTED.items()
    ]
    configured = {
        "loadManagerClassName": manager,
        "defaultNamespaceBundleSplitAlgorithm": "flow_or_qps_equally_divide",
        "loadBalancerNamespaceBundleMaxMsgRate": max_rate,
        "loadBalancerNamespaceBundleMaxBandwidthMbytes": max_mbytes,
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0,
    }
    line = reported({bundle: stats(2100, 0, 210 * MIB, topics=6)}, topics={bundle: topics})
    (answer,) = answers(line, "--split", *settings(configured))
    (decision,) = answer["decisions"]
    assert decision["boundaries"] == boundaries
    hashes = list(DOCUMENTED)
    for left, boundary in zip(left_topics, boundaries, strict=True):
        assert hashes[left - 1] < int(boundary, 16) <= hashes[left]


def test_s3j_names() -> None:
    assert set(SPLIT_ALGORITHMS) == {
        "range_equally_divide",
        "topic_count_equally_divide",
        "specified_positions_divide",
        "flow_or_qps_equally_divide",
    }
    assert run([{}], "--split", "whatever").exit_code == 2


@pytest.mark.parametrize(
    ("lower", "upper", "boundary"),
    [
        (0, 0xFFFFFFFF, 0x7FFFFFFF),
        (0, 0x7FFFFFFF, 0x3FFFFFFF),
        (0x7FFFFFFF, 0xFFFFFFFF, 0xBFFFFFFF),
        (0, 0x3FFFFFFF, 0x1FFFFFFF),
        (0x3FFFFFFF, 0x7FFFFFFF, 0x5FFFFFFF),
        (0x7FFFFFFF, 0xBFFFFFFF, 0x9FFFFFFF),
        (0xBFFFFFFF, 0xFFFFFFFF, 0xDFFFFFFF),
    ],
)
def test_n2_halving(lower: int, upper: int, boundary: int) -> None:
    assert cut("range_equally_divide", BundleRange(lower, upper), []) == [boundary]


def test_requested_split_ignores_load_and_is_shown_in_the_table() -> None:
    result = run([reported({TEN: stats(topics=1)})], "--split", "--bundle", TEN)
    assert "0x40000000" in result.stdout
    assert "Split into 2 because an operator ordered it" in result.stdout


def test_topics_without_a_hash_use_the_hash_function_of_their_namespace() -> None:
    bundle = "my-tenant/my-ns/0x00000000_0xffffffff"
    names = [f"persistent://my-tenant/my-ns/my-topic-partition-{i}" for i in range(2)]
    line = reported({bundle: stats(topics=2)}, topics={bundle: [{"topic": name} for name in names]})
    (answer,) = answers(line, "--split", "topic_count_equally_divide", "--bundle", bundle)
    middle = 0x01DA55E7 + (0x76DD6571 - 0x01DA55E7) // 2
    assert answer["decisions"][0]["boundaries"] == [f"0x{middle:08x}"]


def test_declared_bundles_count_towards_the_maximum() -> None:
    boundaries = [f"0x{i << 29:08x}" for i in (0, 4, 5, 6, 7)] + ["0xffffffff"]
    line = reported({TEN: stats(40000, topics=2)}, namespaces={"ten/ns": {"boundaries": boundaries}})
    for maximum, expected in ((5, "namespace_has_maximum_bundles"), (6, "msg_rate")):
        (answer,) = answers(line, "--split", *settings({"loadBalancerNamespaceMaximumBundles": maximum}))
        assert [each["verdict"] for each in answer["verdicts"]] == [expected]


def test_maximum_of_bundles_holds_across_brokers_of_a_cycle() -> None:
    left, right = "ten/ns/0x00000000_0x80000000", "ten/ns/0x80000000_0xffffffff"
    line = {
        "brokers": {
            f"b{i}": broker([each], lastStats={each: stats(101, topics=5)}) for i, each in enumerate((left, right))
        }
    }
    changed = {
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0,
        "loadBalancerNamespaceMaximumBundles": 3,
    }
    (answer,) = answers(line, "--split", *settings(EXTENSIBLE | changed))
    assert [each["bundle"] for each in answer["decisions"]] == [left]
    assert [each["verdict"] for each in answer["verdicts"]] == ["msg_rate", "namespace_has_maximum_bundles"]


def test_bundle_with_one_hot_topic_is_not_split_unlike_in_pulsar() -> None:
    topics = [{"topic": "hot", "hash": 5, "msgRateIn": 39000}, {"topic": "cold", "hash": 9, "msgRateIn": 1000}]
    (answer,) = answers(reported({TEN: stats(40000, topics=2)}, topics={TEN: topics}), "--split")
    assert answer["decisions"] == []
    (verdict,) = answer["verdicts"]
    assert (verdict["verdict"], verdict["why"]["topic"]) == ("one_hot_topic", "hot")
    assert verdict["why"]["msg_rate_share_percent"] == 97.5


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ("--split", "flow_or_qps_equally_divide"),
            "--split 'flow_or_qps_equally_divide': not one of supportedNamespaceBundleSplitAlgorithms, range_equally",
        ),
        (
            ("--split", "--set", "defaultNamespaceBundleSplitAlgorithm=flow_or_qps_equally_divide"),
            "defaultNamespaceBundleSplitAlgorithm 'flow_or_qps_equally_divide': not one of supported",
        ),
        (("--split", "--set", "supportedNamespaceBundleSplitAlgorithms=range_equally_divide,halves"), "halves"),
    ],
)
def test_unsupported_algorithm_is_refused(options: tuple[str, ...], complaint: str) -> None:
    supported = "supportedNamespaceBundleSplitAlgorithms=range_equally_divide,topic_count_equally_divide"
    result = run([reported({TEN: stats(topics=2)})], "--set", supported, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in " ".join(result.stderr.split())


def test_no_rule_splits_when_splitting_is_off() -> None:
    off = settings({"loadBalancerAutoBundleSplitEnabled": "false"})
    (answer,) = answers(reported({TEN: stats(40000, topics=2)}), "--split", *off)
    assert (answer["decisions"], answer["verdicts"][0]["verdict"]) == ([], "splitting_disabled")
