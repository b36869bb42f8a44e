"""Reads from the recorded history: a bounded queue with a thread of its own, and bundle lineage.

A read may cover hours of files. Repeated reads must not occupy the default executor, which resolves host names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.errors import HistoryError, HistoryFileError, NotFoundError
from loadmanager.history.bundle_lineage import read_lineage
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.wire.lineage_bodies import BundleLineage

_Found = TypeVar("_Found")

MOST_WAITING = 32


class HistoryQueries:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "history")
        self._asked = 0

    async def run(self, read: Callable[..., _Found], *given: object) -> _Found:
        """Return what `read` returns, or raise what it raises; `HistoryError` when too many callers wait already."""
        if self._asked > MOST_WAITING:
            raise HistoryError(f"{MOST_WAITING} reads of the history are waiting already; try again later")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, *given)
        finally:
            self._asked -= 1


log = structlog.get_logger(__name__)

_FLUSH_S = 2.0
"""Timeout for writing rows that still wait for the recorder, before a read."""


class LineageReader:
    """Reads bundle lineage."""

    def __init__(self, history_url: str, recorder: HistoryRecorder) -> None:
        self._history_url = history_url
        self._recorder = recorder
        self._readings = HistoryQueries()

    async def of(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        """Return the newest entries of a bundle's lineage in a time range.

        Raises `NotFoundError` on a node without a history, `HistoryError` if it cannot be read.
        """
        if not self._recorder.is_on:
            raise NotFoundError(
                "nothing is recorded: set historyUrl; recent decisions are in"
                f" `loadmanager admin decisions --bundle {name}`"
            )
        return await self._readings.run(self._tell, name, since_ms, until_ms, limit)

    def _tell(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        self._recorder.flush(_FLUSH_S)
        history = History(Directory.of(self._history_url))
        return read_lineage(history, name, since_ms, until_ms, limit, _note)


def _note(fault: HistoryFileError) -> None:
    log.warning("history_file_left_out", error=str(fault))
