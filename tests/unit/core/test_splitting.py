from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange
from loadmanager.core.domain.reasons import Reason, SplitReason
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.strategies.splitting import (
    MIB,
    SPLIT_ALGORITHMS,
    Divider,
    PositionsRequiredError,
    divide_at,
    is_splittable,
    split_algorithm,
    usable,
)
from loadmanager.core.strategies.splitting.split_finder import (
    Divide,
    SplitCandidate,
    Splits,
    divide_bundle,
    find_for_extensible,
    find_for_modular,
    find_reason,
)

SETTINGS = PlannerSettings(
    namespace_bundle_max_topics=100,
    namespace_bundle_max_sessions=100,
    namespace_bundle_max_msg_rate=100,
    namespace_bundle_max_bandwidth_mbytes=100,
    namespace_bundle_split_condition_hit_count_threshold=0,
)
LEFT, RIGHT = BundleRange(0, 1000), BundleRange(1000, HASH_SPACE_END)
BUSY = SplitCandidate("t/ns/0x00000000_0x000003e8", LEFT, 5, 0, 101.0, 0.0)
OTHER = SplitCandidate("t/ns/0x000003e8_0xffffffff", RIGHT, 5, 0, 101.0, 0.0)


def halves(name: str, own: BundleRange) -> list[int] | None:
    del name
    return SPLIT_ALGORITHMS["range_equally_divide"](own, [], [], SETTINGS)


def divide(name: str, own: BundleRange, hashes: list[int], positions: list[int] | None = None) -> list[int] | None:
    return SPLIT_ALGORITHMS[name](own, [TopicLoad(each) for each in hashes], positions or [], SETTINGS)


def modular(*candidates: SplitCandidate, counts: Mapping[str, int] | None = None, maximum: int = 128) -> Splits:
    return find_for_modular(candidates, counts or {}, halves, replace(SETTINGS, namespace_maximum_bundles=maximum))


def extensible(*candidates: SplitCandidate, hits: Mapping[str, int] | None = None, **more: int) -> Splits:
    return find_for_extensible(candidates, hits or {}, {}, halves, replace(SETTINGS, **more))  # type: ignore[arg-type]


def reasons(found: Splits) -> list[Reason]:
    return [verdict.verdict for verdict in found.verdicts]


@pytest.mark.parametrize(
    ("hashes", "boundary"),
    [([10, 20], 15), ([20, 30, 10], 15), ([1, 2, 3, 4, 100], 2), ([5, 5], 5), ([40, 10, 30, 20], 25)],
)
def test_topics_are_divided_in_the_middle(hashes: list[int], boundary: int) -> None:
    assert divide("topic_count_equally_divide", LEFT, hashes) == [boundary]


def test_positions_may_repeat_or_lie_outside() -> None:
    asked = [500, 0, 200, 1000, 200]
    assert divide("specified_positions_divide", LEFT, [1, 2], asked) == [200, 200, 500]
    assert asked == [500, 0, 200, 1000, 200]
    assert divide("specified_positions_divide", LEFT, [1, 2], [0, 1000]) is None
    assert divide_at(LEFT, [1, 2]) == [1, 2]
    with pytest.raises(PositionsRequiredError):
        divide_at(LEFT, [])


def flow(*topics: TopicLoad) -> list[int] | None:
    return SPLIT_ALGORITHMS["flow_or_qps_equally_divide"](LEFT, topics, [], SETTINGS)


def test_load_is_divided_only_above_the_limit_and_its_margin() -> None:
    assert flow(TopicLoad(10, 54.0), TopicLoad(20, 55.0)) is None
    assert flow(TopicLoad(10, 55.0), TopicLoad(20, 56.0)) == [16]
    assert flow(TopicLoad(10, 0, 55.0 * MIB), TopicLoad(20, 0, 56.0 * MIB)) == [16]


