"""How long reports stand: many drawn histories, one day after the other, and whatever their rows come in."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.averaged import Averaged, averaged_of
from support.drawn_fleet import Drawn, Entries
from support.frames import DAY_MS, HOUR_MS, START_MS
from support.plain_windows import Bundle, Happened, PlainWindow, plain_windows

from loadmanager.history.schemas import LOAD_COLUMNS, RESOURCE_COLUMNS
from loadmanager.pipeline.standing import STANDS_MS, ends_of, standing

HISTORIES = 60
SHORTEST = WINDOW_S = 300
WINDOW_MS = WINDOW_S * 1000


def drawn_histories(seed: int = 0, count: int = HISTORIES) -> Entries:
    """One each day; the last one is what the range ends with."""
    entries: Entries = []
    for day in range(count):
        rng = np.random.default_rng([seed, day])
        begin_ms = START_MS + day * DAY_MS + int(rng.integers(0, 3600)) * 1000
        entries += Drawn(rng, begin_ms, epoch=1 + day * 1000).go_on(steps=80)
    return entries


@dataclass(frozen=True)
class Drew:
    """`clean_bundle_reports`, `clean_broker_reports` and `events`, as far as windows need them."""

    bundles: pa.Table
    brokers: pa.Table
    events: pa.Table

    def averaged(self, between: tuple[int, int] | None = None) -> Averaged:
        return averaged_of(self.bundles, self.brokers, self.events, END_MS, between)

    def changed(self, change: Callable[[pa.Table], pa.Table]) -> Drew:
        return Drew(change(self.bundles), change(self.brokers), change(self.events))


def tables_of(entries: Entries) -> Drew:
    bundles, brokers, events = [], [], []
    for each in entries:
        keys = {"at_ms": each.at_ms, "epoch": each.epoch, "sequence": each.sequence}
        if isinstance(each, Happened):
            events.append({**keys, "kind": each.kind, "subject": each.subject})
            continue
        resources = dict.fromkeys(RESOURCE_COLUMNS, 0.0) | {"cpu_usage": each.cpu, "cpu_limit": 1.0}
        total = dict(zip(LOAD_COLUMNS, each.total(), strict=True))
        brokers.append({**keys, "broker": each.broker, **resources, **total})
        for (namespace, lower, upper), load in each.bundles.items():
            where = {"namespace": namespace, "range_lower": lower, "range_upper": upper}
            bundles.append(
                {**keys, **where, **dict(zip(LOAD_COLUMNS, load, strict=True)), "topics": int(load[0]), "sessions": 2}
            )
    return Drew(*(pa.Table.from_pylist(rows) for rows in (bundles, brokers, events)))


@dataclass
class Found:
    bundles: list[dict[str, Any]]
    brokers: list[dict[str, Any]]
    namespaces: list[dict[str, Any]]


def found_in(made: Averaged) -> Found:
    """Windows of 5 minutes, in an order of their own."""
    short = (SHORTEST,)
    tables = made.bundle_windows(short), made.broker_windows(short), made.namespace_windows(short)
    return Found(*(in_order(table) for table in tables))


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    text = [name for name in ("bundle", "broker", "namespace") if name in rows.column_names]
    numbers = [name for name in ("from_ms", "covered_ms", "n") if name in rows.column_names]
    return sorted(rows.to_pylist(), key=lambda row: [row[name] for name in ("start_ms", *text, *numbers)])


ENTRIES = drawn_histories()
END_MS = (ENTRIES[-1].at_ms + ENTRIES[-40].at_ms) // 2 + 1
"""In the midst of the last one."""

DREW = tables_of([each for each in ENTRIES if each.at_ms < END_MS])


@pytest.fixture(scope="module")
def made() -> Averaged:
    return DREW.averaged()


@pytest.fixture(scope="module")
def found(made: Averaged) -> Found:
    return found_in(made)


def test_windows_of_drawn_histories_are_what_stood_moment_by_moment(found: Found) -> None:
    expected = plain_windows(ENTRIES, END_MS)
    bundles = {(name_of(bundle), start): window for (bundle, start), window in expected.bundles.items()}
    assert_as(found.bundles, "bundle", bundles)
    assert_as(found.brokers, "broker", expected.brokers)
    assert_as(found.namespaces, "namespace", expected.namespaces)
    for row in found.bundles:
        window = bundles[row["bundle"], row["start_ms"]]
        assert row["n"] == window.n
        assert [row[f"max_{name}"] for name in LOAD_COLUMNS] == window.highest
    for row in found.brokers:
        window = expected.brokers[row["broker"], row["start_ms"]]
        assert row["n"] == window.n
        assert row["mean_cpu"] == pytest.approx(window.cpu / window.covered_ms)
        assert row["bundles"] == pytest.approx(window.bundles_ms / window.covered_ms)
        assert [row[f"max_{name}"] for name in LOAD_COLUMNS] == window.highest
    for row in found.namespaces:
        assert row["bundles"] == len(expected.namespaces[row["namespace"], row["start_ms"]].names)


def assert_as(rows: list[dict[str, Any]], subject: str, expected: dict[tuple[str, int], PlainWindow]) -> None:
    by_key = {(row[subject], row["start_ms"]): row for row in rows}
    assert by_key.keys() == expected.keys()
    for key, window in expected.items():
        row = by_key[key]
        assert row["covered_s"] == window.covered_ms / 1000, key
        means = [load / window.covered_ms for load in window.load]
        assert [row[f"mean_{name}"] for name in LOAD_COLUMNS] == pytest.approx(means, rel=1e-12), key
        assert row["topics"] == pytest.approx(means[0], rel=1e-12)


def name_of(bundle: Bundle) -> str:
    return f"{bundle[0]}/0x{bundle[1]:08x}_0x{bundle[2]:08x}"


def test_nothing_is_covered_for_longer_than_its_window(found: Found) -> None:
    for row in [*found.bundles, *found.brokers, *found.namespaces]:
        assert 0 < row["covered_s"] <= WINDOW_S


def test_a_broker_is_covered_for_as_long_as_it_carries_and_has_no_more_bundles_than_it_carries(
    made: Averaged, found: Found
) -> None:
    carried: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for piece in made.pieces.to_pylist():
        carried[piece["broker"], piece["start_ms"]].append(piece)
    for row in found.brokers:
        pieces = sorted(carried[row["broker"], row["start_ms"]], key=lambda piece: piece["from_ms"])
        covered_ms, until_ms = 0, 0
        for piece in pieces:
            end_ms = piece["from_ms"] + piece["covered_ms"]
            covered_ms += max(0, end_ms - max(until_ms, piece["from_ms"]))
            until_ms = max(until_ms, end_ms)
        assert round(row["covered_s"] * 1000) >= covered_ms, row
        assert row["bundles"] <= len({piece["bundle"] for piece in pieces}) + 1e-9, row


def test_namespaces_add_up_to_what_brokers_add_up_to(found: Found) -> None:
    for figure in (*(f"mean_{name}" for name in LOAD_COLUMNS), "topics", "sessions"):
        sums: list[dict[int, float]] = []
        for rows in (found.bundles, found.namespaces, found.brokers):
            by_window: dict[int, float] = defaultdict(float)
            for row in rows:
                by_window[row["start_ms"]] += row[figure] * row["covered_s"]
            sums.append({start: total for start, total in by_window.items() if total})
        of_bundles, of_namespaces, of_brokers = sums
        assert of_namespaces == pytest.approx(of_bundles, rel=1e-12)
        assert of_brokers == pytest.approx(of_namespaces, rel=1e-12)


def test_nothing_stands_after_the_end_of_the_range(found: Found) -> None:
    last = max(row["start_ms"] for row in found.brokers)
    assert last == (END_MS - 1) // (WINDOW_S * 1000) * WINDOW_S * 1000
    for row in [*found.bundles, *found.brokers, *found.namespaces]:
        assert row["start_ms"] + row["covered_s"] * 1000 <= max(END_MS, row["start_ms"])


def assert_all_the_same(made: Averaged, expected: Averaged) -> None:
    assert in_order(made.pieces) == in_order(expected.pieces)
    for each, wanted in zip(vars(found_in(made)).values(), vars(found_in(expected)).values(), strict=True):
        assert_same(each, wanted)


def assert_same(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """But for the order in which bundles were added up."""
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        means = {name for name, value in wanted.items() if isinstance(value, float)}
        assert [row[name] for name in means] == pytest.approx([wanted[name] for name in means], rel=1e-12)
        assert all(row[name] == wanted[name] for name in row.keys() - means)


def between(from_ms: int, to_ms: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.filter((pc.field("at_ms") >= from_ms) & (pc.field("at_ms") < to_ms))


@pytest.mark.parametrize(("length_ms", "days"), [(WINDOW_MS, 1), (HOUR_MS, 8), (DAY_MS, HISTORIES)])
def test_it_does_not_matter_where_the_range_is_cut(made: Averaged, length_ms: int, days: int) -> None:
    tables: dict[str, list[pa.Table]] = defaultdict(list)
    end_ms = START_MS + days * DAY_MS
    for from_ms in range(START_MS, end_ms, length_ms):
        to_ms = from_ms + length_ms
        rows = between(from_ms - STANDS_MS, to_ms)
        part = Drew(rows(DREW.bundles), rows(DREW.brokers), DREW.events).averaged((from_ms, to_ms))
        tables["carried"].append(part.pieces)
        for name in ("bundle_windows", "broker_windows", "namespace_windows"):
            tables[name].append(getattr(part, name)((SHORTEST,)))
    for name, parts in tables.items():
        whole = made.pieces if name == "carried" else getattr(made, name)((SHORTEST,))
        expected = whole.filter(pc.field("start_ms") < end_ms)
        assert_same(in_order(pa.concat_tables(parts)), in_order(expected))


def test_it_does_not_matter_in_which_order_rows_come(made: Averaged) -> None:
    rng = np.random.default_rng(1)
    assert_all_the_same(DREW.changed(lambda rows: rows.take(rng.permutation(len(rows)))).averaged(), made)


def in_chunks(rows: pa.Table, size: int = 1000) -> pa.Table:
    """Each with dictionaries of its own, and numbers of 8 bits."""

    def encoded(column: pa.Array) -> pa.Array:
        is_text = pa.types.is_string(column.type)
        return column.dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())) if is_text else column

    parts = (rows.slice(begin, size).combine_chunks() for begin in range(0, len(rows), size))
    made = [pa.table([encoded(column.chunk(0)) for column in part.columns], part.column_names) for part in parts]
    return pa.concat_tables(made)


def test_it_does_not_matter_how_text_is_encoded(made: Averaged) -> None:
    encoded = DREW.changed(in_chunks)
    assert encoded.bundles.column("namespace").num_chunks > 1
    assert_all_the_same(encoded.averaged(), made)
    assert_all_the_same(DREW.changed(with_large_text).averaged(), made)


def with_large_text(rows: pa.Table) -> pa.Table:
    """As some programs write it."""
    large = {pa.string(): pa.large_string()}
    return rows.cast(pa.schema([(each.name, large.get(each.type, each.type)) for each in rows.schema]))


def test_of_nothing_come_tables_without_rows() -> None:
    nothing = DREW.changed(lambda rows: rows.slice(0, 0))
    for drew in (nothing, Drew(nothing.bundles, DREW.brokers, DREW.events)):
        made = drew.averaged((START_MS, START_MS + DAY_MS))
        assert len(made.pieces) == len(made.bundle_windows()) == len(made.namespace_windows()) == 0
    assert len(nothing.averaged().broker_windows()) == 0
    alone = Drew(DREW.bundles, nothing.brokers, nothing.events).averaged((START_MS, START_MS + DAY_MS))
    assert len(alone.reports) == len(alone.pieces) == 0


def events_of(*happened: tuple[int, int, str]) -> pa.Table:
    """Of a time, an epoch and a kind."""
    names = ("at_ms", "epoch", "kind")
    rows = [dict(zip(names, each, strict=True)) | {"sequence": 0, "subject": ""} for each in happened]
    return pa.Table.from_pylist(rows) if rows else DREW.events.slice(0, 0)


def test_a_term_ends_when_it_was_ended_else_when_the_next_one_began() -> None:
    events = events_of(
        (10, 2, "term_began"), (20, 2, "term_ended"), (25, 2, "term_ended"), (30, 5, "term_began"),
        (35, 5, "term_began"), (40, 7, "broker_gone"), (50, 9, "term_began"), (60, 0, "term_ended"),
    )  # fmt: skip
    assert ends_of(events, [0, 1, 2, 3, 9, 11]).terms == {1: 10, 2: 20, 3: 30, 5: 50, 7: 50}
    assert ends_of(events_of(), [0, 1]).terms == {}


def test_ends_go_to_workers() -> None:
    ends = ends_of(DREW.events, [])
    copy = pickle.loads(pickle.dumps(ends))
    assert copy == ends
    assert standing(DREW.brokers, copy, END_MS) == standing(DREW.brokers, ends, END_MS)


def test_what_came_after_the_end_is_not_there(made: Averaged) -> None:
    earlier_ms = END_MS - DAY_MS
    reports = standing(DREW.brokers, ends_of(DREW.events, []), earlier_ms)
    assert 0 < len(reports) < len(made.reports)
    assert pc.max(reports.column("ends_ms")).as_py() <= earlier_ms
    assert pc.max(reports.column("at_ms")).as_py() < earlier_ms
