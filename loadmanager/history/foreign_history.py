"""Detection of a history of another metadata store: its epochs are ahead, and it is put aside."""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from loadmanager.errors import HistoryError
from loadmanager.history.gaps import last_epoch
from loadmanager.history.reader import History

log = structlog.get_logger(__name__)


def put_aside_if_ahead(history: Path, epoch: int, key: str) -> None:
    """Rename the folder if it holds entries of a later epoch than the present one.

    `key` is that of the store's URL. Raises `HistoryError`.
    """
    if last_epoch(History(str(history))) <= epoch:
        return
    aside = history.with_name(f"{history.name}-until-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    try:
        history.rename(aside)
    except OSError as error:
        raise HistoryError(f"{history}: of another {key}, and cannot be put aside: {error.strerror}") from None
    log.warning("history_put_aside", why=f"its epochs are of another {key}", to=str(aside))
