"""Tables as Delta tables: any number of writers, and readers that see a write as a whole or not at all.

Spark writes the rows, on whatever cluster it has; what counts is then entered into the table's log by delta-rs, which
comes as a package: there is no JAR to be fetched. Whatever reads Delta reads the tables. A commit that another one has
overtaken is tried again on top of that. What was replaced is kept for a day: for those who are reading it, and to look
back.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.pipeline.contents import PART, TIME, Contents, RowFile
from loadmanager.pipeline.datasets import schema_of

LOG = "_delta_log"
_KEPT_H = 24
_TRIES = 20
_CAUSES = re.compile(r"↳(?:\x1b\[0m)? *(.+)")


class DeltaAccount:
    """Of the tables under one root: a directory of this machine, or a URL of an object store that delta-rs knows."""

    def __init__(self, root: str) -> None:
        self._root = root

    def contents(self, name: str) -> Contents:
        table = self._open(name)
        if table is None:
            return Contents()
        parts = defaultdict(list)
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            first, last = file.get(f"min.{TIME}"), file.get(f"max.{TIME}")
            times = None if first is None or last is None else (first, last)
            row_file = RowFile(file["path"], file["num_records"], file["size_bytes"], times)
            parts[file[f"partition.{PART}"]].append(row_file)
        return Contents(table.version() + 1, parts)

    def commit(self, name: str, added: Mapping[str, Sequence[RowFile]], replaced: Sequence[str] | None) -> None:
        now_ms = time.time_ns() // 1_000_000
        actions = [
            AddAction(each.path, each.size_bytes, {PART: key}, now_ms, True, _statistics(each))  # noqa: FBT003 - its API
            for key, files in added.items()
            for each in files
        ]
        for _ in range(_TRIES):
            table = self._open(name)
            try:
                self._try_commit(name, table, actions, replaced)
            except (DeltaError, OSError) as error:
                if _version(table) == _version(self._open(name)):
                    raise PipelineError(f"{self._root}/{name}: cannot be written: {_in_a_line(error)}") from error
            else:
                return
        raise PipelineError(f"{self._root}/{name}: others have overtaken {_TRIES} commits of this write; try it again")

    def _try_commit(
        self, name: str, table: DeltaTable | None, actions: list[Any], replaced: Sequence[str] | None
    ) -> None:
        """On top of the version that was read: where there is a newer one by now, it fails."""
        schema = Schema.from_arrow(to_arrow_schema(schema_of(name)).append(pa.field(PART, pa.string())))
        properties = CommitProperties(max_commit_retries=0)
        if table is None:
            url = f"{self._root}/{name}"
            create_table_with_add_actions(url, schema, actions, partition_by=[PART], commit_properties=properties)
            return
        of_parts = None if replaced is None else [(PART, "in", list(replaced))]
        table.create_write_transaction(actions, "overwrite", schema, [PART], of_parts, commit_properties=properties)

    def clean(self, name: str) -> None:
        table = self._open(name)
        with suppress(DeltaError, OSError):
            if table is not None and table.vacuum(_KEPT_H, enforce_retention_duration=False, full=True):
                table.vacuum(_KEPT_H, dry_run=False, enforce_retention_duration=False, full=True)

    def _open(self, name: str) -> DeltaTable | None:
        try:
            return DeltaTable(f"{self._root}/{name}")
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise PipelineError(
                f"{self._root}/{name}: its log cannot be read: {_in_a_line(error)}; write the table anew"
            ) from None


def _version(table: DeltaTable | None) -> int:
    return -1 if table is None else table.version()


def _statistics(file: RowFile) -> str:
    """Where they have times, whoever reads a range of them can pass over other files."""
    said: dict[str, Any] = {"numRecords": file.rows}
    if file.times is not None:
        first, last = file.times
        said |= {"minValues": {TIME: first}, "maxValues": {TIME: last}}
    return orjson.dumps(said).decode()


def _in_a_line(error: Exception) -> str:
    """With what it came from, and without where in delta-rs it happened."""
    text = str(error)
    return ": ".join([text.partition("\n")[0], *_CAUSES.findall(text)])
