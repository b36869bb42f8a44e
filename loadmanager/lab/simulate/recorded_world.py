"""Simulation inputs from a recorded range of a history, as plain columns: brokers, bundles and loads.

The caller reads the history. The bundles of a simulation are those at the start of the range. After a split, the loads
of the parts are added up; after a merge, the load is divided by the widths of the ranges. A load is valid until the
bundle is reported again. If the broker's next report does not name the bundle, but another report does within `HOLD_S`,
the bundle has moved and keeps its load; otherwise its load ends. Brokers and bundles that are first reported within
`HOLD_S` exist from the start, unless the time of their creation is known.

Differs from the recorded range: a broker without recorded registrations counts as gone, or as restarted, when it does
not report for twice `HOLD_S`; brokers have the resources of their first report; adjacent bundles that never had load
are one bundle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmanager.core.domain.names import HASH_SPACE_END, BrokerId
from loadmanager.core.model.load import METRICS, RESOURCES, BoolArray, FloatArray, IntArray, read_only
from loadmanager.lab.simulate.calibration import FleetCalibration
from loadmanager.lab.simulate.fleet_events import (
    BrokerJoins,
    BrokerSpec,
    BrokersRestart,
    BrokersStop,
    LeaderElected,
    NamespaceSpec,
    NewNamespace,
)
from loadmanager.lab.simulate.workload import BundleTopics

HOLD_S = 900.0
"""Validity of a report: by default, a broker reports at least this often."""
GONE_S = 2 * HOLD_S
"""Silence after which a broker counts as gone."""

_NO_CALIBRATION = FleetCalibration()
_SOON = 4
"""Multiple of the lag of reports within which a further report is expected: about two reports."""
_FIGURES = METRICS + 2
"""Number of figures of a bundle: its load, topics and sessions."""

Names = npt.NDArray[Any]
"""Text, as objects."""

Key = tuple[str, int, int]
"""Namespace, lower and upper end of a bundle."""


@dataclass(frozen=True, slots=True, eq=False)
class BrokerRows:
    """Reports (n,) in order: time in seconds since the start of the range, broker, and its limits (n, 5)."""

    at_s: FloatArray
    broker: Names
    capacity: FloatArray
    version: Names
    load_manager_class: Names

    def __post_init__(self) -> None:
        read_only(self.capacity, len(self.at_s), RESOURCES)


@dataclass(frozen=True, slots=True, eq=False)
class BundleRows:
    """Bundles (k,) of the reports, in order; `report` is the row in `BrokerRows`."""

    report: IntArray
    namespace: Names
    lower: IntArray
    upper: IntArray
    load: FloatArray
    topics: IntArray
    sessions: IntArray

    def __post_init__(self) -> None:
        read_only(self.load, len(self.report), METRICS)


@dataclass(frozen=True, slots=True)
class BrokerPresence:
    """Time at which a broker registered (`is_there`) or left."""

    at_s: float
    broker: str
    is_there: bool


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLoads:
    """Recorded workload: from `at_s` (c,) on, `bundle` (c,) has the `figures` (c, 6): load, topics and sessions.

    Times ascend. `factors` (N,) multiply loads. Calls with ascending times read each row only once.
    """

    bundles: int
    at_s: FloatArray
    bundle: IntArray
    figures: FloatArray
    factors: FloatArray
    _seen: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.bundles

    def load_at(self, t_s: float) -> FloatArray:
        return self._until(t_s)[:, :METRICS] * self.factors[:, np.newaxis]

    def topics_at(self, t_s: float) -> IntArray:
        return self._until(t_s)[:, METRICS].astype(np.int64)

    def sessions_at(self, t_s: float) -> IntArray:
        return self._until(t_s)[:, METRICS + 1].astype(np.int64)

    def find_topics(self, bundle: int) -> BundleTopics | None:
        del bundle
        return None

    def scaled(self, factors: FloatArray) -> RecordedLoads:
        """Return the loads multiplied by these factors (N,)."""
        return RecordedLoads(self.bundles, self.at_s, self.bundle, self.figures, self.factors * factors)

    def _until(self, t_s: float) -> FloatArray:
        """Return the figures (N, 6) at that time."""
        end = int(np.searchsorted(self.at_s, t_s, side="right"))
        done, now = self._seen.get("until", (0, None))
        if now is None or end < done:
            done, now = 0, np.zeros((self.bundles, _FIGURES))
        now[self.bundle[done:end]] = self.figures[done:end]  # the last of several rows of a bundle counts
        self._seen["until"] = (end, now)
        found: FloatArray = now
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRange:
    """Inputs of a simulation from a recorded range: brokers, namespaces, events, loads, and the calibration."""

    brokers: tuple[BrokerSpec, ...]
    namespaces: tuple[NamespaceSpec, ...]
    events: tuple[BrokerJoins | BrokersStop | BrokersRestart | NewNamespace | LeaderElected, ...]
    loads: RecordedLoads
    duration_s: float
    calibration: FleetCalibration = _NO_CALIBRATION

    def broker_ids(self) -> list[BrokerId]:
        """Return all brokers of the range, also those that join later."""
        joined = [event.broker for event in self.events if isinstance(event, BrokerJoins)]
        return [spec.id for spec in (*self.brokers, *joined)]

    def namespace_specs(self) -> list[NamespaceSpec]:
        """Return all namespaces of the range, in the order of the workload's rows."""
        return [*self.namespaces, *(event.namespace for event in self.events if isinstance(event, NewNamespace))]


