"""What is wrong with znodes, by their paths, while it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from loadmanager.core.domain.names import InvalidNameError
from loadmanager.errors import InvalidRecordError

log = structlog.get_logger(__name__)


class ZnodeFaults:
    """Keeps `listed` true to what was read last; `counted` are those that came up."""

    def __init__(self, listed: dict[str, str]) -> None:
        self._listed = listed
        self.counted = 0

    @contextmanager
    def of(self, path: str) -> Iterator[None]:
        """Applying what was read at a path: whatever is wrong with it is listed, and else nothing any more."""
        try:
            yield
        except (InvalidRecordError, InvalidNameError) as error:
            self.reject(path, error)
        else:
            self._listed.pop(path, None)

    def reject(self, path: str, error: Exception) -> None:
        """List what is wrong with a znode until it is mended; counted and logged once."""
        if self._listed.get(path) != str(error):
            self.counted += 1
            log.warning("record_rejected", path=path, error=str(error))
        self._listed[path] = str(error)
