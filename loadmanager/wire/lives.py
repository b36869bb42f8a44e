"""What became of a bundle: the answer of `GET /loadbalance/v1/history/bundle/{tenant}/{namespace}/{range}`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from loadmanager.wire.validation import WireModel


class LifeEntry(WireModel):
    """One thing that happened to the bundle, or to one whose range overlaps with its, or was decided about it.

    `kind` is that of the decision (shed, place, drain, split, merge, ...), `move`, `cut`, `operation`, `broker_gone`,
    `leader` or `gap`. What was said several times in a row without anything being done is one entry, until `last_at`.
    `detail` has the figures behind the sentence.
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


class BundleLife(WireModel):
    """All of it within these times (ms since 1970), oldest first; `omitted`: so many older entries were left out."""

    bundle: str
    since: int
    until: int
    omitted: int
    entries: list[LifeEntry]
