from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from support.builders import broker, bundle, report
from support.invariants import partition_violations

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import HASH_SPACE_END, BundleName, NamespaceName
from loadmanager.core.model.cluster_model import ClusterModel

HASHES = st.integers(0, HASH_SPACE_END)
BOUNDARIES = st.sets(st.integers(1, HASH_SPACE_END - 1), max_size=40).map(
    lambda inner: (0, *sorted(inner), HASH_SPACE_END)
)


@given(boundaries=BOUNDARIES, value=HASHES)
@example(boundaries=(0, HASH_SPACE_END), value=HASH_SPACE_END)
def test_every_hash_has_exactly_one_bundle(boundaries: tuple[int, ...], value: int) -> None:
    bundles = NamespaceBundles(boundaries)
    ranges = bundles.ranges()
    assert [i for i, bundle_range in enumerate(ranges) if value in bundle_range] == [bundles.index_of_hash(value)]
    assert partition_violations(ranges) == []


@given(boundaries=BOUNDARIES, data=st.data())
def test_hashes_beside_a_boundary_have_exactly_one_bundle(boundaries: tuple[int, ...], data: st.DataObject) -> None:
    boundary = data.draw(st.sampled_from(boundaries))
    ranges = NamespaceBundles(boundaries).ranges()
    for value in {max(0, boundary - 1), boundary, min(HASH_SPACE_END, boundary + 1)}:
        assert sum(value in bundle_range for bundle_range in ranges) == 1


@given(bundles=st.integers(1, 3000))
def test_equal_bundles_cover_the_hash_space_and_are_found_by_their_names(bundles: int) -> None:
    namespace = NamespaceBundles(equal_boundaries(bundles))
    assert partition_violations(namespace.ranges()) == []
    for index in {0, bundles // 2, bundles - 1}:
        name = BundleName(NamespaceName("t", "ns"), namespace.range_at(index))
        assert namespace.find_index(BundleName.parse(str(name)).range) == index


@given(boundaries=BOUNDARIES, topic=st.text(max_size=50), function=st.sampled_from(HashFunction))
def test_every_topic_has_a_bundle(boundaries: tuple[int, ...], topic: str, function: HashFunction) -> None:
    bundles = NamespaceBundles(boundaries, function)
    assert 0 <= bundles.index_of_topic(f"persistent://t/ns/{topic}") < len(bundles)


@given(samples=st.lists(st.integers(0, 1000).map(float), min_size=1, max_size=40))
def test_long_term_average_of_few_samples_is_their_mean(samples: list[float]) -> None:
    model = ClusterModel()
    for sample in samples:
        model.apply_report(broker("a"), report({bundle(1): (sample, 0, 0, 0)}))
    history = model.bundle_averages("tenant/ns")[bundle(1)]
    assert abs(history.long[0] - sum(samples) / len(samples)) < 1e-9 * 1000
    assert (history.long_samples, history.short_samples) == (len(samples), min(10, len(samples)))
