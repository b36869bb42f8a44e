"""Stretches of a history without gaps, for worlds to replay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import numpy as np

from loadmanager.core.load import IntArray
from loadmanager.errors import PipelineError
from loadmanager.history.gaps import Gap
from loadmanager.history.reader import History
from loadmanager.history.schemas import BROKER_REPORTS
from loadmanager.pipeline.ranges import Ranges
from loadmanager.pipeline.whatif_file import FEWEST_STEPS, WhatIf
from loadmanager.sim.recorded import HOLD_S
from loadmanager.whatif.ranges import Stretch

_SHORTEST_PART = 0.25
"""Of the longest stretch; a shorter one is left out, as it counts as much as any other."""


def find_stretches(whatif: WhatIf, history: History, ranges: Ranges) -> tuple[list[Stretch], list[str]]:
    """The range, cut where something is missing and wherever a stretch is full; and what is left out, a sentence each.

    Raises `PipelineError` for a range without reports.
    """
    from_ms, to_ms = (None if at is None else round(at.timestamp() * 1000) for at in (whatif.begin, whatif.end))
    at_ms = ranges.report_times(from_ms, to_ms)
    if not len(at_ms):
        there = history.info(BROKER_REPORTS, on_fault=lambda _: None)
        has = "it has none at all" if there.from_ms is None else f"it has them {when(there.from_ms, there.to_ms or 0)}"
        asked = when(from_ms, to_ms)
        raise PipelineError(f"{history.directory}: no broker reports {asked}; {has}")
    from_ms = int(at_ms[0]) if from_ms is None else from_ms
    to_ms = int(at_ms[-1]) + 1 if to_ms is None else to_ms
    missing = [*_silences(at_ms, from_ms, to_ms), *_marked(ranges.gaps())]
    left_out = [
        f"{when(max(start, from_ms), min(end, to_ms))}: {why}"
        for start, end, why in missing
        if end > from_ms and start < to_ms
    ]
    pieces: list[tuple[int, int]] = []
    stretch_ms = round(whatif.stretch_s * 1000)
    for start, end in _without(from_ms, to_ms, missing):
        pieces += [(at, min(at + stretch_ms, end)) for at in range(start, end, stretch_ms)]
    step_ms = round(whatif.step_s * 1000)
    shortest_ms = max(FEWEST_STEPS * step_ms, _SHORTEST_PART * max((end - start for start, end in pieces), default=0))
    found: list[Stretch] = []
    for start, end in pieces:
        if end - start < shortest_ms:
            left_out.append(f"{when(start, end)}: too short beside the other stretches, or for {FEWEST_STEPS} steps")
        else:
            found.append(Stretch(len(found), start, start + (end - start) // step_ms * step_ms))
    return found, left_out


def _silences(at_ms: IntArray, from_ms: int, to_ms: int) -> Iterator[tuple[int, int, str]]:
    """When no broker reported for so long that what was reported before does not hold."""
    hold_ms = round(HOLD_S * 1000)
    ends = np.concatenate([[from_ms - hold_ms], at_ms, [to_ms]])
    for last in np.flatnonzero(np.diff(ends) > 2 * hold_ms).tolist():
        yield int(ends[last]) + hold_ms, int(ends[last + 1]), "no broker reported"


def _marked(gaps: Iterable[Gap]) -> Iterator[tuple[int, int, str]]:
    """Gaps that leaders have marked, if they are longer than a report stands."""
    for gap in gaps:
        if gap.to_ms - gap.from_ms > HOLD_S * 1000:
            yield gap.from_ms, gap.to_ms, f"a gap in the history: {gap.why}"


def _without(from_ms: int, to_ms: int, missing: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """What is left of a range, in order."""
    at = from_ms
    for start, end, _ in sorted(missing):
        if start > at:
            yield at, min(start, to_ms)
        at = max(at, min(end, to_ms))
    if at < to_ms:
        yield at, to_ms


def when(from_ms: int | None, to_ms: int | None) -> str:
    parts = [
        f"{word} {datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec='seconds')}"
        for word, at in (("from", from_ms), ("to", to_ms))
        if at is not None
    ]
    return " ".join(parts) or "at any time"
