"""What is made anew: whatever comes, goes or is killed, every unit ends as made of what there is, and no other was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import BytesIO
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadmanager.history.files import DAY_MS, HOUR_MS, HistoryFile
from loadmanager.history.schemas import BUNDLE_REPORTS
from loadmanager.pipeline import keeping_up as module
from loadmanager.pipeline import made as made_module
from loadmanager.pipeline.keeping_up import KeepingUp
from loadmanager.pipeline.known_files import Look
from loadmanager.pipeline.reading import FileFault, HistoryTables, Usable
from loadmanager.pipeline.standing import STANDS_MS, Ends
from loadmanager.pipeline.units import Grain, Unit, unit_at, unit_of

DAYS = 4
NOBODY = pa.table({})
HOURS = (0, 12, 23)


class KilledError(Exception):
    """The process is killed here."""


class History:
    """What keeping up sees of one: files of an hour each, whose last rows are at the hour's end."""

    leaves_out = False

    def __init__(self) -> None:
        self.there: dict[tuple[int, int], HistoryFile] = {}
        self.from_ms: int | None = None
        self.to_ms: int | None = None
        self.faults: list[FileFault] = []
        self.writes = 0

    def put(self, day: int, hour: int) -> None:
        """Write the file, or another one in its place."""
        self.writes += 1
        at_ms = day * DAY_MS + hour * HOUR_MS
        sequence = at_ms // 1000
        file = HistoryFile(
            BUNDLE_REPORTS, f"/h/{day}/{hour}", at_ms, 1, sequence, sequence, 10, self.writes * 1_000_000
        )
        self.there[day, hour] = file

    def files(self, table: str) -> list[Usable]:
        files = sorted(self.there.values(), key=lambda each: each.order) if table == BUNDLE_REPORTS else []
        return [
            Usable(file, Look((file.hour_ms, file.hour_ms + HOUR_MS - 1)))
            for file in files
            if self.to_ms is None or file.hour_ms < self.to_ms
        ]

    def of(self, unit: Unit) -> frozenset[HistoryFile]:
        return frozenset(file for file, _ in self.files(BUNDLE_REPORTS) if unit_at(file.hour_ms, unit.grain) == unit)

    def end_ms(self) -> int:
        return max((file.hour_ms + HOUR_MS for file, _ in self.files(BUNDLE_REPORTS)), default=0)

    def keep_known(self) -> None:
        pass


class Disk:
    """The directory of the tables, with what is written beside them."""

    root = "/out"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def open(self, path: str) -> BytesIO:
        if path not in self.files:
            raise FileNotFoundError(path)
        return BytesIO(self.files[path])

    def put(self, path: str, data: bytes) -> None:
        self.files[f"{self.root}/{path}"] = data


class TablesInMemory:
    """Tables of which is known what they were made of, and a process that may be killed between any two writes."""

    def __init__(self) -> None:
        self.history, self.disk = History(), Disk()
        self.clean: dict[Unit, frozenset[HistoryFile]] = {}
        self.windows: dict[Unit, object] = {}
        self.ended_ms: int | None = None
        self.overloaded = 0.85
        self.killed_in: int | None = None

    def windows_of(self, unit: Unit, end_ms: int) -> object:
        """What the windows of a unit are made of; None where there are none."""
        own, before = self.clean.get(unit, frozenset()), self.clean.get(unit.before, frozenset())
        tail = frozenset(file for file in before if file.hour_ms + HOUR_MS > unit.from_ms - STANDS_MS)
        if not own and (not tail or end_ms <= unit.from_ms):
            return None
        ended = self.ended_ms is not None and self.ended_ms < unit.to_ms
        return own, tail, self.ended_ms if ended else None, min(end_ms, unit.to_ms), self.overloaded

    def write(self) -> None:
        if self.killed_in is not None:
            self.killed_in -= 1
            if self.killed_in < 0:
                raise KilledError

    def take_in(self, url: str = "/h", *, anew: bool = False) -> tuple[list[Unit], list[Unit]]:
        keeping_up = Patched(self, url, anew=anew)
        cleaned = keeping_up.ingest(cast("HistoryTables", self.history))
        return cleaned, keeping_up.average(self.history.end_ms(), self.overloaded)

    def assert_current(self) -> None:
        units = {unit_at(file.hour_ms, "day") for file, _ in self.history.files(BUNDLE_REPORTS)}
        assert {unit: files for unit, files in self.clean.items() if files} == {
            unit: self.history.of(unit) for unit in units
        }
        end_ms = self.history.end_ms()
        for unit in {*units, *(unit.after for unit in units), *self.windows}:
            assert self.windows.get(unit) == self.windows_of(unit, end_ms), unit.key


