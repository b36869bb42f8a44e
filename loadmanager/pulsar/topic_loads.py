"""Load of bundles beside an extensible load manager: the sums over their topics, as each owner reports them.

A bundle that just moved keeps its former rates for `MEASURED_S`: its new owner reports 0 until it has measured them.
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
        """Time of the new owner's first answer, and the former rates."""

    def put(self, broker: BrokerId, owned: Iterable[str], loads: Mapping[str, Record]) -> None:
        """Apply a broker's answer. A bundle that it owns, but that has no topics there, has no load."""
        now_s = time.monotonic()
        for name in owned:
            before, former_owner = self.by_bundle.pop(name, None), self._reported_by.pop(name, None)
            if before is not None and former_owner != broker:
                self._moved[name] = now_s, {key: before[key] for key in RATES}
        self._moved = {name: each for name, each in self._moved.items() if now_s - each[0] < MEASURED_S}
        for name, load in loads.items():
            _, former = self._moved.get(name, (now_s, {}))
            self.by_bundle[name] = {**load, **former}
            self._reported_by[name] = broker