def test_load_of_one_hash_is_not_divided() -> None:
    assert flow() is None
    assert flow(TopicLoad(10, 500.0), TopicLoad(10, 500.0)) is None
    assert flow(TopicLoad(10, 500.0), TopicLoad(20)) is None


def test_load_of_a_hash_is_that_of_its_last_topic() -> None:
    assert flow(TopicLoad(10, 200.0), TopicLoad(10, 1.0), TopicLoad(20, 2.0)) == []
    assert flow(TopicLoad(10, 1.0), TopicLoad(10, 60.0), TopicLoad(20, 60.0)) == [11, 16]


def test_range_ends_are_no_boundaries() -> None:
    assert usable(LEFT, [0, 500]) == [500]
    assert usable(LEFT, [500, 500, 1000]) == [500]
    assert usable(LEFT, [999, 1]) == [1, 999]
    assert usable(LEFT, [0, 1000]) == []
    assert not is_splittable(BundleRange(4, 5))
    assert is_splittable(BundleRange(4, 6))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topics": 101}, SplitReason.TOPICS),
        ({"topics": 100}, None),
        ({"sessions": 101}, SplitReason.SESSIONS),
        ({"sessions": 100}, None),
        ({"msg_rate": 100.5}, SplitReason.MSG_RATE),
        ({"msg_rate": 100.0}, None),
        ({"throughput": 100.0 * MIB + 1}, SplitReason.BANDWIDTH),
        ({"throughput": 100.0 * MIB}, None),
    ],
)
def test_bundle_exactly_at_a_limit_has_no_reason_to_split(change: dict[str, float], reason: Reason | None) -> None:
    quiet = replace(BUSY, msg_rate=0.0)
    assert find_reason(replace(quiet, **change), SETTINGS) is reason  # type: ignore[arg-type]


def test_sessions_may_have_no_limit_and_a_high_bandwidth_does_not_overflow() -> None:
    settings = replace(SETTINGS, namespace_bundle_max_sessions=0, namespace_bundle_max_bandwidth_mbytes=4096)
    assert find_reason(replace(BUSY, msg_rate=0.0, sessions=10**6, throughput=4095.0 * MIB), settings) is None


