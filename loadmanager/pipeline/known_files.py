"""What is known of the history's files, so that each is opened once: `<out>/_known_files.parquet`.

A file of a history is there as a whole and does not change; one of another size or time is another one. When this is
lost, nothing is but time.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from loadmanager.history.compaction import Original
from loadmanager.history.files import HOUR_MS, Directory, HistoryFile
from loadmanager.pipeline.filesystems import put

KNOWN_FILES = "_known_files.parquet"
_COLUMNS = ("path", "size_bytes", "mtime_ns", "first_ms", "last_ms", "otherwise", "damage", "originals")
_NUMBERS = _COLUMNS[1:5]
_SCHEMA = pa.schema([(name, pa.int64() if name in _NUMBERS else pa.string()) for name in _COLUMNS])


@dataclass(frozen=True, slots=True)
class Look:
    """What a file's footer says: the first and last time in it, None for one without rows; and the columns that are
    `otherwise` stored than we do, with their types. `damage` is what was found when its rows were read. `originals` are
    the files that a compacted one stands for.
    """

    times: tuple[int, int] | None
    otherwise: tuple[tuple[str, str], ...] = ()
    damage: str | None = None
    originals: tuple[Original, ...] = ()

    def has_strays(self, file: HistoryFile) -> bool:
        """Whether there are rows that are not of the hour of the file's folder."""
        return self.times is not None and self.times != self.times_in_hour(file)

    def times_in_hour(self, file: HistoryFile) -> tuple[int, int] | None:
        """The first and last time of the rows that are of the hour of its folder; None without any."""
        if self.times is None:
            return None
        first, last = max(self.times[0], file.hour_ms), min(self.times[1], file.hour_ms + HOUR_MS - 1)
        return (first, last) if first <= last else None


class KnownFiles:
    """Of one history, kept beside its tables; without a directory, for as long as this lives."""

    def __init__(self, directory: Directory | None = None) -> None:
        self._directory = directory
        self._looks: dict[str, tuple[int, int, Look]] = {}
        self._is_kept = True
        if directory is not None:
            with suppress(OSError, pa.ArrowException, ValueError):
                self._load(directory)

    def find(self, file: HistoryFile) -> Look | None:
        known = self._looks.get(file.path)
        return known[2] if known is not None and known[:2] == (file.size_bytes, file.mtime_ns) else None

    def remember(self, file: HistoryFile, look: Look) -> None:
        self._looks[file.path] = file.size_bytes, file.mtime_ns, look
        self._is_kept = False

    def forget_others(self, folder: str, paths: Collection[str]) -> None:
        """Files in the folder that are not there any more."""
        gone = [path for path in self._looks if path.startswith(f"{folder}/") and path not in paths]
        for path in gone:
            del self._looks[path]
        self._is_kept = self._is_kept and not gone

    def keep(self) -> None:
        """Write it down, where there is anything new. Raises `OSError`."""
        if self._is_kept or self._directory is None:
            return
        rows = [
            (
                path,
                size,
                mtime_ns,
                *(look.times or (None, None)),
                _text(look.otherwise),
                look.damage,
                _text(look.originals),
            )
            for path, (size, mtime_ns, look) in self._looks.items()
        ]
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns, _SCHEMA), sink)
        put(self._directory, KNOWN_FILES, sink.getvalue().to_pybytes())
        self._is_kept = True

    def _load(self, directory: Directory) -> None:
        with directory.open(f"{directory.root}/{KNOWN_FILES}") as file:
            columns = pq.read_table(file, schema=_SCHEMA).to_pydict()
        for path, size, mtime_ns, first, last, otherwise, damage, originals in zip(*columns.values(), strict=True):
            stored = tuple((name, kind) for name, kind in orjson.loads(otherwise))
            stands_for = tuple(Original(**each) for each in orjson.loads(originals))
            self._looks[path] = (
                size,
                mtime_ns,
                Look(None if first is None else (first, last), stored, damage, stands_for),
            )


def _text(what: object) -> str:
    return orjson.dumps(what).decode()
