"""The ranges of a history without Spark: read where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmanager.core.model.load import IntArray
from loadmanager.history.gaps import Gap, find_gaps
from loadmanager.history.reader import History, columns_of
from loadmanager.history.table_schemas import BROKER_REPORTS
from loadmanager.lab.whatif.recorded_ranges import Stretch, read_range
from loadmanager.pipeline.ranges import Outline, Ranges, outline_of


class RangesHere(Ranges):
    def __init__(self, history: History) -> None:
        self._history = history

    def report_times(self, from_ms: int | None, to_ms: int | None) -> IntArray:
        return np.sort(columns_of(self._history, BROKER_REPORTS, from_ms, to_ms, ["at_ms"], None)["at_ms"])

    def gaps(self) -> list[Gap]:
        return find_gaps(self._history)

    def read(self, stretches: Sequence[Stretch]) -> list[Outline | str]:
        return [self._read(stretch) for stretch in stretches]

    def _read(self, stretch: Stretch) -> Outline | str:
        try:
            recorded = read_range(self._history, stretch.once_begun(self._history))
        except ValueError as error:
            return str(error)
        return outline_of(recorded)
