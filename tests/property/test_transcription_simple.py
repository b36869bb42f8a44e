"""The vectorised SimpleLoadManagerImpl compared with a literal transcription, on random units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import bundle, report, snapshot
from support.transcription_simple import DEFAULT, Quota, Unit, fill_up

from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.placement import placement_strategy
from loadmanager.core.strategies.placement.weighted_random_selection import compute_weights
from loadmanager.core.strategies.ranked_brokers import rank_brokers

PLACEMENTS = 6
QUOTAS: list[Quota] = [
    (0, 0, 0, 0, 0),
    DEFAULT,
    (500, 500, 1e6, 1e6, 10),
    (5, 5, 10_000, 10_000, 200),
    (1e4, 1e4, 1e6, 1e6, 100),
]


def parts(most: int) -> st.SearchStrategy[tuple[float, float]]:
    """Draw usage and limit of one resource; a limit of 0 or less is unknown."""
    used = st.integers(0, 8).map(lambda eighths: eighths * most / 8)
    return st.tuples(used | st.floats(0, most, allow_nan=False), st.sampled_from([most, most, most * 2, 0, -1]))


units = st.tuples(
    st.tuples(parts(400), parts(4096), parts(8192), parts(100_000), parts(100_000)),
    st.lists(st.sampled_from(QUOTAS), max_size=4),
    st.lists(st.sampled_from(QUOTAS), max_size=2),
)
clusters = st.lists(units, min_size=1, max_size=6)
Described = list[tuple[tuple[tuple[float, float], ...], list[Quota], list[Quota]]]


def both(described: Described) -> tuple[Snapshot, dict[str, Quota], list[Unit]]:
    """Return the snapshot, the quotas of its bundles, and the units."""
    reports, slow = {}, []
    quotas: dict[str, Quota] = {}
    assigned: dict[str, str] = {}
    for i, (usage, loaded, promised) in enumerate(described):
        names = [bundle(100 * i + k) for k in range(len(loaded) + len(promised))]
        quotas |= dict(zip(names, [*loaded, *promised], strict=True))
        assigned |= dict.fromkeys(names[len(loaded) :], f"b{i}")
        cpu, memory, direct, bandwidth_in, bandwidth_out = usage
        reports[f"b{i}"] = report(
            names[: len(loaded)],
            cpu=cpu,
            memory=memory,
            direct_memory=direct,
            bandwidth_in=bandwidth_in,
            bandwidth_out=bandwidth_out,
        )
        slow.append(Unit(f"b{i}", usage, list(loaded), list(promised)))
    return snapshot(reports, preallocated=assigned), quotas, slow


def remembered(quotas: dict[str, Quota]) -> dict[str, object]:
    return {"last_update_ms": 0, "quotas": {name: list(quota) for name, quota in quotas.items()}}


@pytest.mark.parametrize("strategy", ["leastLoadedServer", "leastMsgPerSecond"])
@given(described=clusters, cursor=st.integers(0, 12), under=st.sampled_from([0, 50, 90]))
def test_sequential_placement_equals_pulsars(strategy: str, described: Described, cursor: int, under: int) -> None:
    settings = PlannerSettings(placement_strategy=strategy, broker_underloaded_threshold_percentage=under)
    there, quotas, slow = both(described)
    by_messages = strategy == "leastMsgPerSecond"
    visited = sorted(slow, key=lambda unit: int(unit.messages() if by_messages else unit.load()))
    fast, projection, rows = placement_strategy(settings)[1], Projection(there), np.arange(len(slow))
    state: dict[str, object] = {"cursor": cursor, "model": remembered(quotas)}
    for number in range(PLACEMENTS):
        placement = fast.place(rows, None, projection, state, np.random.default_rng(0))
        state = placement.state
        expected = fill_up(visited, cursor + number, under, 85, by_messages=by_messages)
        assert placement.broker is not None
        assert f"b{placement.broker}" == expected.name
        projection.move("tenant/other", None, None, placement.broker)
        expected.given.append(DEFAULT)


@given(described=clusters)
def test_weights_equal_pulsars(described: Described) -> None:
    there, quotas, slow = both(described)
    ranking = rank_brokers(there, {"model": remembered(quotas)}, PlannerSettings())
    assert compute_weights(ranking).tolist() == [unit.weight() for unit in slow]
