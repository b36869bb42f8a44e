"""The grid of a timeline compared with a model, and its drawing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.builders import broker, bundle, owned, releasing

from loadmanager.core.diagnosis.timeline import (
    MOST,
    UNKNOWN,
    Grid,
    LeaderMoment,
    Moments,
    MoveMoment,
    SplitMoment,
    draw_brokers,
    draw_bundles,
    throughput_as_figures,
    throughput_of,
    usage_as_figures,
)
from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import FREE, NamespaceState, Ownership

STEP_MS = 1_000
SPAN_MS = 48 * STEP_MS
NAMES = [f"n{number:03}" for number in range(6)]


def at(grid: Grid, from_ms: int, until_ms: int, each: int = 1) -> dict[str, list[int | None]]:
    """Return the figures in each column by name, None for unknown ones."""
    names, cells, _ = grid.over(from_ms, until_ms, each)
    return {
        name: [None if cell == 0 else cell - 1 for cell in cells[:, row].tolist()] for row, name in enumerate(names)
    }


def test_step_keeps_the_higher_figure_and_unknown_is_not_0() -> None:
    grid = Grid(SPAN_MS, STEP_MS, 10_000)
    names = ["b", "a"]
    grid.put(names, [5, 0], 10_000)
    grid.put(names, [3, 7], 10_999)
    grid.put(["a"], [9], 12_000)
    assert at(grid, 10_000, 13_000) == {"a": [7, None, 9], "b": [5, None, None]}
    assert at(grid, 10_500, 13_000, 2) == {"a": [7, 9], "b": [5, None]}
    assert grid.over(11_500, 13_000, 5)[2] == 10_000
    assert at(grid, 13_000, 10_000) == {"a": [], "b": []}


def test_figures_older_than_the_span_are_dropped() -> None:
    grid = Grid(SPAN_MS, STEP_MS, 10_000)
    grid.put(["a"], [1], 0)
    grid.put(["a"], [2], SPAN_MS)
    grid.put(["a"], [3], 0)
    grid.put(["a"], [4], 1_000)
    assert at(grid, 0, SPAN_MS + 1_000)["a"] == [None, 4, *[None] * 46, 2]


def test_full_grid_drops_outdated_names_and_then_doubles_its_steps() -> None:
    grid = Grid(SPAN_MS, STEP_MS, 64 * 48)
    grid.put([f"a{number}" for number in range(60)], [1] * 60, 0)
    grid.put([f"b{number}" for number in range(60)], [2] * 60, 2 * SPAN_MS)
    assert (len(grid._row_of), grid.cells, grid.step_ms) == (60, 64 * 48, STEP_MS)
    grid.put([f"c{number}" for number in range(60)], [3] * 60, 2 * SPAN_MS + 1_000)
    assert (len(grid._row_of), grid.step_ms) == (120, 2 * STEP_MS)
    grid.put([f"d{number:03}" for number in range(60)], [4] * 60, 2 * SPAN_MS + 2_000)
    assert (len(grid._row_of), grid.step_ms) == (128, 2 * STEP_MS)  # no room for the others
    assert grid.cells <= 64 * 48
    shown = at(grid, 2 * SPAN_MS, 2 * SPAN_MS + 4_000)
    assert (shown["b0"], shown["c59"], shown["d000"]) == ([2, None], [3, None], [None, 4])
    assert "d059" not in shown


@given(
    st.lists(
        st.tuples(
            st.integers(0, 200), st.dictionaries(st.sampled_from(NAMES), st.integers(0, MOST), min_size=1, max_size=6)
        ),
        max_size=30,
    ),
    st.integers(1, 5),
    st.sampled_from([3 * 24, 6 * 48, 3 * 64 * 48]),
)
@example(
    [(0, {"n000": 0}), (48, dict.fromkeys(["n001", "n002", "n003"], 0)), (52, {"n000": 0}), (96, {"n000": 0})], 1, 72
)
def test_columns_keep_maxima_in_bounded_memory(
    puts: list[tuple[int, dict[str, int]]], each: int, most_cells: int
) -> None:
    grid = Grid(SPAN_MS, STEP_MS, most_cells)
    known: dict[str, dict[int, int]] = {name: {} for name in NAMES}
    newest = -1
    for second, figures in puts:
        grid.put(list(figures), list(figures.values()), second * STEP_MS)
        newest = max(newest, second * STEP_MS // grid.step_ms)
        there = at(grid, 0, 201_000, each)
        for name, put in figures.items():
            if name in there:  # otherwise there was no room
                known[name][second] = max(put, known[name].get(second, 0))
        assert grid.cells <= most_cells
    oldest_s = max((newest * grid.step_ms - SPAN_MS) // STEP_MS + grid.step_ms // STEP_MS, 0)
    wide_s = each * grid.step_ms // STEP_MS
    for name, column in at(grid, 0, 201_000, each).items():
        for place, figure in enumerate(column):
            seconds = range(place * wide_s, (place + 1) * wide_s)
            surely = [known[name][s] for s in seconds if s in known[name] and s >= oldest_s + grid.step_ms // STEP_MS]
            perhaps = [known[name][s] for s in seconds if s in known[name]]
            assert figure is None or figure in perhaps
            assert not surely or (figure is not None and figure >= max(surely))


def test_throughput_figures_are_within_6_percent() -> None:
    throughput = np.array([0.0, 1.0, 1e3, 1.5e6, 3e9, 1e30])
    found = throughput_of(throughput_as_figures(throughput))
    assert found[0] == 0
    assert found[1:5] == pytest.approx(throughput[1:5], rel=0.06)
    assert throughput_as_figures(throughput)[-1] == MOST
    assert usage_as_figures(np.array([-np.inf, np.nan, 0.4, 99.6, 1e9])).tolist() == [0, 0, 0, 100, MOST]


def test_row_of_several_brokers_shows_the_highest() -> None:
    grid = Grid(SPAN_MS, STEP_MS, 10_000)
    grid.put(["a", "b", "c", "d"], [10, 90, 30, 20], 4_000)
    grid.put(["d"], [70], 5_000)
    drawn = draw_brokers(grid, 4_000, 7_000, 10, 2)
    assert (drawn.rows, drawn.sizes) == (("a … b", "c … d"), (2, 2))
    assert drawn.cells.tolist() == [[90, UNKNOWN, UNKNOWN], [30, 70, UNKNOWN]]
    assert (drawn.from_ms, drawn.step_ms, drawn.scale) == (4_000, 1_000, None)
    assert draw_brokers(grid, 4_500, 6_500, 2, 2).step_ms == 2_000  # three columns of one second would cover it
    alone = draw_brokers(grid, 4_000, 6_000, 1, 10)
    assert (alone.rows, alone.step_ms) == (("a", "b", "c", "d"), 2_000)
    assert alone.cells.tolist() == [[10], [90], [30], [70]]


def test_hottest_bundles_have_own_rows_and_cold_ones_share() -> None:
    grid = Grid(SPAN_MS, STEP_MS, 10_000)
    names = [f"t/{namespace}/0x{number}0000000_0x{number + 1}0000000" for namespace in "ab" for number in range(5)]
    load = np.array([1e3, 2e3, 1e6, 1e3, 1e3, 1e3, 1e3, 4e6, 1e3, 0])
    grid.put(names, throughput_as_figures(load), 1_000)
    drawn = draw_bundles(grid, 1_000, 2_000, 1, 5)
    assert drawn.rows == (
        "t/a/0x00000000_0x20000000",
        "t/a/0x20000000_0x30000000",
        f"{names[3]} … {names[6]}",
        "t/b/0x20000000_0x30000000",
        "t/b/0x30000000_0x50000000",
    )
    assert drawn.sizes == (2, 1, 4, 1, 2)
    assert drawn.scale == pytest.approx(4e6, rel=0.06)
    assert drawn.cells[:, 0].tolist() == [0, 25, 0, 100, 0]
    assert len(draw_bundles(grid, 1_000, 2_000, 1, 100).rows) == 10


@given(st.lists(st.integers(0, MOST), min_size=1, max_size=40), st.integers(1, 45))
@example([0] * 30 + [MOST] * 5 + [0] * 5, 10)  # the hottest are adjacent: the rest is halved
def test_rows_are_all_used_and_cover_every_name(figures: list[int], rows: int) -> None:
    grid = Grid(SPAN_MS, STEP_MS, 10_000)
    grid.put([f"t/ns/{number:02}" for number in range(len(figures))], figures, 1_000)
    drawn = draw_bundles(grid, 1_000, 2_000, 1, rows)
    assert len(drawn.rows) == len(drawn.sizes) == len(drawn.cells) == min(rows, len(figures))
    assert sum(drawn.sizes) == len(figures)
    assert min(drawn.sizes) >= 1


def test_unknown_figures_are_not_drawn() -> None:
    grid = Grid(SPAN_MS, STEP_MS, 10_000)
    for draw in (draw_brokers, draw_bundles):
        assert draw(grid, 0, 10_000, 5, 5).rows == ()
    grid.put(["a"], [1], 1_000)
    grid.put(["b"], [1], 40_000)
    assert draw_brokers(grid, 39_000, 41_000, 5, 5).rows == ("b",)


A, B = broker("a"), broker("b")
NS = NamespaceName.parse("tenant/ns")
WHOLE = NamespaceBundles((0, 0x80000000, 0xFFFFFFFF))
FIRST, SECOND = "tenant/ns/0x00000000_0x80000000", "tenant/ns/0x80000000_0xffffffff"


def state(*ownerships: Ownership, boundaries: tuple[int, ...] = WHOLE.boundaries) -> NamespaceState:
    return NamespaceState(NS, NamespaceBundles(boundaries), ownerships)


def test_change_of_owner_is_a_move() -> None:
    moments = Moments(10)
    moments.changed(state(FREE, owned(A)), state(owned(A), owned(A)), 1)
    moments.changed(state(owned(A), owned(A)), state(releasing(A, B), owned(A)), 2)
    assert list(moments.moves) == []
    moments.changed(state(releasing(A, B), owned(A)), state(owned(B), FREE), 3)
    assert [(each.bundle, each.source, each.destination) for each in moments.moves] == [
        (FIRST, A.broker, B.broker),
        (SECOND, A.broker, None),
    ]
    assert moments.moves[0].reason == releasing(A, B).reason
    assert moments.moves[1].at_ms == 3


def test_new_boundary_is_a_split_and_a_missing_one_is_not() -> None:
    moments = Moments(10)
    cut = state(FREE, FREE, FREE, FREE, boundaries=(0, 1, 2, 0x80000000, 0xFFFFFFFF))
    moments.changed(state(FREE, FREE), cut, 5)
    assert list(moments.splits) == [SplitMoment(5, FIRST)]
    moments.changed(cut, state(FREE, FREE), 6)
    assert len(moments.splits) == 1


def test_terms_are_noted_once_after_recorded_ones() -> None:
    moments = Moments(2)
    moments.leads("n1", 4, 10)
    moments.leads("n1", 4, 11)
    moments.recall(
        [MoveMoment(1, bundle(1), "a", "b", "x"), MoveMoment(2, bundle(2), "a", None, "x")],
        [SplitMoment(1, bundle(3))],
        [LeaderMoment(2, "n2", 3), LeaderMoment(9, "n1", 4)],
    )
    assert list(moments.leaders) == [LeaderMoment(2, "n2", 3), LeaderMoment(10, "n1", 4)]
    assert len(moments.moves) == 2
    assert list(moments.splits) == [SplitMoment(1, bundle(3))]
    moments.leads("n3", 5, 20)
    assert [each.epoch for each in moments.leaders] == [4, 5]
