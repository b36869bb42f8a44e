"""Tables as plain Parquet, of one writer at a time: whatever reads all Parquet files of a table reads the right ones.

    <root>/<table>/<write>/part=<key>/*.parquet        the rows
    <root>/<table>/_manifests/<number>.json            which of them count: the highest number says it

A write puts its rows into a folder of its own and then adds a manifest, which is what makes them count. What it
replaced is deleted at once.

Delta's log does better where it can be kept. This stays for filesystems that delta-rs does not know, for programs that
read Parquet and nothing else, and since tables that began with it go on with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyarrow import fs

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory
from loadmanager.pipeline.contents import Contents, RowFile

MANIFESTS = "_manifests"


class ManifestAccount:
    """Of the tables under one root, in any filesystem that Spark knows."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._files = directory.filesystem

    def contents(self, name: str) -> Contents:
        number, said = self._last(name)
        return Contents(number, {key: _files_of(part) for key, part in said["parts"].items()})

    def commit(self, name: str, added: Mapping[str, Sequence[RowFile]], replaced: Sequence[str] | None) -> None:
        number, before = self._last(name)
        parts = {key: part for key, part in before["parts"].items() if replaced is not None and key not in replaced}
        for key, files in added.items():
            names = [[file.path.rpartition("/")[2], file.rows, file.size_bytes, file.times] for file in files]
            parts[key] = {"path": _folder_of(files[0].path), "rows": sum(file.rows for file in files), "files": names}
        said = {"parts": parts, "written_at_ms": time.time_ns() // 1_000_000}
        data = json.dumps(said, indent=1, sort_keys=True).encode()
        self._directory.write(f"{name}/{MANIFESTS}/{number + 1:012d}.json", data)

    def clean(self, name: str) -> None:
        root = f"{self._directory.root}/{name}"
        current = self.contents(name)
        in_use = {_folder_of(file.path) for files in current.parts.values() for file in files}
        with suppress(OSError):
            for number in self._numbers(name):
                if number < current.number:
                    self._files.delete_file(self._path(name, number))
            for write in self._list(root):
                if write.type != fs.FileType.Directory or write.base_name == MANIFESTS:
                    continue
                parts = [part.path for part in self._list(write.path) if part.type == fs.FileType.Directory]
                unused = [path for path in parts if path.removeprefix(f"{root}/") not in in_use]
                for path in [write.path] if len(unused) == len(parts) else unused:
                    self._files.delete_dir(path)

    def _last(self, name: str) -> tuple[int, dict[str, Any]]:
        number = max(self._numbers(name), default=0)
        if not number:
            return 0, {"parts": {}}
        path = self._path(name, number)
        try:
            with self._files.open_input_stream(path) as stream:
                said = json.loads(stream.read())
            return number, {"parts": dict(said["parts"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PipelineError(f"{path}: not a manifest that can be read: {error}; write the table anew") from None

    def _numbers(self, name: str) -> list[int]:
        listed = self._list(f"{self._directory.root}/{name}/{MANIFESTS}")
        return [int(info.base_name.removesuffix(".json")) for info in listed if info.base_name[:1].isdigit()]

    def _path(self, name: str, number: int) -> str:
        return f"{self._directory.root}/{name}/{MANIFESTS}/{number:012d}.json"

    def _list(self, folder: str) -> list[Any]:
        listed: list[Any] = self._files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        return listed


def _files_of(part: dict[str, Any]) -> list[RowFile]:
    """Those of a part; of manifests of before, its folder."""
    if "files" not in part:
        return [RowFile(part["path"], part["rows"], 0)]
    return [
        RowFile(f"{part['path']}/{name}", rows, size_bytes, None if times is None else (times[0], times[1]))
        for name, rows, size_bytes, times in part["files"]
    ]


def _folder_of(path: str) -> str:
    """Of a file, or the folder itself."""
    return path.rpartition("/")[0] if path.endswith(".parquet") else path
