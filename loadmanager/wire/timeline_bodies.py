"""Body of `/loadbalance/v1/timeline`, for the heat map."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from loadmanager.wire.validation import WireModel

Moment = list[int | str | None]
"""When something happened, in ms since 1970, and what."""


class Timeline(WireModel):
    """Heat map. `cells` are bytes in base64, row by row, per cent: of brokers the highest usage of any resource, of
    bundles the bytes/s by `scale`, that of the hottest cell; 255 where nothing is known. The first column begins at
    `from`, each is `step_ms` long; a row shows the highest of the `sizes` brokers or bundles that share it. Moves,
    splits and leaders list the newest, times in ms since 1970.
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
