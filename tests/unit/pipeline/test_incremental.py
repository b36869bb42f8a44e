from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import bundle
from support.frames import HOUR_MS, MINUTE_MS, START_MS, Timed, history_of, reported

from loadmanager.errors import PipelineError
from loadmanager.history.compaction import Compaction
from loadmanager.history.files import DAY_MS, Directory, path_of
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS
from loadmanager.pipeline import incremental
from loadmanager.pipeline.incremental import HistoryHours


def at(hour: int) -> int:
    return START_MS + hour * HOUR_MS


ENDS = {1: at(1000)}
"""The only leader's term has not ended."""
ENDED = {1: at(0)}


class Kept:
    """Tables that are kept up to date with a history of files without content."""

    def __init__(self, folder: Path) -> None:
        self.history, self.out = Directory.of(str(folder / "history")), Directory.of(str(folder / "out"))
        Path(self.history.root).mkdir()
        self.counted: dict[int, set[str]] = defaultdict(set)
        """Names of the files that windows of an hour were made from."""
        self.erased: set[int] = set()

    def put(self, hour: int, number: int = 0, content: str = "x", table: str = BUNDLE_REPORTS) -> Path:
        path = Path(self.history.root, path_of(table, at(hour), 1, (number, number), "node"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def hours(self, keep_days: int = 365, *, anew: bool = False) -> HistoryHours:
        return HistoryHours(self.out, self.history, keep_days, anew=anew)

    def run(self, ends: Mapping[int, int] = ENDS, *, killed: bool = False, **options: Any) -> list[int]:  # noqa: ANN401 - as above
        """Return the hours that were made, as numbers."""
        hours = self.hours(**options)
        for hour_ms in hours.old:
            self.counted.pop(hour_ms, None)
        first, wanted = hours.to_clean(), hours.to_make(set(hours.files), ends)
        assert first <= wanted
        hours.begin(wanted)
        for hour_ms in wanted:
            self.counted[hour_ms] = {file.name for file in hours.files[hour_ms].values()}
        if not killed:
            hours.end(wanted, ends)
        return sorted((hour_ms - START_MS) // HOUR_MS for hour_ms in wanted)

    def names(self, hour: int) -> set[str]:
        return {file.name for file in self.history.list_files(BUNDLE_REPORTS)[0] if file.hour_ms == at(hour)}


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_hour_is_recomputed_when_its_files_or_those_before_change(kept: Kept) -> None:
    for hour in (1, 2, 3, 30):
        kept.put(hour)
    assert kept.run() == [1, 2, 3, 30]
    assert kept.run() == []
    kept.put(1, number=1)
    assert kept.run() == [1, 2]
    kept.put(30, content="longer")
    assert kept.run() == [30]
    assert kept.run({1: at(30)}) == [30]
    assert kept.run({1: at(31)}) == [30]
    assert kept.run({1: at(32)}) == [], "an end after an hour does not concern it"
    assert kept.run(ENDED) == [1, 2, 3, 30]


def test_hours_with_deleted_files_are_kept_and_late_files_named(kept: Kept) -> None:
    first, second = kept.put(1), kept.put(1, number=1)
    kept.put(2)
    kept.run()
    first.unlink()
    assert kept.run() == []
    second.unlink()
    assert kept.run(ENDED) == [2]
    late = kept.put(1, number=2)
    kept.put(2, number=1)
    hours = kept.hours()
    assert [file.path for file in hours.late_files()] == [str(late)]
    assert hours.keeps_begin(at(2))
    assert not hours.keeps_begin(at(3)), "nothing was made of it"
    assert kept.run(ENDED) == [2]
    assert kept.counted[at(1)] == {first.name, second.name}


def test_new_hour_after_a_deleted_one_is_computed(kept: Kept) -> None:
    path = kept.put(1)
    kept.run()
    path.unlink()
    kept.put(2)
    hours = kept.hours()
    hours.begin(hours.to_clean())
    assert not hours.keeps_begin(at(2)), "its windows are yet to be made"
    assert kept.run() == [2]


def test_hours_of_a_killed_run_are_computed_by_the_next(kept: Kept) -> None:
    kept.put(1)
    assert kept.run(killed=True) == [1]
    assert kept.hours().to_clean() == {at(1)}
    assert kept.run() == [1]
    assert kept.run() == []


def test_windows_expire_after_their_days_and_old_files_are_skipped(kept: Kept) -> None:
    kept.put(1)
    kept.put(24)
    assert kept.run(keep_days=2) == [1, 24]
    kept.put(48)
    assert kept.hours(keep_days=2).old == [at(1)]
    assert kept.run(keep_days=2) == [48]
    assert kept.run(keep_days=3) == [1]


def test_changed_rules_and_the_anew_option_recompute_all_available_hours(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.put(1)
    kept.put(2)
    kept.run()
    path.unlink()
    assert kept.run(anew=True) == [2]
    monkeypatch.setattr(incremental, "RULES_VERSION", incremental.RULES_VERSION + 1)
    assert kept.run() == [2]
    Path(kept.out.root, incremental.STATE).write_text("{")
    assert kept.run() == [2]


def test_tables_of_another_history_are_rejected(kept: Kept, tmp_path: Path) -> None:
    kept.put(1)
    kept.run()
    moved = tmp_path / "moved"
    Path(kept.history.root).rename(moved)
    kept.history = Directory.of(str(moved))
    with pytest.raises(
        PipelineError, match=rf"{kept.out}: has tables of the history .*, not of {re.escape(str(moved))}"
    ):
        kept.run()
    assert kept.run(anew=True) == [1]


def test_hours_are_recomputed_from_compacted_files(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for minute in range(0, 120, 10):
        entries: list[Timed] = [(minute * MINUTE_MS, reported("a", {bundle(1): (1.0, 1.0, 1.0, 1.0)}))]
        history_of(Path(kept.history.root), entries, first=minute)
    assert kept.run() == [0, 1]
    Compaction().apply(kept.history, START_MS + 100 * DAY_MS)
    assert list(Path(kept.history.root).rglob("*-compacted.parquet"))
    hours = kept.hours()
    assert not hours.late_files()
    assert hours.to_clean() == {at(0), at(1)}
    assert kept.run() == [0, 1]
    assert kept.run() == []
    history_of(Path(kept.history.root), [(5 * MINUTE_MS, reported("a", {}))], first=500)
    assert kept.run() == [0, 1]


def test_compacted_file_replaces_files_of_its_table_only(kept: Kept) -> None:
    kept.put(1)
    deleted = kept.put(1, number=5, table=BROKER_REPORTS)
    kept.run()
    deleted.unlink()
    for table, is_gone in ((BUNDLE_REPORTS, True), (BROKER_REPORTS, False)):
        Path(kept.history.root, path_of(table, at(1), 1, (0, 9), None)).write_text("x")
        assert kept.hours().is_gone(at(1)) == is_gone


CHANGES = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("delete"), st.integers(0, 4), st.integers(0, 2)),
    st.tuples(st.just("run"), st.booleans(), st.sampled_from((ENDS, ENDED))),
)


@given(st.lists(CHANGES, max_size=25))
def test_available_files_are_counted_and_counted_ones_kept(changes: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept, gone = Kept(Path(folder)), set[int]()
        for what, one, other in [*changes, ("run", False, ENDS)]:
            if what == "put":
                kept.put(one, other)
            elif what == "delete":
                path = kept.put(one, other)
                if path.name in kept.counted[at(one)]:
                    gone.add(one)
                path.unlink()
            else:
                before = {hour: set(names) for hour, names in kept.counted.items()}
                kept.run(other, killed=one)
                assert all(names <= kept.counted[hour] for hour, names in before.items())
        for hour in set(range(5)) - gone:
            assert kept.counted[at(hour)] >= kept.names(hour)
        assert kept.run() == []
