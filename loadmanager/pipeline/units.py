"""The stretches of time by which tables are parted and made anew: days of UTC, or hours.

A day is what a run of every night has as new, and means few files; an hour is what a stream can make anew again and
again. The load reports of the last minutes of a stretch, which stand into the next one, are a part of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from loadmanager.history.files import DAY_MS, HOUR_MS

Grain = Literal["day", "hour"]

_LENGTHS_MS: dict[Grain, int] = {"day": DAY_MS, "hour": HOUR_MS}
_END = ".end"


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A day or an hour since 1970."""

    number: int
    grain: Grain

    @property
    def from_ms(self) -> int:
        return self.number * _LENGTHS_MS[self.grain]

    @property
    def to_ms(self) -> int:
        return self.from_ms + _LENGTHS_MS[self.grain]

    @property
    def key(self) -> str:
        """The part of the tables: `2026-01-31`, or `2026-01-31T12`."""
        begins = datetime.fromtimestamp(self.from_ms // 1000, UTC)
        return f"{begins:%Y-%m-%d}" if self.grain == "day" else f"{begins:%Y-%m-%dT%H}"

    @property
    def end_key(self) -> str:
        """The part of the clean tables for reports that may stand into the next unit."""
        return f"{self.key}{_END}"

    @property
    def before(self) -> Unit:
        return Unit(self.number - 1, self.grain)

    @property
    def after(self) -> Unit:
        return Unit(self.number + 1, self.grain)

    @property
    def day(self) -> Unit:
        return unit_at(self.from_ms, "day")

    def units(self, grain: Grain) -> list[Unit]:
        """Those of this grain that it consists of."""
        first = self.from_ms // _LENGTHS_MS[grain]
        return [Unit(number, grain) for number in range(first, self.to_ms // _LENGTHS_MS[grain])]


def unit_at(at_ms: int, grain: Grain) -> Unit:
    """The one that has this moment."""
    return Unit(at_ms // _LENGTHS_MS[grain], grain)


def unit_of(key: str, grain: Grain) -> Unit:
    """The one with this key."""
    begins = datetime.fromisoformat(f"{key}T00:00+00:00" if grain == "day" else f"{key}:00+00:00")
    return unit_at(round(begins.timestamp()) * 1000, grain)
