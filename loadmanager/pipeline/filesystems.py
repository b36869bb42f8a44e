"""Files where Spark has them: those of this machine directly, all others through Hadoop's filesystems in its JVM.

Arrow's own `HadoopFileSystem`, and fsspec's, which stands on it, take libhdfs, which comes neither with Spark nor with
Arrow, and start a JVM of their own with a classpath and credentials to be set up again. Asked through py4j, Spark's JVM
has all of that: what Spark can read is read here too, in any filesystem.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from loadmanager.errors import PipelineError
from loadmanager.history.files import Directory

CANNOT_GO_ON = (PySparkException, Py4JError, OSError, pa.ArrowException)
"""What Spark, its filesystems and Arrow fail with."""

_NOT_FOUND = "java.io.FileNotFoundException"
_COPIED_AT_ONCE = 1 << 20
_WITH_ALL_IN_IT = True
_REPLACING = True


def directory_at(spark: SparkSession, url: str) -> Directory:
    """The directory at a URL as Spark understands it; a path is one of this machine when Spark runs here."""
    is_here = (spark.sparkContext.master or "").startswith("local")
    if url.startswith("file:") or ("://" not in url and is_here):
        path = "/" + url.removeprefix("file:").lstrip("/") if url.startswith("file:") else str(Path(url).absolute())
        return Directory(fs.LocalFileSystem(), path)
    try:
        handler = _Hadoop(spark, url)
    except Py4JError as error:
        raise PipelineError(f"{url}: no filesystem that Spark knows: {_message(error)}") from None
    return Directory(fs.PyFileSystem(handler), url)


def url_for_spark(directory: Directory, path: str) -> str:
    """How Spark is told of a file or folder in the directory."""
    return f"file:{path}" if isinstance(directory.filesystem, fs.LocalFileSystem) else path


def put(directory: Directory, path: str, data: bytes) -> None:
    """Make `data` the file at `path`, in place of the one that may be there."""
    with suppress(FileNotFoundError):
        if not isinstance(directory.filesystem, fs.LocalFileSystem):  # others do not rename over a file
            directory.filesystem.delete_file(f"{directory.root}/{path}")
    directory.write(path, pa.py_buffer(data))


def find_text(directory: Directory, path: str) -> str | None:
    """What the file at `path` says; None where there is none that can be read."""
    try:
        with directory.open(f"{directory.root}/{path}") as file:
            return bytes(file.read()).decode()
    except OSError:
        return None


class _Hadoop(fs.FileSystemHandler):  # type: ignore[misc]  # Arrow comes without types
    """What Arrow asks of a filesystem, answered by Hadoop's. Paths are URLs."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        context = spark.sparkContext
        self._jvm: Any = context._jvm  # noqa: SLF001 - the only way to Hadoop's filesystems
        configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
        self._files = self._path(url).getFileSystem(configuration)

    def _path(self, path: str) -> Any:  # noqa: ANN401 - Hadoop's Path
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def get_type_name(self) -> str:
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:  # noqa: ANN401 - Arrow's information on a file
        try:
            return _info_of(path, self._files.getFileStatus(self._path(path)))
        except Py4JError as error:
            if _is_missing(error):
                return fs.FileInfo(path, fs.FileType.NotFound)
            raise OSError(_message(error)) from None

    def get_file_info_selector(self, selector: Any) -> list[Any]:  # noqa: ANN401 - Arrow's selector
        try:
            listed = self._files.listStatus(self._path(selector.base_dir))
        except Py4JError as error:
            if _is_missing(error) and selector.allow_not_found:
                return []
            raise (FileNotFoundError if _is_missing(error) else OSError)(_message(error)) from None
        found = []
        for status in listed:
            info = _info_of(f"{selector.base_dir.rstrip('/')}/{status.getPath().getName()}", status)
            found.append(info)
            if selector.recursive and info.type == fs.FileType.Directory:
                found += self.get_file_info_selector(fs.FileSelector(info.path, recursive=True))
        return found

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: ARG002, FBT001 - Arrow's signature
        self._do(lambda: self._files.mkdirs(self._path(path)))

    def delete_dir(self, path: str) -> None:
        self._do(lambda: self._files.delete(self._path(path), _WITH_ALL_IN_IT))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - Arrow's
        for info in self.get_file_info_selector(fs.FileSelector(path, allow_not_found=missing_dir_ok)):
            self.delete_dir(info.path)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._do(lambda: self._files.delete(self._path(path), not _WITH_ALL_IN_IT))

    def move(self, src: str, dest: str) -> None:
        if not self._do(lambda: self._files.rename(self._path(src), self._path(dest))):
            raise FileExistsError(f"{src} cannot become {dest}: it is there already, or the source is not")

    def copy_file(self, src: str, dest: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:  # noqa: ANN401 - Arrow's file
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:  # noqa: ANN401 - Arrow's file
        info = self._info(path)
        if info.type != fs.FileType.File:
            raise FileNotFoundError(path)
        return pa.PythonFile(_HadoopFile(self._jvm, self._files.open(self._path(path)), info.size), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:  # noqa: ANN401, ARG002 - Arrow's signature
        return pa.PythonFile(_HadoopSink(self._do(lambda: self._files.create(self._path(path), _REPLACING))), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:  # noqa: ANN401 - Arrow's signature
        raise NotImplementedError

    def _do(self, operation: Any) -> Any:  # noqa: ANN401 - what Hadoop answers
        try:
            return operation()
        except Py4JError as error:
            raise OSError(_message(error)) from None


class _HadoopFile:
    """A file to be read at any place, for `pa.PythonFile`."""

    def __init__(self, jvm: Any, stream: Any, size: int) -> None:  # noqa: ANN401 - of the JVM
        self._jvm, self._stream, self._size, self._at = jvm, stream, size, 0
        self.closed = False

    def read(self, size: int | None = None) -> bytes:
        wanted = self._size - self._at if size is None or size < 0 else min(size, self._size - self._at)
        if wanted <= 0:
            return b""
        self._stream.seek(self._at)
        data = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(self._stream, wanted))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


class _HadoopSink:
    """A file that is written from its beginning, for `pa.PythonFile`."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - of the JVM
        self._stream = stream
        self.closed = False

    def write(self, data: Any) -> int:  # noqa: ANN401 - anything with bytes in it
        content = bytes(data)
        for at in range(0, len(content), _COPIED_AT_ONCE):
            self._stream.write(bytearray(content[at : at + _COPIED_AT_ONCE]))
        return len(content)

    def flush(self) -> None:
        self._stream.flush()

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()


def _info_of(path: str, status: Any) -> Any:  # noqa: ANN401 - of Hadoop and of Arrow
    if status.isDirectory():
        return fs.FileInfo(path, fs.FileType.Directory)
    mtime_ns = status.getModificationTime() * 1_000_000
    return fs.FileInfo(path, fs.FileType.File, mtime_ns=mtime_ns, size=status.getLen())


def _is_missing(error: Py4JError) -> bool:
    return _NOT_FOUND in str(error) or _NOT_FOUND in str(getattr(error, "java_exception", ""))


def _message(error: Py4JError) -> str:
    cause = getattr(error, "java_exception", None)
    return str(error if cause is None else cause.toString())
