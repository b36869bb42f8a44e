"""Which bundles are split, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadmanager.core.names import HASH_SPACE_END, BundleRange
from loadmanager.core.plan import Reason
from loadmanager.core.settings import PlannerSettings
from loadmanager.core.splitting import SPLIT_ALGORITHMS
from loadmanager.core.splitting.base import MIB, PositionsRequiredError, TopicLoad, are_inside, is_splittable
from loadmanager.core.splitting.finder import (
    SplitCandidate,
    Splits,
    divide_bundle,
    find_for_extensible,
    find_for_modular,
    find_reason,
)
from loadmanager.core.splitting.specified_positions_divide import divide_at

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
def test_topics_are_counted_off_in_the_middle(hashes: list[int], boundary: int) -> None:
    assert divide("topic_count_equally_divide", LEFT, hashes) == [boundary]


def test_positions_may_be_there_twice_and_outside() -> None:
    asked = [500, 0, 200, 1000, 200]
    assert divide("specified_positions_divide", LEFT, [1, 2], asked) == [200, 200, 500]
    assert asked == [500, 0, 200, 1000, 200]
    assert divide("specified_positions_divide", LEFT, [1, 2], [0, 1000]) is None
    assert divide_at(LEFT, [1, 2]) == [1, 2]
    with pytest.raises(PositionsRequiredError):
        divide_at(LEFT, [])


def flow(*topics: TopicLoad) -> list[int] | None:
    return SPLIT_ALGORITHMS["flow_or_qps_equally_divide"](LEFT, topics, [], SETTINGS)


def test_load_is_divided_only_from_the_limit_and_its_margin_on() -> None:
    assert flow(TopicLoad(10, 54.0), TopicLoad(20, 55.0)) is None
    assert flow(TopicLoad(10, 55.0), TopicLoad(20, 56.0)) == [16]
    assert flow(TopicLoad(10, 0, 55.0 * MIB), TopicLoad(20, 0, 56.0 * MIB)) == [16]


def test_load_of_one_hash_alone_is_not_divided_and_topics_without_load_do_not_count() -> None:
    assert flow() is None
    assert flow(TopicLoad(10, 500.0), TopicLoad(10, 500.0)) is None
    assert flow(TopicLoad(10, 500.0), TopicLoad(20)) is None


def test_topics_of_one_hash_have_the_load_of_the_last() -> None:
    assert flow(TopicLoad(10, 200.0), TopicLoad(10, 1.0), TopicLoad(20, 2.0)) == []
    assert flow(TopicLoad(10, 1.0), TopicLoad(10, 60.0), TopicLoad(20, 60.0)) == [11, 16]


def test_ends_are_no_place_to_cut() -> None:
    assert not are_inside(LEFT, [0, 500])
    assert not are_inside(LEFT, [500, 1000])
    assert are_inside(LEFT, [1, 999])
    assert not is_splittable(BundleRange(4, 5))
    assert is_splittable(BundleRange(4, 6))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topics": 101}, Reason.TOPICS),
        ({"topics": 100}, None),
        ({"sessions": 101}, Reason.SESSIONS),
        ({"sessions": 100}, None),
        ({"msg_rate": 100.5}, Reason.MSG_RATE),
        ({"msg_rate": 100.0}, None),
        ({"throughput": 100.0 * MIB + 1}, Reason.BANDWIDTH),
        ({"throughput": 100.0 * MIB}, None),
    ],
)
def test_at_a_limit_is_not_above_it(change: dict[str, float], reason: Reason | None) -> None:
    quiet = replace(BUSY, msg_rate=0.0)
    assert find_reason(replace(quiet, **change), SETTINGS) is reason  # type: ignore[arg-type]


def test_sessions_may_have_no_limit_and_a_high_bandwidth_does_not_overflow() -> None:
    settings = replace(SETTINGS, namespace_bundle_max_sessions=0, namespace_bundle_max_bandwidth_mbytes=4096)
    assert find_reason(replace(BUSY, msg_rate=0.0, sessions=10**6, throughput=4095.0 * MIB), settings) is None


def test_the_modular_rule_splits_at_once_and_answers_by_name() -> None:
    found = modular(OTHER, BUSY, OTHER)
    assert [(split.bundle, split.boundaries) for split in found.splits] == [
        (BUSY.name, (500,)),
        (OTHER.name, (1000 + (HASH_SPACE_END - 1000) // 2,)),
    ]
    assert reasons(found) == [Reason.MSG_RATE] * 2


def test_the_modular_rule_passes_over() -> None:
    found = modular(replace(BUSY, topics=1), replace(OTHER, msg_rate=1.0))
    assert (found.splits, reasons(found)) == ((), [Reason.TOO_FEW_TOPICS, Reason.BELOW_SPLIT_LIMITS])


def test_a_namespace_is_full_with_the_splits_of_this_round() -> None:
    found = modular(BUSY, OTHER, counts={"t/ns": 2}, maximum=3)
    assert reasons(found) == [Reason.MSG_RATE, Reason.NAMESPACE_HAS_MAXIMUM_BUNDLES]
    tiny = replace(BUSY, range=BundleRange(4, 5))
    found = modular(tiny, OTHER, counts={"t/ns": 2}, maximum=3)
    assert reasons(found) == [Reason.RANGE_NOT_SPLITTABLE, Reason.NAMESPACE_HAS_MAXIMUM_BUNDLES]


def test_the_extensible_rule_does_not_count_what_it_cannot_split() -> None:
    tiny = replace(BUSY, range=BundleRange(4, 5))
    for candidate, reason in [
        (replace(BUSY, topics=1), Reason.TOO_FEW_TOPICS),
        (replace(BUSY, is_owned=False), Reason.NOT_OWNED),
        (replace(BUSY, range=None), Reason.RANGE_NOT_SPLITTABLE),
        (tiny, Reason.RANGE_NOT_SPLITTABLE),
    ]:
        found = extensible(candidate, hits={BUSY.name: 2, "gone": 3})
        assert (found.splits, reasons(found), found.hits) == ((), [reason], {BUSY.name: 2})


def test_hits_are_counted_in_succession() -> None:
    threshold = {"namespace_bundle_split_condition_hit_count_threshold": 3}
    found = extensible(BUSY, hits={BUSY.name: 2}, **threshold)
    assert (found.splits, reasons(found), found.hits) == ((), [Reason.TOO_FEW_SPLIT_HITS], {BUSY.name: 3})
    assert "hits" in found.verdicts[0].why
    found = extensible(replace(BUSY, msg_rate=1.0), hits={BUSY.name: 3}, **threshold)
    assert (reasons(found), found.hits) == ([Reason.BELOW_SPLIT_LIMITS], {})
    found = extensible(BUSY, hits={BUSY.name: 3}, **threshold)
    assert ([split.bundle for split in found.splits], found.hits) == ([BUSY.name], {})


def test_a_cycle_has_a_maximum_and_later_bundles_are_not_counted() -> None:
    found = extensible(BUSY, OTHER, hits={OTHER.name: 7}, max_number_of_bundles_to_split_per_cycle=1)
    assert reasons(found) == [Reason.MSG_RATE, Reason.SPLIT_CYCLE_FULL]
    assert found.hits == {OTHER.name: 7}


def test_a_full_namespace_keeps_the_hits() -> None:
    found = extensible(BUSY, OTHER, namespace_maximum_bundles=2)
    assert reasons(found) == [Reason.MSG_RATE, Reason.NAMESPACE_HAS_MAXIMUM_BUNDLES]
    assert found.hits == {OTHER.name: 1}


@pytest.mark.parametrize(
    ("namespace", "under_way", "is_blocked"),
    [
        ("t/ns", BundleRange(0, 500), True),
        ("t/ns", BundleRange(500, 1000), True),
        ("t/ns", RIGHT, False),
        ("t/n", LEFT, False),
    ],
)
def test_a_split_under_way_blocks_those_that_share_an_end(
    namespace: str, under_way: BundleRange, *, is_blocked: bool
) -> None:
    found = find_for_extensible([BUSY], {}, {}, halves, SETTINGS, [(namespace, under_way)])
    assert reasons(found) == [Reason.SPLIT_UNDER_WAY if is_blocked else Reason.MSG_RATE]


@pytest.mark.parametrize(
    ("boundaries", "reason"),
    [
        (None, Reason.NO_SPLIT_BOUNDARY),
        ([], Reason.NO_SPLIT_BOUNDARY),
        ([0], Reason.SPLIT_BOUNDARY_AT_END),
        ([10, 20], Reason.TOO_MANY_SPLIT_BOUNDARIES),
    ],
)
def test_an_extensible_split_takes_one_boundary_inside(boundaries: list[int] | None, reason: Reason) -> None:
    found = find_for_extensible([BUSY], {}, {}, lambda _name, _range: boundaries, SETTINGS)
    assert (found.splits, reasons(found), found.hits) == ((), [reason], {BUSY.name: 1})


def test_other_splits_may_have_several_boundaries() -> None:
    split, verdict = divide_bundle(BUSY, Reason.ADMIN_SPLIT, lambda _name, _range: [10, 20], SETTINGS)
    assert split is not None
    assert (split.boundaries, verdict.acted, verdict.why["parts"]) == ((10, 20), True, 3)
    assert verdict.sentence() == "Split into 3 because it was asked for"
