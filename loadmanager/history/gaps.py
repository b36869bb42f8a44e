"""Gaps of a history: marked by events, or implied by a term without an end.

A leader's first row is `term_began`, its last one `term_ended`. Between them, `gap` marks dropped rows. At the begin of
a term the writer reads the end of the existing history, and `term_began` records what may be missing before it. A
history with later epochs belongs to another metadata store and is renamed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from loadmanager.errors import HistoryError, HistoryFileError
from loadmanager.history.files import SINCE_KEY, HistoryFile
from loadmanager.history.reader import History, OnFault
from loadmanager.history.table_schemas import EVENTS, TABLES

TERM_BEGAN, TERM_ENDED, GAP = MARKS = "term_began", "term_ended", "gap"

_NEXT_BUT_ONE = 2

IMPORTED = 0
"""Epoch of imported rows; a leader's epochs start at 1."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Time range in which rows may be missing, with their number (None: unknown) and the reason."""

    epoch: int
    from_ms: int
    to_ms: int
    rows: int | None
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """End of a history: its newest position, and the time from which rows may be missing unless its term was ended."""

    epoch: int
    sequence: int
    since_ms: int
    ended: bool


def find_gaps(history: History, on_fault: OnFault | None = None) -> list[Gap]:
    """Return all marked gaps in order, except those that a late file of a former leader has closed."""
    rows = history.rows(EVENTS, columns=["epoch", "kind", "body"], on_fault=on_fault)
    return gaps_in([(row["epoch"], row["kind"], row["body"]) for row in rows if row["kind"] in MARKS])


def gaps_in(rows: Sequence[tuple[int, str, str | None]]) -> list[Gap]:
    """Return the gaps in events given by epoch, kind and body."""
    ended = {epoch for epoch, kind, _ in rows if kind == TERM_ENDED}
    gaps = []
    for epoch, kind, text in rows:
        body = orjson.loads(text or "{}")
        missing = body.get("gap") if kind == TERM_BEGAN else body if kind == GAP else None
        previous = (body.get("previous") or {}).get("epoch")
        if missing and not (previous == epoch - 1 and previous in ended):
            gaps.append(Gap(epoch, missing["from_ms"], missing["to_ms"], missing.get("rows"), missing["why"]))
    return gaps


def last_epoch(history: History) -> int:
    """Return the newest recorded epoch; 0 without any. Raises `HistoryError`."""
    files = (file for table in TABLES for file in history.files(table, on_fault=_ignore))
    return max((file.epoch for file in files), default=IMPORTED)


def find_end(history: History, epoch: int, at_ms: int) -> End | None:
    """Return the end of the recorded history before the term of this epoch and start time; None if it is empty.

    Raises `HistoryError` if the term does not fit in: its epoch exists already, or a later epoch existed before it.
    """
    files = [file for table in TABLES for file in history.files(table, on_fault=_ignore) if file.epoch != IMPORTED]
    later = min((file for file in files if file.epoch >= epoch), key=lambda file: file.order, default=None)
    if later is not None and (later.epoch == epoch or _since_ms(history, later) < at_ms):
        raise HistoryError(
            f"{history.directory}: has rows of epoch {later.epoch} already, and epoch {epoch} begins only now: it is"
            " the history of another cluster, or of this one before its metadata were lost; move it, or use another"
        )
    newest = max((file for file in files if file.epoch < epoch), key=lambda file: (file.epoch, file.last), default=None)
    if newest is None:
        return None
    return End(newest.epoch, newest.last, _since_ms(history, newest), _has_ended(history, newest))


def missing_before(epoch: int, at_ms: int, end: End | None) -> dict[str, Any] | None:
    """Describe the gap between that end and a term that begins now; None if there is none."""
    if end is None or (end.ended and end.epoch == epoch - 1):
        return None
    if end.epoch == epoch - 1:
        why = f"the leader of epoch {end.epoch} did not end its term: its unwritten rows are lost"
    else:
        between = (
            f"epoch {epoch - 1}" if epoch - end.epoch == _NEXT_BUT_ONE else f"the epochs {end.epoch + 1} to {epoch - 1}"
        )
        why = f"nothing was recorded in {between}" + ("" if end.ended else f", and epoch {end.epoch} was not ended")
    return {"from_ms": end.since_ms, "to_ms": at_ms, "rows": None, "why": why}


def _since_ms(history: History, newest: HistoryFile) -> int:
    try:
        with history.open(newest) as parquet:
            value = (parquet.schema_arrow.metadata or {}).get(SINCE_KEY, b"")
    except (HistoryFileError, FileNotFoundError):
        return newest.hour_ms
    return int(value) if value.isdigit() else newest.hour_ms


def _has_ended(history: History, newest: HistoryFile) -> bool:
    """Return True if the newest row ends its term."""
    if newest.table != EVENTS:
        return False
    try:
        with history.open(newest) as parquet:
            rows = parquet.read(columns=["sequence", "kind"]).to_pylist()
    except (HistoryFileError, FileNotFoundError):
        return False
    return bool(rows) and rows[-1] == {"sequence": newest.last, "kind": TERM_ENDED}


def _ignore(_: HistoryFileError) -> None:
    """Skip an unusable file: reading it reports the fault."""


log = structlog.get_logger(__name__)


def move_aside_if_ahead(history: Path, epoch: int, key: str) -> None:
    """Rename the folder if it holds entries of a later epoch than the current one.

    `key` is the setting of the store's URL. Raises `HistoryError`.
    """
    if last_epoch(History(str(history))) <= epoch:
        return
    aside = history.with_name(f"{history.name}-until-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    try:
        history.rename(aside)
    except OSError as error:
        raise HistoryError(f"{history}: of another {key}, and cannot be moved aside: {error.strerror}") from None
    log.warning("history_moved_aside", why=f"its epochs are of another {key}", to=str(aside))