class Patched(KeepingUp):
    """Keeps up without Spark."""

    def __init__(self, memory: TablesInMemory, url: str, *, anew: bool) -> None:
        self._memory = memory
        tables = SimpleNamespace(has=lambda _: True)
        super().__init__(cast("Any", memory.disk), cast("Any", tables), url, anew=anew)

    def _clean(self, history: Any, units: Sequence[Unit]) -> None:  # noqa: ANN401 - a drawn one
        for unit in units:
            self._memory.write()
            self._memory.clean[unit] = history.of(unit)
        self._memory.write()

    def _average(self, units: Sequence[Unit], ends: Ends, end_ms: int, overloaded: float) -> None:
        assert ends == self._ends()
        assert overloaded == self._memory.overloaded
        for unit in units:
            self._memory.write()
            self._memory.windows[unit] = self._memory.windows_of(unit, end_ms)
        self._memory.write()

    def _ends(self) -> Ends:
        return Ends({} if self._memory.ended_ms is None else {1: self._memory.ended_ms}, NOBODY)


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOGETHER_BYTES", 40)
    monkeypatch.setattr(module, "directory_at", lambda disk, _: disk)
    monkeypatch.setattr(made_module, "put", lambda disk, path, data: disk.put(path, data))


@pytest.fixture
def memory() -> TablesInMemory:
    return TablesInMemory()


MOMENTS = st.none() | st.integers(0, DAYS * 48).map(lambda half_hours: half_hours * HOUR_MS // 2)
CHANGES = st.one_of(
    st.tuples(st.just("put"), st.integers(0, DAYS - 1), st.sampled_from(HOURS)),
    st.tuples(st.just("remove"), st.integers(0, DAYS - 1), st.sampled_from(HOURS)),
    st.tuples(st.just("to_ms"), MOMENTS),
    st.tuples(st.just("ended_ms"), MOMENTS),
    st.tuples(st.just("overloaded"), st.sampled_from((0.85, 0.9))),
    st.tuples(st.just("take_in"), st.none() | st.integers(0, 12)),
)


def change(memory: TablesInMemory, what: str, *given: Any) -> None:  # noqa: ANN401 - by what it is
    if what == "put":
        memory.history.put(*given)
    elif what == "remove":
        memory.history.there.pop(given, None)
    elif what == "to_ms":
        memory.history.to_ms = given[0]
    elif what != "take_in":
        setattr(memory, what, given[0])
    elif memory.history.files(BUNDLE_REPORTS):
        memory.killed_in = given[0]
        with suppress(KilledError):
            memory.take_in()
            memory.assert_current()
        memory.killed_in = None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(CHANGES, max_size=30))
def test_whatever_happens_every_unit_is_made_of_what_there_is(changes: list[tuple[Any, ...]]) -> None:
    memory = TablesInMemory()
    memory.history.put(0, 0)
    for each in changes:
        change(memory, *each)
    memory.history.to_ms = None
    memory.history.put(0, 12)
    memory.take_in()
    memory.assert_current()
    assert memory.take_in() == ([], [])


def keys(units: Iterable[Unit]) -> list[str]:
    return [unit.key for unit in units]


def test_only_what_has_changed_is_made_anew(memory: TablesInMemory) -> None:
    for day in range(DAYS):
        for hour in HOURS:
            memory.history.put(day, hour)
    cleaned, averaged = memory.take_in()
    assert keys(cleaned) == keys(averaged) == ["1970-01-01", "1970-01-02", "1970-01-03", "1970-01-04"]
    memory.history.put(1, 12)
    assert [keys(each) for each in memory.take_in()] == [["1970-01-02"], ["1970-01-02"]]
    memory.history.put(1, 23)
    assert [keys(each) for each in memory.take_in()] == [["1970-01-02"], ["1970-01-02", "1970-01-03"]]
    memory.ended_ms = 3 * DAY_MS + 1
    assert [keys(each) for each in memory.take_in()] == [[], ["1970-01-04"]]
    del memory.history.there[0, 0]
    assert [keys(each) for each in memory.take_in()] == [["1970-01-01"], ["1970-01-01"]]


@pytest.mark.parametrize("why", ["rules", "history", "anew", "damaged"])
def test_by_other_rules_of_another_history_and_where_it_is_wanted_all_is_made_anew(
    memory: TablesInMemory, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    memory.history.put(0, 0)
    memory.history.put(1, 0)
    memory.take_in()
    if why == "rules":
        monkeypatch.setattr(made_module, "RULES", made_module.RULES + 1)
    if why == "damaged":
        memory.disk.put(made_module.MADE, b"{")
    again = memory.take_in("/other" if why == "history" else "/h", anew=why == "anew")
    assert [keys(each) for each in again] == [["1970-01-01", "1970-01-02"]] * 2


@pytest.mark.parametrize("grain", ["day", "hour"])
def test_a_unit_has_a_key_and_neighbours(grain: Grain) -> None:
    unit = unit_at(31 * DAY_MS + 13 * HOUR_MS + 5, grain)
    assert unit.key == ("1970-02-01" if grain == "day" else "1970-02-01T13")
    assert unit_of(unit.key, grain) == unit
    assert unit.before.to_ms == unit.from_ms
    assert unit.after.from_ms == unit.to_ms
    assert unit in unit.day.units(grain)
    assert len(unit.day.units("hour")) == 24