def test_modular_rule_splits_at_once_by_name() -> None:
    found = modular(OTHER, BUSY, OTHER)
    assert [(split.bundle, split.boundaries) for split in found.splits] == [
        (BUSY.name, (500,)),
        (OTHER.name, (1000 + (HASH_SPACE_END - 1000) // 2,)),
    ]
    assert reasons(found) == [SplitReason.MSG_RATE] * 2


def test_modular_rule_verdicts_without_a_split() -> None:
    found = modular(replace(BUSY, topics=1), replace(OTHER, msg_rate=1.0))
    assert (found.splits, reasons(found)) == ((), [SplitReason.TOO_FEW_TOPICS, SplitReason.BELOW_SPLIT_LIMITS])


def test_splits_of_the_round_count_towards_the_maximum() -> None:
    found = modular(BUSY, OTHER, counts={"t/ns": 2}, maximum=3)
    assert reasons(found) == [SplitReason.MSG_RATE, SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES]
    tiny = replace(BUSY, range=BundleRange(4, 5))
    found = modular(tiny, OTHER, counts={"t/ns": 2}, maximum=3)
    assert reasons(found) == [SplitReason.RANGE_NOT_SPLITTABLE, SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES]


def test_extensible_rule_counts_no_hits_of_unsplittable_bundles() -> None:
    tiny = replace(BUSY, range=BundleRange(4, 5))
    for candidate, reason in [
        (replace(BUSY, topics=1), SplitReason.TOO_FEW_TOPICS),
        (replace(BUSY, is_owned=False), SplitReason.NOT_OWNED),
        (replace(BUSY, range=None), SplitReason.RANGE_NOT_SPLITTABLE),
        (tiny, SplitReason.RANGE_NOT_SPLITTABLE),
    ]:
        found = extensible(candidate, hits={BUSY.name: 2, "gone": 3})
        assert (found.splits, reasons(found), found.hits) == ((), [reason], {BUSY.name: 2})


def test_hits_must_be_consecutive() -> None:
    threshold = {"namespace_bundle_split_condition_hit_count_threshold": 3}
    found = extensible(BUSY, hits={BUSY.name: 2}, **threshold)
    assert (found.splits, reasons(found), found.hits) == ((), [SplitReason.TOO_FEW_SPLIT_HITS], {BUSY.name: 3})
    assert "hits" in found.verdicts[0].why
    found = extensible(replace(BUSY, msg_rate=1.0), hits={BUSY.name: 3}, **threshold)
    assert (reasons(found), found.hits) == ([SplitReason.BELOW_SPLIT_LIMITS], {})
    found = extensible(BUSY, hits={BUSY.name: 3}, **threshold)
    assert ([split.bundle for split in found.splits], found.hits) == ([BUSY.name], {})


def test_bundles_beyond_the_round_maximum_get_no_hits() -> None:
    found = extensible(BUSY, OTHER, hits={OTHER.name: 7}, max_number_of_bundles_to_split_per_cycle=1)
    assert reasons(found) == [SplitReason.MSG_RATE, SplitReason.SPLIT_ROUND_FULL]
    assert found.hits == {OTHER.name: 7}


def test_full_namespace_keeps_hits() -> None:
    found = extensible(BUSY, OTHER, namespace_maximum_bundles=2)
    assert reasons(found) == [SplitReason.MSG_RATE, SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES]
    assert found.hits == {OTHER.name: 1}


@pytest.mark.parametrize(
    ("namespace", "in_progress", "is_blocked"),
    [
        ("t/ns", BundleRange(0, 500), True),
        ("t/ns", BundleRange(500, 1000), True),
        ("t/ns", RIGHT, False),
        ("t/n", LEFT, False),
    ],
)
def test_split_in_progress_blocks_neighbours(namespace: str, in_progress: BundleRange, *, is_blocked: bool) -> None:
    found = find_for_extensible([BUSY], {}, {}, halves, SETTINGS, [(namespace, in_progress)])
    assert reasons(found) == [SplitReason.SPLIT_IN_PROGRESS if is_blocked else SplitReason.MSG_RATE]


@pytest.mark.parametrize(
    ("boundaries", "reason"),
    [
        (None, SplitReason.NO_SPLIT_BOUNDARY),
        ([], SplitReason.NO_SPLIT_BOUNDARY),
        ([0], SplitReason.SPLIT_BOUNDARY_AT_END),
    ],
)
def test_split_without_a_place_counts_as_a_hit(boundaries: list[int] | None, reason: Reason) -> None:
    found = find_for_extensible([BUSY], {}, {}, lambda _name, _range: boundaries, SETTINGS)
    assert (found.splits, reasons(found), found.hits) == ((), [reason], {BUSY.name: 1})


def test_other_splits_may_have_several_boundaries() -> None:
    split, verdict = divide_bundle(BUSY, SplitReason.ADMIN_SPLIT, lambda _name, _range: [10, 20], SETTINGS)
    assert split is not None
    assert (split.boundaries, verdict.acted, verdict.why["parts"]) == ((10, 20), True, 3)
    assert verdict.sentence() == "Split into 3 because an operator ordered it"


def cut_at(*boundaries: int) -> Divide:
    return lambda _name, _range: list(boundaries)


def test_both_rules_cut_at_several_boundaries_and_count_every_part() -> None:
    full = replace(SETTINGS, namespace_maximum_bundles=4)
    for found in (
        find_for_modular([BUSY, OTHER], {"t/ns": 2}, cut_at(2000, 10, 10, 20), full),
        find_for_extensible([BUSY, OTHER], {}, {"t/ns": 2}, cut_at(2000, 10, 10, 20), full),
    ):
        assert [split.boundaries for split in found.splits] == [(10, 20)]
        assert reasons(found) == [SplitReason.MSG_RATE, SplitReason.NAMESPACE_HAS_MAXIMUM_BUNDLES]
        assert found.verdicts[1].why["bundles"] == 4


@pytest.mark.parametrize(
    ("room", "boundaries"),
    [(1, (30,)), (2, (20, 40)), (3, (20, 30, 40)), (4, (20, 30, 40, 50)), (5, (10, 20, 30, 40, 50))],
)
def test_surplus_boundaries_are_thinned_evenly(room: int, boundaries: tuple[int, ...]) -> None:
    full = replace(SETTINGS, namespace_maximum_bundles=2 + room)
    found = find_for_modular([BUSY], {"t/ns": 2}, cut_at(10, 20, 30, 40, 50), full)
    assert found.splits[0].boundaries == boundaries
    wanted = f"Split into {room + 1}, not 6, because its 101 messages/s are more than"
    assert found.verdicts[0].sentence().startswith(wanted) == (room < 5)


def test_owners_report_decides_about_a_bundle_reported_twice() -> None:
    theirs = replace(BUSY, msg_rate=1.0, is_owned=False)
    for candidates in ([theirs, BUSY], [BUSY, theirs]):
        assert reasons(modular(*candidates)) == [SplitReason.MSG_RATE]
    assert reasons(modular(replace(BUSY, is_owned=False), replace(BUSY, msg_rate=1.0))) == [
        SplitReason.BELOW_SPLIT_LIMITS
    ]


def test_blocking_limit_is_named_with_the_exceeded_limit() -> None:
    found = modular(BUSY, counts={"t/ns": 128})
    assert found.verdicts[0].sentence() == (
        "No split, though it is above loadBalancerNamespaceBundleMaxMsgRate (5 topics, 0 sessions, 101 messages/s,"
        " 0 MiB/s), because its namespace has 128 bundles already, those of this round included, and"
        " loadBalancerNamespaceMaximumBundles 128"
    )
    found = extensible(BUSY, replace(OTHER, sessions=101), max_number_of_bundles_to_split_per_cycle=1)
    assert found.verdicts[1].sentence() == (
        "No split now, though it is above loadBalancerNamespaceBundleMaxSessions (5 topics, 101 sessions,"
        " 101 messages/s, 0 MiB/s), because its broker splits others already,"
        " loadBalancerMaxNumberOfBundlesToSplitPerCycle 1"
    )


def test_full_round_keeps_hits_of_a_cold_bundle() -> None:
    found = extensible(
        BUSY, replace(OTHER, msg_rate=1.0), hits={OTHER.name: 2}, max_number_of_bundles_to_split_per_cycle=1
    )
    assert reasons(found) == [SplitReason.MSG_RATE, SplitReason.BELOW_SPLIT_LIMITS]
    assert found.hits == {OTHER.name: 2}


def hot_topic(*loads: float, candidate: SplitCandidate = BUSY, by_throughput: bool = False) -> Splits:
    topics = [
        TopicLoad(i, 0.0 if by_throughput else load, load if by_throughput else 0.0, f"t{i}")
        for i, load in enumerate(loads)
    ]
    return find_for_modular([candidate], {}, halves, SETTINGS, {candidate.name: topics})


def test_bundle_with_one_hot_topic_is_not_split() -> None:
    found = hot_topic(1.0, 188.0, 11.0)
    assert (found.splits, reasons(found)) == ((), [SplitReason.ONE_HOT_TOPIC])
    assert found.verdicts[0].sentence() == (
        "No split can help because one topic, t1, carries 94 % of its 101 messages/s and is by itself above"
        " loadBalancerNamespaceBundleMaxMsgRate 100: partition the topic"
    )
    wide = replace(BUSY, msg_rate=0.0, throughput=200.0 * MIB)
    found = hot_topic(190.0 * MIB, 10.0 * MIB, candidate=wide, by_throughput=True)
    assert found.verdicts[0].sentence() == (
        "No split can help because one topic, t0, carries 95 % of its 200 MiB/s and is by itself above"
        " loadBalancerNamespaceBundleMaxBandwidthMbytes 100: partition the topic"
    )


@pytest.mark.parametrize(
    ("loads", "candidate"),
    [
        ((), BUSY),
        ((100.0, 1.0), BUSY),  # without it, both parts are within the limit
        ((179.0, 21.0), BUSY),  # without it, a tenth and more of the load is gone
        ((190.0,), replace(BUSY, msg_rate=250.0)),  # nothing is known of the rest
        ((190.0, 10.0), replace(BUSY, topics=101)),  # it is split for its topics
    ],
)
def test_helpful_split_ignores_the_hottest_topic(loads: tuple[float, ...], candidate: SplitCandidate) -> None:
    assert len(hot_topic(*loads, candidate=candidate).splits) == 1


def test_only_topic_above_a_limit_should_be_partitioned() -> None:
    alone = modular(replace(BUSY, topics=1)).verdicts[0]
    assert alone.sentence() == (
        "No split can help because its only topic carries all of it and is above loadBalancerNamespaceBundleMaxMsgRate"
        " (0 sessions, 101 messages/s, 0 MiB/s): partition the topic"
    )
    for candidate in (replace(BUSY, topics=0), replace(BUSY, topics=1, msg_rate=1.0)):
        (verdict,) = modular(candidate).verdicts
        assert verdict.sentence() == f"No split because a split needs two topics, and it has {candidate.topics}"


def test_requested_algorithm_overrides_the_configured_one() -> None:
    assert split_algorithm(SETTINGS)[0] == "range_equally_divide"
    assert split_algorithm(SETTINGS, "topic_count_equally_divide", "--split")[0] == "topic_count_equally_divide"


def test_unsupported_algorithm_is_refused_by_name() -> None:
    settings = replace(SETTINGS, supported_split_algorithms=("topic_count_equally_divide",))
    with pytest.raises(UnknownStrategyError) as refused:
        split_algorithm(settings)
    assert str(refused.value) == (
        "defaultNamespaceBundleSplitAlgorithm 'range_equally_divide': not one of"
        " supportedNamespaceBundleSplitAlgorithms, topic_count_equally_divide: add it there or choose another"
    )
    with pytest.raises(UnknownStrategyError, match=r"^--split 'flow_or_qps_equally_divide': not one of"):
        split_algorithm(settings, "flow_or_qps_equally_divide", "--split")
    with pytest.raises(UnknownStrategyError, match="which is empty"):
        split_algorithm(replace(SETTINGS, supported_split_algorithms=()))


def test_pulsars_algorithms_are_supported_by_default() -> None:
    assert set(SETTINGS.supported_split_algorithms) == SPLIT_ALGORITHMS.keys()


@pytest.mark.parametrize(
    ("asked", "positions", "complaint"),
    [
        ("no_such", (), "splitAlgorithmName 'no_such': expected one of"),
        ("specified_positions_divide", (), "needs positions"),
        ("range_equally_divide", (7,), "takes no positions"),
    ],
)
def test_algorithm_needs_its_input(asked: str, positions: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(UnknownStrategyError, match=complaint):
        Divider.of(SETTINGS, asked, positions)


@pytest.mark.parametrize(
    ("asked", "positions", "topics", "boundaries"),
    [
        ("", (), (), [500]),
        ("topic_count_equally_divide", (), (10, 20), [15]),
        ("topic_count_equally_divide", (), (), None),
        ("specified_positions_divide", (7,), (), [7]),
    ],
)
def test_divider_divides_without_topics_if_possible(
    asked: str, positions: tuple[int, ...], topics: tuple[int, ...], boundaries: list[int] | None
) -> None:
    divider = Divider.of(SETTINGS, asked, positions)
    assert divider.divide(LEFT, [TopicLoad(each) for each in topics]) == boundaries
    assert divider.needs_topics is asked.startswith("topic_count")
