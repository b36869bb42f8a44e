"""The bytes of files for workers in Python: they open those of this machine; of other filesystems Spark brings them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pyarrow import fs
from pyspark import RDD, Broadcast
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from loadmanager.history.files import Directory
from loadmanager.pipeline.contents import place_of
from loadmanager.pipeline.filesystems import url_for_spark

T = TypeVar("T")

Work = Callable[[int, T, Mapping[str, bytes]], Iterator[Any]]
"""What is made of a task's number, the task, and the bytes of its files by the `place_of` each. To ask for those of a
file that is gone by now is a `KeyError`; one that cannot be opened is an `OSError`.
"""

_GONE = "PATH_NOT_FOUND"


def bytes_of(spark: SparkSession, directory: Directory, paths: Sequence[str]) -> DataFrame:
    """`path` and `content` of those files that are there; the paths may begin otherwise than here."""
    reader = spark.read.format("binaryFile").option("ignoreMissingFiles", "true")
    try:
        files = reader.load([url_for_spark(directory, path) for path in paths])
    except AnalysisException as error:
        there = [info.path for info in directory.filesystem.get_file_info(list(paths)) if info.is_file]
        if error.getCondition() != _GONE or len(there) == len(paths):
            raise
        return bytes_of(spark, directory, there)  # retention was faster
    return files.select("path", "content")


def on_files(
    spark: SparkSession, directory: Directory, tasks: Sequence[tuple[T, Sequence[str]]], work: Work[T]
) -> RDD[Any]:
    """What `work` makes of each task and its files, which are given by their paths, on a partition each."""
    if not any(paths for _, paths in tasks):
        return spark.sparkContext.emptyRDD()
    if isinstance(directory.filesystem, fs.LocalFileSystem):
        given = [(number, task, paths) for number, (task, paths) in enumerate(tasks)]
        return spark.sparkContext.parallelize(given, len(given)).flatMap(partial(_on_own_files, work))
    tasks_of: dict[str, list[int]] = {}
    for number, (_, paths) in enumerate(tasks):
        for path in paths:
            tasks_of.setdefault(path, []).append(number)
    numbers = {place_of(path): each for path, each in tasks_of.items()}
    brought = bytes_of(spark, directory, list(tasks_of)).rdd.flatMap(partial(_to_tasks, numbers))
    shared = spark.sparkContext.broadcast([task for task, _ in tasks])
    return brought.partitionBy(len(tasks), int).mapPartitionsWithIndex(partial(_on_brought_files, work, shared))


def exchanged(made: RDD[Any], tasks: int) -> RDD[Any]:
    """What was made for so many tasks, in pairs with the number of each, brought to them; a single one has it."""
    return made if tasks == made.getNumPartitions() == 1 else made.partitionBy(max(1, tasks), int)


class OwnFiles(Mapping[str, bytes]):
    """Files of this machine, read when they are asked for."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = {place_of(path): Path(path) for path in paths}

    def __getitem__(self, place: str) -> bytes:
        try:
            return self._paths[place].read_bytes()
        except FileNotFoundError:
            raise KeyError(place) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _on_own_files(work: Work[T], given: tuple[int, T, Sequence[str]]) -> Iterator[Any]:
    number, task, paths = given
    return work(number, task, OwnFiles(paths))


def _to_tasks(numbers: dict[str, list[int]], file: tuple[str, bytearray]) -> list[tuple[int, tuple[str, bytes]]]:
    place, content = place_of(file[0]), bytes(file[1])
    return [(number, (place, content)) for number in numbers[place]]


def _on_brought_files(
    work: Work[T], tasks: Broadcast[list[T]], number: int, files: Iterable[tuple[int, tuple[str, bytes]]]
) -> Iterator[Any]:
    return work(number, tasks.value[number], dict(file for _, file in files))