def recorded_range(
    brokers: BrokerRows,
    bundles: BundleRows,
    duration_s: float,
    presence: Sequence[BrokerPresence] = (),
    calibration: FleetCalibration | None = None,
    *,
    starts_empty: bool = False,
) -> RecordedRange:
    """Build the inputs of a simulation from reports.

    The calibration has the delay between a load and its report. A range that `starts_empty` has no load at its start.
    Raises `ValueError` for reports without load.
    """
    if not len(brokers.at_s) or not len(bundles.report):
        raise ValueError("the range has no reports of loaded bundles")
    specs, events = _lives(brokers, duration_s, presence)
    keys, key_of = _keys(bundles)
    rows = _rows_with_ends(brokers, bundles, key_of, 0.0 if calibration is None else calibration.lag_s)
    first_s = np.full(len(keys), np.inf)
    np.minimum.at(first_s, rows.key, rows.at_s)
    numbers, first = np.unique(key_of, return_index=True)
    first_brokers = brokers.broker[bundles.report[first]].tolist()
    owners = {keys[key]: str(broker) for key, broker in zip(numbers.tolist(), first_brokers, strict=True)}
    there = {spec.id for spec in specs}
    namespaces, appearing = _namespaces(keys, first_s, owners, there)
    order = [*namespaces, *(event.namespace for event in appearing)]
    loads = _loads(order, keys, rows, 0.0 if starts_empty else HOLD_S)
    elections = map(LeaderElected, () if calibration is None else calibration.elections_s)
    happened = (*events, *appearing, *elections)
    return RecordedRange(tuple(specs), tuple(namespaces), happened, loads, duration_s, calibration or _NO_CALIBRATION)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Loads of bundles (c,), by number, with their start times: `figures` (c, 6)."""

    at_s: FloatArray
    key: IntArray
    figures: FloatArray


def _lives(
    brokers: BrokerRows, duration_s: float, presence: Sequence[BrokerPresence]
) -> tuple[list[BrokerSpec], list[BrokerJoins | BrokersStop | BrokersRestart]]:
    """Return the initial brokers, and the events of brokers that join, restart and leave."""
    specs: list[BrokerSpec] = []
    events: list[BrokerJoins | BrokersStop | BrokersRestart] = []
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(brokers.broker.tolist()):
        rows_of[name].append(row)
    known: dict[str, list[BrokerPresence]] = defaultdict(list)
    for each in presence:
        known[each.broker].append(each)
    for name, own in rows_of.items():
        at_s, spec = brokers.at_s[own], _spec(brokers, own)
        if name in known:
            begins, its_events = _life(spec, known[name])
            specs += [spec] if begins else []
            events += its_events
            continue
        if at_s[0] <= HOLD_S:
            specs.append(spec)
        else:
            events.append(BrokerJoins(float(at_s[0]), spec))
        silent = np.flatnonzero(np.diff(at_s) > GONE_S).tolist()
        events += [_restart(spec, float(at_s[at]), float(at_s[at + 1])) for at in silent]
        if duration_s - at_s[-1] > GONE_S:
            events.append(_stop(spec, float(at_s[-1])))
    return specs, events


def _life(
    spec: BrokerSpec, known: Sequence[BrokerPresence]
) -> tuple[bool, list[BrokerJoins | BrokersStop | BrokersRestart]]:
    """Return True if the broker exists at the start, and its events, from its recorded registrations."""
    events: list[BrokerJoins | BrokersStop | BrokersRestart] = []
    begins = is_there = not known[0].is_there
    gone_s: float | None = None
    for each in known:
        if each.is_there and not is_there:
            came = BrokerJoins(each.at_s, spec)
            events.append(came if gone_s is None else _restart(spec, gone_s, each.at_s))
        elif is_there and not each.is_there:
            gone_s = each.at_s
        is_there = each.is_there
    if not is_there and gone_s is not None:
        events.append(_stop(spec, gone_s))
    return begins, events


def _stop(spec: BrokerSpec, at_s: float) -> BrokersStop:
    return BrokersStop(at_s=at_s, brokers=(spec.id,), drain=False)


def _restart(spec: BrokerSpec, at_s: float, back_s: float) -> BrokersRestart:
    return BrokersRestart(at_s=at_s, brokers=(spec.id,), down_s=back_s - at_s)


def _spec(brokers: BrokerRows, rows: Sequence[int]) -> BrokerSpec:
    """Build the specification of a broker from the first known limit of each resource in these rows, else the default
    limit.
    """
    row, unknown = rows[0], BrokerSpec(BrokerId("unknown:1")).capacity
    limits = brokers.capacity[rows]
    known = (limits > 0) & np.isfinite(limits)
    first = np.take_along_axis(limits, known.argmax(axis=0)[np.newaxis], axis=0)[0]
    capacity = tuple(np.where(known.any(axis=0), first, unknown).tolist())
    name, version, kind = (str(column[row]) for column in (brokers.broker, brokers.version, brokers.load_manager_class))
    return BrokerSpec(BrokerId(name), capacity, version=version, load_manager_class=kind)


def _keys(bundles: BundleRows) -> tuple[list[Key], IntArray]:
    """Return all reported bundles in the order of their first report, and the bundle number (k,) of each row."""
    number: dict[Key, int] = {}
    columns = (bundles.namespace.tolist(), bundles.lower.tolist(), bundles.upper.tolist())
    of_row = np.fromiter(
        (number.setdefault(key, len(number)) for key in zip(*columns, strict=True)), np.int64, len(bundles.report)
    )
    return list(number), of_row


def _rows_with_ends(brokers: BrokerRows, bundles: BundleRows, key_of: IntArray, lag_s: float) -> _Rows:
    """Return the figures with their start times. A bundle that is no longer reported, and has not moved, gets zeros."""
    at_s = brokers.at_s[bundles.report]
    figures = np.column_stack([bundles.load, bundles.topics, bundles.sessions]).astype(np.float64)
    next_report = _next_of_broker(brokers)[bundles.report]
    known = next_report >= 0
    unnamed_s = np.where(known, brokers.at_s[next_report], brokers.at_s[bundles.report] + HOLD_S)
    by_key = np.lexsort((bundles.report, key_of))
    following = np.full(len(by_key), -1)
    same = key_of[by_key[1:]] == key_of[by_key[:-1]]
    following[by_key[:-1][same]] = by_key[1:][same]
    again_s = np.where(following >= 0, at_s[following], np.inf)
    is_named_next = (following >= 0) & known & (bundles.report[following] == next_report)
    ends = np.flatnonzero(~is_named_next & (again_s - unnamed_s > HOLD_S))
    whole = np.flatnonzero(~_is_partial(brokers.broker[bundles.report], at_s, by_key, same, lag_s))
    times = np.concatenate([unnamed_s[ends], at_s[whole]])
    order = np.argsort(times, kind="stable")  # ends come before reports of the same time
    return _Rows(
        np.maximum(times[order] - lag_s, 0.0),
        np.concatenate([key_of[ends], key_of[whole]])[order],
        np.concatenate([np.zeros((len(ends), _FIGURES)), figures[whole]])[order],
    )


def _is_partial(broker: Names, at_s: FloatArray, by_key: IntArray, same: BoolArray, lag_s: float) -> BoolArray:
    """Return a mask (k,) of figures to drop because they cover only a part of an interval.

    These are the first figures of a broker after a move, unless no others follow soon. `by_key` are the rows by bundle
    and time, `same` (k - 1,) is True if the next row is of the same bundle.
    """
    before, row, after = by_key[:-2], by_key[1:-1], by_key[2:]
    has_come = same[:-1] & (broker[before] != broker[row])
    goes_on = same[1:] & (broker[after] == broker[row]) & (at_s[after] - at_s[row] <= _SOON * lag_s)
    partial = np.zeros(len(by_key), dtype=bool)
    partial[row] = has_come & goes_on
    return partial


def _next_of_broker(brokers: BrokerRows) -> IntArray:
    """Return the row (n,) of the same broker's next report; -1 for the last one."""
    found = np.full(len(brokers.at_s), -1, dtype=np.int64)
    last: dict[object, int] = {}
    for row, name in enumerate(brokers.broker.tolist()):
        if name in last:
            found[last[name]] = row
        last[name] = row
    return found


