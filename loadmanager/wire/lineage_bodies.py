"""Bundle lineage and audit log: answers and entries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import Field

from loadmanager.wire.validation import WireModel


class LineageEntry(WireModel, frozen=False):
    """An event of the bundle, or of one with an overlapping range, or a decision about it.

    `kind` is that of the decision (shed, place, drain, split, merge, ...), `move`, `cut`, `operation`, `broker_gone`,
    `leader` or `gap`. Consecutive equal entries without an action are one entry, until `last_at`. `detail` has the
    figures of the sentence.
    """

    at: int
    last_at: int
    times: int = 1
    epoch: int
    sequence: int
    kind: str
    bundle: str | None = None
    reason: str = ""
    acted: bool = True
    sentence: str
    source: str | None = None
    destination: str | None = None
    detail: dict[str, Any] = Field(default_factory=dict)


class BundleLineage(WireModel):
    """Lineage of a bundle in a time range (ms since 1970), oldest first; `omitted` is the number of older entries left
    out.

    `unheard` are nodes that did not answer, and may have recorded more.
    """

    bundle: str
    since: int
    until: int
    omitted: int
    entries: list[LineageEntry]
    unheard: list[str] = Field(default_factory=list)


def merge_lineages(lives: Sequence[BundleLineage], most: int, unheard: list[str]) -> BundleLineage:
    """Merge the lineages of several nodes; nodes with a common history have equal entries."""
    known = {(each.epoch, each.sequence, each.kind, each.bundle): each for life in lives for each in life.entries}
    led = {epoch for epoch, *_ in known}
    entries = sorted(
        (each for each in known.values() if not _is_filled(each, led)), key=lambda each: (each.epoch, each.sequence)
    )
    omitted = max(life.omitted for life in lives) + max(0, len(entries) - most)
    return lives[0].model_copy(update={"omitted": omitted, "entries": entries[-most:], "unheard": unheard})


def _is_filled(entry: LineageEntry, led: Collection[int]) -> bool:
    """Tell if the entry is a gap of whole terms that other nodes have recorded."""
    previous = entry.detail.get("previous") if entry.kind == "gap" else None
    between = range(previous["epoch"] + 1, entry.epoch) if previous and previous["ended"] else ()
    return bool(between) and all(epoch in led for epoch in between)


ANONYMOUS = "anonymous"


class AuditEntry(WireModel):
    """An operation that changes something, whatever its outcome.

    `at` is the time of the answer by `node`, in epoch milliseconds, `status` its status, `from_` the caller's address,
    and `operation` a verb and a path with variables. `before` and `after` contain only what changed; they are None if
    nothing changed, or if the path says everything.
    """

    at: int
    node: str
    request_id: str
    who: str
    from_: str = Field(alias="from")
    operation: str
    path: str
    status: int
    before: Any = None
    after: Any = None


class AuditAnswer(WireModel):
    """`GET /loadbalance/v1/audit`, newest first."""

    entries: list[AuditEntry]
