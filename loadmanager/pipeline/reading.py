"""The history as frames of Spark, over a range of time.

Every file is looked at before Spark gets to see it: whether it is of its table, of a version that is known, with the
columns of that version, and whether its times are in the range at all. What is wrong with one is said by its name.
What only shows when its rows are read (a damaged page) is named too, as soon as Spark meets it. A file that was looked
at before, and has not changed, is not looked at again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loadmanager.core.model.recordable import RATE_STEPS_PER_UNIT
from loadmanager.errors import HistoryFileError, HistorySchemaError, PipelineError
from loadmanager.history.compaction import originals_of
from loadmanager.history.files import Directory, HistoryFile
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS, BUNDLE_REPORTS, RATE, TABLES, version_of
from loadmanager.pipeline.attribution import hour_of
from loadmanager.pipeline.cleaning import usable, with_reason
from loadmanager.pipeline.filesystems import directory_at, url_for_spark
from loadmanager.pipeline.known_files import KnownFiles, Look
from loadmanager.pipeline.schemas import frame_of, raw

BadFiles = Literal["fail", "leave_out"]
T = TypeVar("T")

_REPORTS = (BROKER_REPORTS, BUNDLE_REPORTS)
_LOOKED_AT_TOGETHER = 8
_NAMED = re.compile(r"(?:file|path)[ :]+(?:file:/{0,2})?(\S+?\.parquet)")


@dataclass(frozen=True, slots=True)
class FileFault:
    """A file that was left out, and why."""

    table: str
    path: str
    why: str


class Usable(NamedTuple):
    """A file that has rows, and what its footer says."""

    file: HistoryFile
    look: Look


class DamagedFileError(HistoryFileError):
    """Spark could not read the rows of a file; `path` is the file."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: cannot be read: {why}; move it out of the history, or have such files left out")
        self.path = path


