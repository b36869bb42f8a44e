"""What Spark's workers do for a what-if: they have the bytes of files, and reach no filesystem.

    files' bytes ──▶ what was found, for the driver, and a range packed in parts ──▶ a trial each, of the parts unpacked

A worker needs neither pandas nor settings for it, nor PySpark's part for the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from loadmanager.core.load import IntArray
from loadmanager.core.names import BrokerId
from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.columns import columns_of
from loadmanager.history.held import HeldFiles
from loadmanager.history.reader import History, OnFault
from loadmanager.history.schemas import BROKER_REPORTS, EVENTS
from loadmanager.pipeline.contents import place_of
from loadmanager.sim.fleet import BrokerSpec
from loadmanager.sim.recorded import HOLD_S, RecordedRange
from loadmanager.sim.trial import Trial, figures
from loadmanager.whatif.ranges import Stretch, read_range

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

Work = Callable[[History, OnFault], Iterator[Any]]
"""What is made of a history: something for the driver, and after that what stays with the workers."""

PART_BYTES = 16 * 1024 * 1024
"""Of a packed range: Spark takes no element of 2 GiB."""

_CODEC = "zstd"


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """What was made of files, which of these could not be used, and of which it was made: a digest."""

    value: T
    faults: tuple[HistoryFileError, ...]
    files: str


@dataclass(frozen=True, slots=True)
class Outline:
    """Of a range: the brokers and the namespaces that ever were, and the first by name of those at the beginning."""

    broker_ids: tuple[BrokerId, ...]
    namespaces: tuple[str, ...]
    like: BrokerSpec | None


def outline_of(recorded: RecordedRange) -> Outline:
    return Outline(
        tuple(recorded.broker_ids()),
        tuple(spec.name for spec in recorded.namespace_specs()),
        min(recorded.brokers, key=lambda spec: spec.id, default=None),
    )


def on_files(root: str, work: Work, files: Iterable[tuple[str, bytes]]) -> Iterator[Any]:
    """A `Found`, then the rest of what `work` makes of a history at `root` that has these files alone, of which the
    paths may begin otherwise here.
    """
    contents = {f"{root}/{place_of(path)}": content for path, content in files}
    names = sorted((path, len(content)) for path, content in contents.items())
    faults: dict[str, HistoryFileError] = {}
    made = work(History(HeldFiles(root, contents)), lambda fault: faults.update({str(fault): fault}))
    value = next(made)
    yield Found(value, tuple(faults.values()), blake2b(repr(names).encode(), digest_size=16).hexdigest())
    yield from made


def found_of(elements: Iterable[Any]) -> Iterator[Any]:
    """What is for the driver. The rest is taken too: a worker that leaves some of its input is not used again."""
    rest = iter(elements)
    yield next(rest)
    for _ in rest:
        pass


def range_of(stretch: Stretch, history: History, on_fault: OnFault) -> Iterator[Outline | str | bytes]:
    """The outline of the range, of a fleet that starts once it carries something, and its parts; or why it cannot be
    replayed.
    """
    try:
        recorded = read_range(history, stretch.once_begun(history, on_fault), on_fault=on_fault)
    except ValueError as error:
        yield str(error)
        return
    yield outline_of(recorded)
    yield from packed(recorded)


def packed(recorded: RecordedRange) -> Iterator[bytes]:
    """In parts of `PART_BYTES` at most."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODEC) as file:
        pickle.dump(recorded, file, protocol=5)  # writes arrays without a copy of them
    content = sink.getvalue()
    for at in range(0, content.size, PART_BYTES):
        yield content.slice(at, min(PART_BYTES, content.size - at)).to_pybytes()


def unpacked(parts: Iterable[bytes]) -> RecordedRange:
    """Bit for bit what was packed."""
    with pa.CompressedInputStream(pa.BufferReader(b"".join(parts)), _CODEC) as file:
        recorded: RecordedRange = pickle.load(file)  # noqa: S301 - ours, from one worker to another
    return recorded


def on_range(
    work: Callable[[RecordedRange, A], R],
    given: Any,  # noqa: ANN401 - a broadcast variable of Spark
    number: int,
    elements: Iterator[Any],
) -> Iterator[R]:
    """`work` on the range of these `elements`, with what was `given` for the partition of this number; which was found
    in the same files, or else it is a `HistoryError`: it may be read again after files have gone.
    """
    files, argument = given.value[number]
    found: Found[Outline] = next(elements)
    if found.files != files:
        raise HistoryError("files of the range have gone while it was replayed, and a worker had lost what was read")
    yield work(unpacked(elements), argument)


def report_times(from_ms: int | None, to_ms: int | None, history: History, on_fault: OnFault) -> Iterator[IntArray]:
    """Of the times of brokers' reports, in order, the first and the last in each `HOLD_S`: what is between two of these
    that are further apart is a silence, also where other files are between them.
    """
    at_ms = np.sort(columns_of(history, BROKER_REPORTS, from_ms, to_ms, ["at_ms"], on_fault)["at_ms"])
    is_other = np.diff(at_ms // round(HOLD_S * 1000), prepend=-1, append=-1) != 0
    yield at_ms[is_other[:-1] | is_other[1:]]


def events_of(
    kinds: Collection[str], history: History, on_fault: OnFault
) -> Iterator[list[tuple[int, str, str | None]]]:
    """Epoch, kind and body of each event of these kinds."""
    rows = history.rows(EVENTS, columns=["epoch", "kind", "body"], on_fault=on_fault)
    yield [(row["epoch"], row["kind"], row["body"]) for row in rows if row["kind"] in kinds]


def fault_of(recorded: RecordedRange, trial: Trial) -> str | None:
    """Why the trial has no world; None when it has one."""
    try:
        trial.world(recorded)
    except ValueError as error:
        return str(error)
    return None


def outcome(recorded: RecordedRange, given: tuple[dict[str, Any], Trial, float]) -> dict[str, Any]:
    """What a trial is, and what came of it: its figures by this band."""
    what, trial, band = given
    return what | figures(trial.run(recorded), band)
