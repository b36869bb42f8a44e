"""Rotating audit log file: one JSON line per entry, bounded in total size.

A thread writes it: a disk that hangs must not cost a node its session. Lines beyond the bounded queue are dropped, and
counted in the ordinary log.
"""

from __future__ import annotations

import logging
import queue
import sys
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

import structlog

from loadmanager.errors import ConfigurationError

log = structlog.get_logger(__name__)

_FILES = 5
_MOST_BYTES = 100 * 1024 * 1024
"""Room for some 300,000 operations; a disk that also holds logs can spare it."""
_WAITING_LINES = 10_000


def require_writable(path: str) -> None:
    """Raise `ConfigurationError` unless the file can be appended to; create it if it is missing. An empty path
    passes.
    """
    try:
        if path:
            Path(path).open("a").close()
    except OSError as error:
        raise ConfigurationError(f"auditLogFile {path}: {error.strerror}") from None


class AuditFile:
    """Rotating file at `path`, with backups `path.1` to `path.4`; at most `most_bytes` in all, plus one line."""

    def __init__(self, path: str, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._waiting: queue.Queue[Any] = queue.Queue(_WAITING_LINES)
        self._put = _Putting(self._waiting)
        self._listener: QueueListener | None = None

    def start(self) -> None:
        """Start the writer thread; raises `ConfigurationError` as `require_writable`."""
        require_writable(self._path)
        file = _Writing(self._path, maxBytes=self._most_bytes // _FILES, backupCount=_FILES - 1, encoding="utf-8")
        self._listener = QueueListener(self._waiting, file)
        self._listener.start()

    def write(self, line: str) -> None:
        self._put.handle(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Flush all waiting lines, then close the file."""
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                handler.close()
            self._listener = None


class _Putting(QueueHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's
        log.error("audit_not_written", why="too many lines wait for the disk", waiting=_WAITING_LINES)


class _Writing(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802 - logging's
        log.error("audit_not_written", path=self.baseFilename, why=str(sys.exception()))