class HistoryTables:
    """A history from `from_ms` to before `to_ms`, as it is now: files that come later are not in it.

    Bad files are an error, or left out and kept in `faults`; a file of a newer schema is always an error.
    """

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        from_ms: int | None = None,
        to_ms: int | None = None,
        bad_files: BadFiles = "fail",
        known: KnownFiles | None = None,
    ) -> None:
        if from_ms is not None and to_ms is not None and from_ms >= to_ms:
            raise PipelineError(f"the range {said_range(from_ms, to_ms)} is empty: its end is not after its beginning")
        self._spark = spark
        self._url = url
        self._directory = directory_at(spark, url)
        self._history = History(self._directory)
        self.from_ms, self.to_ms = from_ms, to_ms
        self._bad_files = bad_files
        self._known = known or KnownFiles()
        self._found: dict[str, list[Usable]] = {}
        self._new: list[HistoryFile] = []
        self.faults: list[FileFault] = []
        if not self._directory.exists():
            raise PipelineError(f"{url}: there is no history: no such directory")

    @property
    def directory(self) -> Directory:
        return self._directory

    @property
    def range(self) -> tuple[int, int]:
        """From the first report in the range to after the last one."""
        times = [times for file, look in self.files(BROKER_REPORTS) if (times := look.times_in_hour(file)) is not None]
        if not times:
            raise self._nothing(BROKER_REPORTS)
        first, after = min(first for first, _ in times), max(last for _, last in times) + 1
        return max(first, self.from_ms or first), min(after, self.to_ms or after)

    def require_reports(self) -> None:
        """`PipelineError` when there are none in the range, of brokers or of bundles."""
        for table in _REPORTS:
            if not self.files(table):
                raise self._nothing(table)

    def frame(self, table: str) -> DataFrame:
        """The rows of the range, with the columns of the table.

        A table of load reports without any in the range is a `PipelineError`; others may have none.
        """
        files = [file for file, _ in self.files(table)]
        if not files and table in _REPORTS:
            raise self._nothing(table)
        read = self._read(table, files)
        if self.from_ms is not None:
            read = read.where(f.col("at_ms") >= self.from_ms)
        return read if self.to_ms is None else read.where(f.col("at_ms") < self.to_ms)

    def scan(self, table: str, columns: Sequence[str], hours: Container[int]) -> Iterator[pa.RecordBatch]:
        """Those columns of what `frame` has, in this process, in the order of (epoch, sequence)."""
        files = [file for file, _ in self.files(table) if file.hour_ms in hours]
        on_fault = (lambda fault: self._on_fault(table, fault)) if self.leaves_out else None
        return self._history.scan_files(files, table, self.from_ms, self.to_ms, columns, on_fault)

    def leave_out(self, path: str, why: str) -> None:
        """Go on without this file; frames that were made before still have it."""
        for table, found in self._found.items():
            for file in [file for file, _ in found if file.path == path]:
                self._found[table] = [each for each in found if each.file.path != path]
                self.faults.append(FileFault(table, path, why))
                self._known.remember(file, Look(None, damage=why))

    def keep_known(self) -> None:
        """Have the next one know which files were looked at. Raises `OSError`."""
        self._known.keep()

    @property
    def leaves_out(self) -> bool:
        return self._bad_files == "leave_out"

    def _read(self, table: str, files: Sequence[HistoryFile]) -> DataFrame:
        if not files:
            return frame_of(self._spark, raw(table))
        otherwise = {file.path: look.otherwise for file, look in self._found[table]}
        alike: dict[Any, list[str]] = defaultdict(list)
        for file in files:
            alike[otherwise[file.path]].append(url_for_spark(self._directory, file.path))
        frames = [self._read_alike(table, urls, as_ours=not kinds) for kinds, urls in alike.items()]
        return reduce(DataFrame.unionByName, frames)

    def _read_alike(self, table: str, urls: Sequence[str], *, as_ours: bool) -> DataFrame:
        """Files that store each column in the same way: as we do, or in one of their own, which Spark finds out."""
        reader = self._spark.read.option("ignoreMissingFiles", "true")
        read = (reader.schema(_stored(table)) if as_ours else reader).parquet(*urls)
        steps = f"{RATE_STEPS_PER_UNIT}D"
        known = {name: name for name in read.columns}
        for name in (each.name for each in TABLES[table].columns if each.type == RATE):
            known[name] = f"{name if as_ours else f'rint(double({name}) * {steps})'} / {steps}"
        kinds = {each.name: each.dataType.simpleString() for each in raw(table)}
        columns = (f"CAST({known.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in kinds.items())
        return read.selectExpr(*columns)

    def files(self, table: str) -> list[Usable]:
        """The files that may have rows of the range."""
        if table not in TABLES:
            raise PipelineError(f"table {table}: unknown; the history has {', '.join(TABLES)}")
        if table not in self._found:

            def on_fault(fault: HistoryFileError) -> None:
                self._on_fault(table, fault)

            files = self._history.files(table, self.from_ms, self.to_ms, on_fault)
            self._known.forget_others(f"{self._directory.root}/{table}", {each.path for each in files})
            with ThreadPoolExecutor(_LOOKED_AT_TOGETHER) as pool:
                looked_at = list(pool.map(self._look, files))
            for fault in looked_at:
                if isinstance(fault, HistoryFileError):
                    on_fault(fault)
            self._found[table] = [each for each in looked_at if isinstance(each, Usable) and self._is_in_range(each)]
        return self._found[table]

    def new_files(self, table: str) -> list[HistoryFile]:
        """Those that were not known before."""
        self.files(table)
        return [file for file in self._new if file.table == table]

    def _look(self, file: HistoryFile) -> Usable | HistoryFileError | None:
        known = self._known.find(file)
        if known is not None and known.damage is None:
            return Usable(file, known)
        if known is not None and self.leaves_out:
            return HistoryFileError(f"{file.path}: {known.damage}")
        self._new.append(file)
        try:
            with self._history.open(file) as parquet:
                version = version_of(parquet.schema_arrow.metadata, file.table, file.path)
                TABLES[file.table].conform(parquet.schema_arrow.empty_table(), version, file.path)
                originals = originals_of(parquet.schema_arrow.metadata)
                look = Look(_times(parquet), _otherwise(parquet, file), originals=originals)
        except FileNotFoundError:
            return None  # retention was faster
        except HistoryFileError as error:
            return error
        self._known.remember(file, look)
        return Usable(file, look)

    def _is_in_range(self, usable: Usable) -> bool:
        if usable.look.times is None:
            return False
        first, last = usable.look.times
        return (self.from_ms is None or last >= self.from_ms) and (self.to_ms is None or first < self.to_ms)

    def _on_fault(self, table: str, fault: HistoryFileError) -> None:
        if not self.leaves_out or isinstance(fault, HistorySchemaError):
            raise fault
        path, colon, why = str(fault).partition(": ")
        self.faults.append(FileFault(table, path, why if colon else "cannot be used"))

    def _nothing(self, table: str) -> PipelineError:
        everything = self._history.info(table, on_fault=lambda _: None)
        there = "nothing at all"
        if everything.from_ms is not None and everything.to_ms is not None:
            there = said_range(everything.from_ms, everything.to_ms + 1)
        bad = f"; {len(self.faults)} bad files were left out" if self.faults else ""
        wanted = said_range(self.from_ms, self.to_ms)
        return PipelineError(f"{self._url}: no {table} in the range {wanted}; there is: {there}{bad}")


def said_range(from_ms: int | None, to_ms: int | None) -> str:
    """A range of time, for people."""
    return f"{_said(from_ms, 'the beginning')} to {_said(to_ms, 'the end')}"


@contextmanager
def naming_bad_files() -> Iterator[None]:
    """What Spark says when it cannot read a file, as an error that names the file."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        named = _NAMED.search(text) if "FAILED_READ_FILE" in text or "reading file" in text else None
        if named is None:
            raise
        raise DamagedFileError(
            re.sub("^/*", "/", named[1]) if "://" not in named[1] else named[1], cause_of(text)
        ) from None


def read_leaving_out(tables: HistoryTables, work: Callable[[], T]) -> T:
    """The result of `work`, which makes its frames from `tables`; repeated without each file that turns out damaged.

    Only where bad files are to be left out: else the first one is the error.
    """
    while True:
        try:
            with naming_bad_files():
                return work()
        except DamagedFileError as error:
            if not tables.leaves_out:
                raise
            tables.leave_out(error.path, str(error).removeprefix(f"{error.path}: "))


def good_reports(rows: DataFrame, table: str) -> DataFrame:
    """Return the usable rows of `HistoryTables.frame`."""
    return usable(with_reason(rows.withColumn("hour_ms", hour_of("at_ms")), table), table)


def _stored(table: str) -> t.StructType:
    """The columns as they are read: a rate is stored as a whole number of thousandths, which costs Spark much less
    than a decimal.
    """
    rates = {each.name for each in TABLES[table].columns if each.type == RATE}
    return t.StructType(
        [t.StructField(each.name, t.LongType() if each.name in rates else each.dataType) for each in raw(table)]
    )


def _otherwise(parquet: Any, file: HistoryFile) -> tuple[tuple[str, str], ...]:  # noqa: ANN401 - Arrow's Parquet file
    """The columns of numbers that are stored otherwise than we do, and how; `HistoryFileError` names one whose numbers
    may be others than ours can be.
    """
    schema, physical = parquet.schema_arrow, parquet.schema
    stored = {physical.column(at).path: physical.column(at).physical_type for at in range(len(physical))}
    found = []
    for wanted in TABLES[file.table].columns:
        at = schema.get_field_index(wanted.name)
        if at < 0 or wanted.type not in _NUMBERS:
            continue
        kind = schema.field(at).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if kind != wanted.type and not _NUMBERS[wanted.type](kind):
            raise HistoryFileError(f"{file.path}: column {wanted.name} is {kind}, expected {wanted.type}")
        if kind != wanted.type or (kind == RATE and stored[wanted.name] != "INT64"):
            found.append((wanted.name, f"{kind} as {stored[wanted.name]}"))
    return tuple(found)


def _is_whole(kind: Any) -> bool:  # noqa: ANN401 - Arrow's data type
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal128(kind) and kind.scale == 0))


def _is_number(kind: Any) -> bool:  # noqa: ANN401 - Arrow's data type
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal128(kind) or kind in (pa.float32(), pa.float64()))


_NUMBERS = {pa.int64(): _is_whole, pa.float64(): _is_number, RATE: _is_number}
"""For each of our types of numbers which others have no other numbers."""


def _times(parquet: Any) -> tuple[int, int] | None:  # noqa: ANN401 - Arrow's Parquet file
    at = parquet.schema_arrow.get_field_index("at_ms")
    groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
    statistics = [group.column(at).statistics for group in groups if group.num_rows]
    if not statistics:
        return None
    if all(each is not None and each.has_min_max for each in statistics):
        return min(int(each.min) for each in statistics), max(int(each.max) for each in statistics)
    ends = pc.min_max(parquet.read(columns=["at_ms"]).column("at_ms")).as_py()  # whoever wrote it counted nothing
    return int(ends["min"] or 0), int(ends["max"] or 0)  # of rows without any time, which are rejected, some time


def _said(at_ms: int | None, otherwise: str) -> str:
    if at_ms is None:
        return otherwise
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def cause_of(text: str) -> str:
    """What a worker in Python says in our words; else the last `Caused by:` of a stack trace, else its first line."""
    causes = re.findall(r"^loadmanager\.errors\.\w+: ([^\n]+)", text, re.MULTILINE)
    causes = causes or re.findall(r"Caused by: ([^\n]+)", text)
    return str(causes[-1] if causes else next(iter(text.strip().splitlines()), "no reason given"))[:300]
