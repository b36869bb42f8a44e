"""Reference implementation of the pipeline's windows, moment by moment and without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TypeVar

WINDOW_MS = 300_000
STANDS_MS = 900_000

Bundle = tuple[str, int, int]
"""Namespace, lower and upper end."""

Load = tuple[float, ...]

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class Reported:
    """A report of a broker with the load of its bundles, and how much of its CPU it used."""

    at_ms: int
    epoch: int
    sequence: int
    broker: str
    bundles: Mapping[Bundle, Load]
    cpu: float = 0.0

    def total(self) -> Load:
        return tuple(sum(load[at] for load in self.bundles.values()) for at in range(4))


@dataclass(frozen=True, slots=True)
class Happened:
    """`broker_gone`, `term_began` or `term_ended`."""

    at_ms: int
    epoch: int
    sequence: int
    kind: str
    subject: str = ""


@dataclass(slots=True)
class PlainWindow:
    """Window of 5 minutes of any subject: time in ms, and load times ms."""

    n: int = 0
    covered_ms: int = 0
    load: list[float] = field(default_factory=lambda: [0.0] * 4)
    highest: list[float] = field(default_factory=lambda: [0.0] * 4)
    bundles_ms: int = 0
    cpu: float = 0.0
    names: set[Bundle] = field(default_factory=set)

    def add(self, ms: int, load: Sequence[float]) -> None:
        self.load = [total + ms * each for total, each in zip(self.load, load, strict=True)]
        self.bundles_ms += ms

    def raise_to(self, load: Sequence[float]) -> None:
        self.highest = [max(pair) for pair in zip(self.highest, load, strict=True)]


Windows = dict[tuple[Name, int], PlainWindow]


@dataclass(slots=True)
class PlainWindows:
    """By who or what and when the window starts."""

    bundles: Windows[Bundle] = field(default_factory=lambda: defaultdict(PlainWindow))
    brokers: Windows[str] = field(default_factory=lambda: defaultdict(PlainWindow))
    namespaces: Windows[str] = field(default_factory=lambda: defaultdict(PlainWindow))

    def without_empty(self) -> PlainWindows:
        """Return the windows with any coverage."""
        return PlainWindows(_not_empty(self.bundles), _not_empty(self.brokers), _not_empty(self.namespaces))


def _not_empty(windows: Windows[Name]) -> Windows[Name]:
    return {key: window for key, window in windows.items() if window.covered_ms}


class _Moment:
    """State at one moment."""

    def __init__(self, terms: Mapping[int, int]) -> None:
        self._terms = terms
        self.bundles: dict[Bundle, Reported] = {}
        self.brokers: dict[str, Reported] = {}

    def apply(self, entry: Reported | Happened) -> None:
        if entry.at_ms > self._terms.get(entry.epoch, entry.at_ms):
            return  # by a former leader
        if isinstance(entry, Happened):
            if entry.kind == "broker_gone":
                self.brokers.pop(entry.subject, None)
                self._keep(lambda each: each.broker != entry.subject)
        else:
            self.brokers[entry.broker] = entry
            for other in list(self.bundles):
                if any(_meets(other, named) for named in entry.bundles):
                    del self.bundles[other]
            self.bundles |= dict.fromkeys(entry.bundles, entry)

    def forget(self, now_ms: int) -> None:
        """Drop reports that have expired."""

        def stands(each: Reported) -> bool:
            return now_ms < min(each.at_ms + STANDS_MS, self._terms.get(each.epoch, now_ms + 1))

        self._keep(stands)
        self.brokers = {name: each for name, each in self.brokers.items() if stands(each)}

    def _keep(self, stands: Callable[[Reported], bool]) -> None:
        self.bundles = {name: each for name, each in self.bundles.items() if stands(each)}


def plain_windows(entries: Iterable[Reported | Happened], end_ms: int) -> PlainWindows:
    """The windows of 5 minutes of what was reported and happened before `end_ms`."""
    placed = sorted(entries, key=lambda each: (each.at_ms, each.epoch, each.sequence))
    placed = [each for each in placed if each.at_ms < end_ms]
    terms = _terms(placed)
    found = PlainWindows()
    now = _Moment(terms)
    by_time = {at: list(each) for at, each in groupby(placed, lambda each: each.at_ms)}
    breaks = {*by_time, *(at + STANDS_MS for at in by_time), *terms.values(), end_ms}
    breaks |= {edge for at in set(breaks) for edge in range(at // WINDOW_MS * WINDOW_MS, at + STANDS_MS, WINDOW_MS)}
    for each in placed:
        if isinstance(each, Reported) and each.at_ms <= terms.get(each.epoch, each.at_ms):
            _count(found, each)
    for start, end in pairwise(sorted(at for at in breaks if at <= end_ms)):
        for entry in by_time.get(start, ()):
            now.apply(entry)
        now.forget(start)
        _integrate(found, now, start, end - start)
    return found.without_empty()


def _terms(placed: Sequence[Reported | Happened]) -> dict[int, int]:
    began = {each.epoch: each.at_ms for each in placed if isinstance(each, Happened) and each.kind == "term_began"}
    ended = {each.epoch: each.at_ms for each in placed if isinstance(each, Happened) and each.kind == "term_ended"}
    for epoch in {each.epoch for each in placed} - set(ended):
        later = min((other for other in began if other > epoch), default=None)
        if later is not None:
            ended[epoch] = began[later]
    return {epoch: at for epoch, at in ended.items() if epoch > 0}


def _count(found: PlainWindows, report: Reported) -> None:
    window = report.at_ms // WINDOW_MS * WINDOW_MS
    found.brokers[report.broker, window].n += 1
    for bundle in report.bundles:
        found.bundles[bundle, window].n += 1


def _integrate(found: PlainWindows, now: _Moment, start_ms: int, ms: int) -> None:
    window = start_ms // WINDOW_MS * WINDOW_MS
    for broker, report in now.brokers.items():
        found.brokers[broker, window].covered_ms += ms
        found.brokers[broker, window].cpu += ms * report.cpu
        found.brokers[broker, window].raise_to(report.total())
    for namespace in {bundle[0] for bundle in now.bundles}:
        found.namespaces[namespace, window].covered_ms += ms
    for bundle, report in now.bundles.items():
        load = report.bundles[bundle]
        own = found.bundles[bundle, window]
        own.covered_ms += ms
        own.raise_to(load)
        for each in (own, found.brokers[report.broker, window], found.namespaces[bundle[0], window]):
            each.add(ms, load)
            each.names.add(bundle)


def _meets(one: Bundle, other: Bundle) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
