"""A history of which the bytes of some files are here, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyarrow import fs

from loadmanager.history.files import Directory


class HeldFiles(Directory):
    """`contents` are the bytes of files by their paths, which begin with the `root`. They can be listed and opened."""

    def __init__(self, root: str, contents: Mapping[str, bytes]) -> None:
        super().__init__(fs.LocalFileSystem(), root)
        self._contents = contents

    def exists(self) -> bool:
        return True

    def _infos(self, table: str, from_ms: int | None, to_ms: int | None) -> list[fs.FileInfo]:
        del from_ms, to_ms
        return [
            fs.FileInfo(path, fs.FileType.File, size=len(content))
            for path, content in sorted(self._contents.items())
            if path.startswith(f"{self.root}/{table}/")
        ]

    def open(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._contents[path])
