"""Histories to write and read: entries, writers that write soon, and a filesystem that gets full."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import fs
from support.waiting import patience
from typing_extensions import Buffer

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.report_validation import recordable
from loadmanager.history.entry_rows import HistoryEvent, Report
from loadmanager.history.files import Directory
from loadmanager.history.reader import History, OnFault, RecordedReport
from loadmanager.history.table_schemas import EVENTS
from loadmanager.history.writer import HistoryWriter, WriterLimits

NOON_MS = 1_790_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
SOON = WriterLimits(flush_interval_s=0.01, retry_s=0.01)
NEVER = WriterLimits(flush_interval_s=1e6, retry_s=0.01)


def a_report(number: int = 1, bundles: int = 3, seed: int = 0) -> Report:
    """A report of `broker-<number>`, with figures of their own."""
    rng = np.random.default_rng((seed, number))
    namespace = f"tenant/namespace-{number}"
    ranges = NamespaceBundles(equal_boundaries(max(1, bundles))).ranges()[:bundles]
    report = BrokerReport(
        usage=rng.random((5, 2)) * 100,
        load=rng.random(4) * 1e6,
        num_topics=int(rng.integers(1000)),
        num_bundles=bundles,
        num_consumers=int(rng.integers(1000)),
        num_producers=int(rng.integers(1000)),
        bundle_names=tuple(f"{namespace}/{each}" for each in ranges),
        bundle_load=rng.lognormal(5, 2, (bundles, 4)),
        bundle_topics=rng.integers(1000, size=bundles),
        bundle_sessions=rng.integers(1000, size=bundles),
        bundle_cache_bytes=rng.integers(10**9, size=bundles),
        last_update_ms=NOON_MS + number,
        start_timestamp_ms=NOON_MS - number,
        version="4.0.1",
        load_manager_class="org.example.LoadManager",
        persistent_enabled=bool(rng.integers(2)),
        non_persistent_enabled=bool(rng.integers(2)),
    )
    return Report(Registration(BrokerId(f"broker-{number}:8080"), number), recordable(report))


@contextmanager
def a_writer(directory: Directory, limits: WriterLimits = NEVER, node: str = "node-1:8080") -> Iterator[HistoryWriter]:
    writer = HistoryWriter(directory, node, limits)
    writer.start()
    try:
        yield writer
    finally:
        writer.close(NOON_MS, timeout_s=patience() if writer.figures.last_error == "" else 0.0)


def abandon(writer: HistoryWriter) -> None:
    """Stop the writer as a crash would: nothing more is written."""
    writer._epoch = None
    with writer._condition:
        writer._queue.stop = True
        writer._condition.notify_all()
    assert writer._thread is not None
    writer._thread.join(patience())
    assert not writer._thread.is_alive()


def record(directory: Directory, epoch: int, *events: str, at_ms: int = NOON_MS) -> None:
    """A whole term with these events, a second apart."""
    with a_writer(directory) as writer:
        writer.begin_term(epoch, at_ms)
        for number, kind in enumerate(events, 1):
            writer.put(at_ms + number * 1000, HistoryEvent(kind))
        writer.end_term(at_ms + len(events) * 1000)
        assert writer.flush(patience()), writer.figures


def kinds(
    history: History, from_ms: int | None = None, to_ms: int | None = None, on_fault: OnFault | None = None
) -> list[tuple[int, int, str]]:
    """Epoch, sequence and kind of the events, in the order in which they are read."""
    rows = history.rows(EVENTS, from_ms, to_ms, on_fault=on_fault)
    return [(row["epoch"], row["sequence"], row["kind"]) for row in rows]


def same(read: RecordedReport, put: Report) -> bool:
    """Return true if both are bit for bit equal."""
    ours, theirs = put.report, read.report
    return read.registration == put.registration and all(
        _bits(getattr(ours, name)) == _bits(getattr(theirs, name)) for name in BrokerReport.__dataclass_fields__
    )


def _bits(value: object) -> object:
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def put_file(
    root: Path, data: bytes, table: str = EVENTS, epoch: int = 9, hour: int = 12, day: str = "2026-09-21"
) -> Path:
    """A file with any content where a file of the history would be."""
    folder = root / table / f"date={day}" / f"hour={hour:02d}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{epoch:010d}-{0:012d}-{9:012d}-node.parquet"
    path.write_bytes(data)
    return path


class _Filling(io.RawIOBase):
    """A file that accepts a number of bytes and then fails."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = Path(path).open("wb")  # noqa: SIM115 - closed with the file that stands for it

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        self._file.write(memoryview(data)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        self._file.close()
        super().close()


class Disk(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """The local filesystem, which is full when `is_full`, and goes away after so many more files when `left` is set."""

    def __init__(self) -> None:
        self._local = fs.LocalFileSystem()
        self.is_full = False
        self.left: int | None = None

    def directory(self, root: Path) -> Directory:
        return Directory(fs.PyFileSystem(self), str(root))

    def open_output_stream(self, path: str, _: object) -> pa.NativeFile:
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")
        if self.left is not None:
            self.left -= 1
        if self.is_full:
            return pa.PythonFile(_Filling(path), mode="w")
        return self._local.open_output_stream(path)

    def get_type_name(self) -> str:
        return "disk"

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        infos: list[fs.FileInfo] = self._local.get_file_info(paths)
        return infos

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        infos: list[fs.FileInfo] = self._local.get_file_info(selector)
        return infos

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: FBT001 - as Arrow calls it
        self._local.create_dir(path, recursive=recursive)

    def move(self, source: str, target: str) -> None:
        self._local.move(source, target)

    def delete_file(self, path: str) -> None:
        self._local.delete_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self._local.open_input_file(path)

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self._local.open_input_stream(path)

    def _refuse(self, *_: object) -> None:
        raise NotImplementedError

    copy_file = open_append_stream = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
