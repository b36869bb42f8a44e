"""The body of `/loadbalance/v1/timeline`: what a heat map draws."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from loadmanager.wire.validation import WireModel

Moment = list[int | str | None]
"""When something happened, in ms since 1970, and what."""


class Timeline(WireModel):
    """`cells` are bytes in base64, row by row, per cent: of brokers the highest usage of any resource, of bundles the
    bytes/s by `scale`, those of the hottest cell; 255 where nothing is known. The first column begins at `from`, each
    is `step_ms` long; a row is called after the brokers, or the bundles, that share it, so many as `sizes` says, and
    shows the highest of them. Of moves, splits and leaders the newest are listed, times in ms since 1970.
    """

    of: Literal["brokers", "bundles"]
    from_: int = Field(alias="from")
    step_ms: int
    columns: int
    rows: list[str]
    sizes: list[int]
    cells: str
    scale: float | None
    moves: list[Moment]
    moves_omitted: int
    splits: list[Moment]
    leaders: list[Moment]
