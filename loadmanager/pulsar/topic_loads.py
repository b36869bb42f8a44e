"""Load of bundles beside an extensible load manager: the sums over their topics, as each owner reports them.

A bundle that just moved keeps its former rates, for as long as its new owner may not have measured them and reports 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from loadmanager.core.domain.names import BrokerId
from loadmanager.pulsar.rest_answers import RATES, Record

MEASURED_S = 60.0
"""Interval in which Pulsar measures the rates of topics (`statsUpdateFrequencyInSecs`)."""


class TopicLoads:
    """Load of each bundle by name, from the last answer of its owner; until that, of its former owner."""

    def __init__(self) -> None:
        self.by_bundle: dict[str, Record] = {}
        self._reported_by: dict[str, BrokerId] = {}
        self._moved: dict[str, tuple[float, Record]] = {}
        """Time of the new owner's first answer, and the former load."""

    def put(self, broker: BrokerId, owned: Iterable[str], loads: Mapping[str, Record]) -> None:
        """Apply a broker's answer. A bundle that it owns, but that has no topics there, has no load."""
        now_s = time.monotonic()
        for name in owned:
            before = self.by_bundle.pop(name, None)
            if before is not None and self._reported_by[name] != broker:
                self._moved[name] = now_s, before
        self._moved = {name: each for name, each in self._moved.items() if now_s - each[0] < MEASURED_S}
        for name, load in loads.items():
            _, before = self._moved.get(name, (now_s, load))
            self.by_bundle[name] = {**load, **{key: before[key] for key in RATES}}
            self._reported_by[name] = broker