def _namespaces(
    keys: Sequence[Key], first_s: FloatArray, owners: Mapping[Key, str], there: set[BrokerId]
) -> tuple[list[NamespaceSpec], list[NewNamespace]]:
    """Return the initial namespaces by name, and the creation of later ones by time."""
    reported: dict[str, list[tuple[float, Key]]] = defaultdict(list)
    for number, key in enumerate(keys):
        reported[key[0]].append((float(first_s[number]), key))
    at_first: list[NamespaceSpec] = []
    later: list[NewNamespace] = []
    for name in sorted(reported):
        kept = _apart(key for _, key in reported[name])
        boundaries = tuple(sorted({0, HASH_SPACE_END, *(end for _, *ends in kept for end in ends)}))
        spec = NamespaceSpec(name, boundaries)
        begun_s = min(at_s for at_s, _ in reported[name])
        if begun_s > HOLD_S:
            later.append(NewNamespace(begun_s, spec))
            continue
        early = {key: BrokerId(owners[key]) for at_s, key in reported[name] if at_s <= HOLD_S and owners[key] in there}
        found = tuple(early.get((name, each.lower, each.upper)) for each in spec.ranges())
        at_first.append(replace(spec, owners=found))
    return at_first, sorted(later, key=lambda event: event.at_s)


