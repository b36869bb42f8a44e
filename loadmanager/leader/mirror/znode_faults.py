"""Faults of znodes: what is wrong with each, by path, for as long as it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from loadmanager.core.domain.names import InvalidNameError
from loadmanager.errors import InvalidRecordError

log = structlog.get_logger(__name__)


class ZnodeFaults:
    """Keeps `listed` true to the last read; `counted` is the number of faults so far."""

    def __init__(self, listed: dict[str, str]) -> None:
        self._listed = listed
        self.counted = 0

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Apply what was read at a path: a record error is listed, success clears it."""
        try:
            yield
        except (InvalidRecordError, InvalidNameError) as error:
            self.reject(path, error)
        else:
            self._listed.pop(path, None)

    def reject(self, path: str, error: Exception) -> None:
        """List a fault of a znode until it is mended; each one is counted and logged once."""
        if self._listed.get(path) != str(error):
            self.counted += 1
            log.warning("record_rejected", path=path, error=str(error))
        self._listed[path] = str(error)
