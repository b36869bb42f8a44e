"""Bundle lineage, read from the history that this node records."""

from __future__ import annotations

import structlog

from loadmanager.core.domain.names import BundleName
from loadmanager.errors import HistoryFileError, NotFoundError
from loadmanager.history.bundle_lineage import read_lineage
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.leader.audit.history_queries import HistoryQueries
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.wire.lineage_bodies import BundleLineage

log = structlog.get_logger(__name__)

_FLUSH_S = 2.0
"""Timeout for writing the last minute before a read."""


class LineageReader:
    """Reads bundle lineage; implements `node_port.LineagePort`."""

    def __init__(self, history_url: str, recorder: HistoryRecorder) -> None:
        self._history_url = history_url
        self._recorder = recorder
        self._readings = HistoryQueries()

    async def of(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        """Return the newest of a bundle's lineage within these times; raises `NotFoundError` without a history,
        `HistoryError` from reading it.
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