def _apart(keys: Iterator[Key]) -> list[Key]:
    """Select bundles without overlap; earlier ones take precedence."""
    kept: list[Key] = []
    for key in keys:
        if not any(key[1] < other[2] and other[1] < key[2] for other in kept):
            kept.append(key)
    return kept


@dataclass(frozen=True, slots=True)
class _Overlaps:
    """Overlaps of reported bundles with simulated ones, by number, with the fraction of the reported bundle; in both
    directions.
    """

    of_key: list[list[tuple[int, float]]]
    of_bundle: list[list[tuple[int, float]]]

    @classmethod
    def of(cls, order: Sequence[NamespaceSpec], keys: Sequence[Key]) -> _Overlaps:
        first, boundaries = {}, {}
        bundles = 0
        for spec in order:
            first[spec.name], boundaries[spec.name] = bundles, spec.boundaries
            bundles += len(spec)
        found = cls([], [[] for _ in range(bundles)])
        for number, (namespace, lower, upper) in enumerate(keys):
            ends = boundaries[namespace]
            place = bisect_right(ends, lower) - 1
            own = []
            while place < len(ends) - 1 and ends[place] < upper:
                width = min(upper, ends[place + 1]) - max(lower, ends[place])
                own.append((first[namespace] + place, width / (upper - lower)))
                place += 1
            found.of_key.append(own)
            for bundle, part in own:
                found.of_bundle[bundle].append((number, part))
        return found

    def is_whole(self, key: int) -> bool:
        """Return True if a reported bundle is exactly one simulated bundle, and the only one reported there."""
        return len(self.of_key[key]) == 1 and len(self.of_bundle[self.of_key[key][0][0]]) == 1


def _loads(order: Sequence[NamespaceSpec], keys: Sequence[Key], rows: _Rows, hold_s: float) -> RecordedLoads:
    """Return the loads by simulated bundle; those that start within `hold_s` exist from the start."""
    overlaps = _Overlaps.of(order, keys)
    bundle_of = np.array([own[0][0] for own in overlaps.of_key], dtype=np.int64)
    is_whole = np.array([overlaps.is_whole(key) for key in range(len(keys))], dtype=bool)[rows.key]
    parts = _added_up(rows, np.flatnonzero(~is_whole), overlaps)
    at_s = np.concatenate([rows.at_s[is_whole], parts.at_s])
    bundle = np.concatenate([bundle_of[rows.key[is_whole]], parts.key])
    figures = np.concatenate([rows.figures[is_whole], parts.figures])
    _, first = np.unique(bundle, return_index=True)
    early = first[at_s[first] <= hold_s]
    at_s[early] = 0.0
    by_time = np.argsort(at_s, kind="stable")
    bundles = len(overlaps.of_bundle)
    return RecordedLoads(bundles, at_s[by_time], bundle[by_time], figures[by_time], np.ones(bundles))


def _added_up(rows: _Rows, which: IntArray, overlaps: _Overlaps) -> _Rows:
    """Add up the loads of bundles that were split or merged, per simulated bundle."""
    now: dict[int, FloatArray] = {}
    nothing = np.zeros(_FIGURES)
    at_s, bundles, figures = [], [], []
    for row in which.tolist():
        key = int(rows.key[row])
        now[key] = rows.figures[row]
        for bundle, _ in overlaps.of_key[key]:
            total = nothing
            for other, part in overlaps.of_bundle[bundle]:
                total = total + now.get(other, nothing) * part
            at_s.append(float(rows.at_s[row]))
            bundles.append(bundle)
            figures.append(total)
    return _Rows(
        np.array(at_s, dtype=np.float64),
        np.array(bundles, dtype=np.int64),
        np.array(figures, dtype=np.float64).reshape(-1, _FIGURES),
    )
