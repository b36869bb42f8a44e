"""TransferShedder: level the averaged usage of brokers by moving bundles from the most used to the least used.

Source: Pulsar's TransferShedder, the shedder of its extensible load manager. Brokers are sorted by averaged usage. A
round counts a hit if the standard deviation is above a target, or the least used broker is far below the average, or
the most used one is overloaded and far above it. After more consecutive hits than a threshold, the most used broker
hands half of the difference, as a share of its throughput, to the least used one; then the next most used broker
follows. A broker's busiest bundles are tried from the least busy on. The first that does not fit ends the transfer,
unless bundles of the other broker can be taken in exchange. The last bundle of that list never moves alone. If the
report of a broker is not newer than the last unload from it by a delay, the whole round is skipped. With transfers
disabled, destinations are left to placement.

The state holds the consecutive hits, the counters of all rounds and the last figures: `{"hits": n, "counters":
{"Skip/HitCount": n, ...}, "statistics": [average, standard deviation]}`; `null` there is NaN.

Differs from Pulsar:

- Exchanged bundles always count. Pulsar counts them in its debug mode only; without it, it predicts a wrong deviation
  and too much outflow.
- A broker whose report is too old neither gives nor receives; Pulsar only leaves it out of the average.
- The published load of an unregistered broker is ignored.
- Exchanged bundles must be owned by that broker, in no excluded namespace, and not recently unloaded, as all others.
- Later bundles take the moves of earlier ones in the round into account.
- A broker gives nothing while a bundle is leaving it or has left it since its report. A broker without any usage gives
  nothing; Pulsar would count half of that usage as all of its throughput.
- Equally used brokers are ordered by name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.constraints.filters import EXTENSIBLE, FilterCache, PlacementQuestion
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.extensible_load import BrokerLoad, TopBundles, may_be_transferred
from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import NOBODY, Snapshot, get_broker_load, get_top_bundles
from loadmanager.core.strategies.shedding.shedding_strategy import (
    MIB,
    Pick,
    Shed,
    State,
    eligible,
    least_points,
)

_SWAPPED_BELOW = 0.75
"""Part of its throughput below which an exchange must leave the giving broker."""

_SHED = "Shed {bundles_taken} of its {bundles} busiest bundles to {partner} ({partner_usage_percent} %)"
_WANT = "({=broker_load_target_std}): want {want_mib_per_s} MiB/s"
_IS_OVERLOADED = (
    f"because of usage {{usage_percent}} % at average {{average_percent}} % and deviation {{std_percent}} % {_WANT}"
)
_IS_UNDERLOADED = f"because that one has little of average {{average_percent}} % or of its throughput {_WANT}"


class TransferReason(Reason):
    OVERLOADED = entry(
        f"{_SHED}, for {{bundles_in_exchange}} in exchange, {_IS_OVERLOADED}",
        f"{_SHED} {_IS_OVERLOADED}",
    )
    UNDERLOADED = entry(
        f"{_SHED}, for {{bundles_in_exchange}} in exchange, {_IS_UNDERLOADED}",
        f"{_SHED} {_IS_UNDERLOADED}",
    )
    HIT_COUNT = entry(
        (
            "No move because usages have been apart for {rounds} rounds, not more than"
            " {=shedding_condition_hit_count_threshold}: deviation {std_percent} %"
            " ({=broker_load_target_std})"
        ),
        (
            "No move because usages are close: deviation {std_percent} % is not above"
            " {=broker_load_target_std}, from {partner_usage_percent} % to {usage_percent} %"
        ),
        "No move because no broker may be relieved: deviation {std_percent} %",
    )
    COOL_DOWN = entry(
        "No move because {broker} has not reported yet {=shedding_delay_in_seconds} s after a bundle was taken from it"
    )
    OUT_DATED_DATA = entry(
        "No move because all reports of {brokers} brokers are older than {=broker_load_data_ttl_in_seconds} s",
        "No move because its report is older than {=broker_load_data_ttl_in_seconds} s",
    )
    NO_LOAD_DATA = entry(
        "No move because {broker} has not reported its load",
        "No move because some of the {brokers_tried} brokers tried have no usable report of bundles",
    )
    NO_BROKERS = entry("No move because none of {brokers} brokers has reported its load")


_SKIPPED: dict[Reason, str] = {
    TransferReason.HIT_COUNT: "Skip/HitCount",
    SheddingReason.NO_TRANSFERABLE_BUNDLES: "Skip/NoBundles",
    TransferReason.COOL_DOWN: "Skip/CoolDown",
    TransferReason.OUT_DATED_DATA: "Skip/OutDatedData",
    TransferReason.NO_LOAD_DATA: "Skip/NoLoadData",
    TransferReason.NO_BROKERS: "Skip/NoBrokers",
}
"""Reasons of a round without moves, with Pulsar's counters."""
_DONE: dict[Reason, str] = {
    TransferReason.OVERLOADED: "Success/Overloaded",
    TransferReason.UNDERLOADED: "Success/Underloaded",
}


@dataclass(slots=True)
class LoadStatistics:
    """Mean and population standard deviation of broker usages, updated with each move of load."""

    mean: float
    squares: float
    brokers: int
    std: float

    @classmethod
    def of(cls, usage: FloatArray) -> LoadStatistics:
        """Compute for at least one broker; rounding may make the deviation of equal loads NaN, as in Pulsar."""
        brokers = len(usage)
        mean = float(np.cumsum(usage)[-1]) / brokers
        squares = float(np.cumsum(usage * usage)[-1])
        variance = squares / brokers - mean * mean
        return cls(mean, squares, brokers, math.sqrt(variance) if variance >= 0 else math.nan)

    def move(self, source: float, destination: float, moved: float) -> None:
        """Take `moved` from a broker with usage `source` to one with usage `destination`."""
        self.squares += max(0.0, source - moved) ** 2 + (destination + moved) ** 2 - source**2 - destination**2
        self.std = math.sqrt(abs(self.squares / self.brokers - self.mean * self.mean))


@dataclass(frozen=True, slots=True)
class TransferShedder:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        with np.errstate(all="ignore"):
            return _Round(self.settings, snapshot, state).run()

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:
        """Return points of averaged usage until the broker is the most used one in a round that moves load."""
        with np.errstate(all="ignore"):
            return _Round(self.settings, snapshot, state).find_margin(broker)


@dataclass(slots=True, eq=False)
class _Transfer:
    """Bundle rows from `source` to `destination`, and those exchanged for them; bytes/s."""

    source: int
    destination: int
    reason: Reason
    want: float
    top: list[tuple[int, float]]
    out: float = 0.0
    gain: float = 0.0
    given: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)


class _Round:
    """One pass over the cluster. `ascending` are the broker rows by usage; sources are taken from its end."""

    def __init__(self, settings: PlannerSettings, snapshot: Snapshot, state: State) -> None:
        self._settings = settings
        self._snapshot = snapshot
        self._load: BrokerLoad = get_broker_load(snapshot, settings)
        self._top: TopBundles = get_top_bundles(snapshot, settings)
        self._usage = self._load.weighted_max_ema
        self._throughput = self._load.msg_throughput_in + self._load.msg_throughput_out
        self._hits = int(state.get("hits", 0))
        self._counters: Counter[str] = Counter(state.get("counters", {}))
        self._statistics: list[float | None] = state.get("statistics", [])
        self._verdicts: list[Verdict] = []
        self._keeper = np.where(eligible(snapshot), snapshot.bundles.broker, NOBODY)
        """Broker that has each bundle and may be relieved of it."""
        self._projection = Projection(snapshot)
        self._answers = FilterCache(EXTENSIBLE, self._projection, settings)
        self._questions: dict[int, PlacementQuestion | None] = {}
        """Placement question by namespace; None where its bundles may not be shed."""
        self._empty = self._few = 0

    def run(self) -> Shed:
        fresh, refusal = self._find_fresh()
        if refusal is not None:
            return self._skip(*refusal)
        rows = np.flatnonzero(fresh)
        statistics = LoadStatistics.of(self._usage[rows])
        self._statistics = [None if math.isnan(each) else each for each in (statistics.mean, statistics.std)]
        ascending = rows[np.argsort(self._usage[rows], kind="stable")].tolist()
        reason = self._find_reason(statistics, ascending[0], ascending[-1])
        self._hits = self._hits + 1 if reason else 0
        if self._hits <= self._settings.shedding_condition_hit_count_threshold:
            return self._skip(TransferReason.HIT_COUNT, self._why_not_yet(statistics, ascending))
        picks = self._transfer(statistics, ascending)
        if not picks:
            no_bundles = SheddingReason.NO_TRANSFERABLE_BUNDLES if self._few else TransferReason.HIT_COUNT
            reason = TransferReason.NO_LOAD_DATA if self._empty else no_bundles
            return self._skip(reason, {"brokers_tried": len(self._verdicts), "std_percent": statistics.std * 100})
        self._hits = 0
        for pick in picks:
            self._counters[_DONE[pick.reason]] += len(pick.bundles)
        return self._make_result(picks, {"stdAfter": statistics.std})

    def find_margin(self, broker: int) -> dict[str, Figure]:
        fresh, refusal = self._find_fresh()
        if refusal is not None or not fresh[broker]:
            return {}
        rows, usage = np.flatnonzero(fresh), self._usage

        def is_reached(points: float) -> bool:
            self._usage = usage.copy()
            self._usage[broker] += points / 100
            ascending = rows[np.argsort(self._usage[rows], kind="stable")]
            statistics = LoadStatistics.of(self._usage[rows])
            has_reason = self._find_reason(statistics, int(ascending[0]), int(ascending[-1])) is not None
            return bool(ascending[-1] == broker and has_reason)

        least = self._settings.shedding_condition_hit_count_threshold + 1
        if is_reached(0.0):
            return {"rounds": max(least - self._hits, 1)}
        margin = least_points(is_reached)
        return {**margin, "rounds": least} if margin else {}

    def _find_fresh(self) -> tuple[BoolArray, tuple[Reason, dict[str, Figure]] | None]:
        """Return a mask of brokers whose load counts (M,), and the reason if the round ends here."""
        settings, load = self._settings, self._load
        now_ms = round(self._snapshot.taken_at_s * 1000)
        outdated = load.known & (now_ms - load.updated_at_ms > settings.broker_load_data_ttl_in_seconds * 1000)
        fresh = load.known & ~outdated
        since_ms = load.updated_at_ms - np.round(self._snapshot.brokers.last_unloaded_s * 1000)
        cooling = np.flatnonzero(fresh & (since_ms < settings.shedding_delay_in_seconds * 1000))
        ids = self._snapshot.brokers.ids
        if len(cooling):
            return fresh, (
                TransferReason.COOL_DOWN,
                {"broker": ids[cooling[0]], **settings.as_figures("shedding_delay_in_seconds")},
            )
        ttl = settings.as_figures("broker_load_data_ttl_in_seconds")
        brokers: dict[str, Figure] = {"brokers": len(ids)}
        if not fresh.any():
            return fresh, (TransferReason.OUT_DATED_DATA, brokers | ttl) if outdated.any() else (
                TransferReason.NO_BROKERS,
                brokers,
            )
        if not load.known.all():
            return fresh, (TransferReason.NO_LOAD_DATA, {"broker": ids[int(np.argmin(load.known))]})
        self._verdicts += [
            Verdict(ids[row], TransferReason.OUT_DATED_DATA, acted=False, why=ttl)
            for row in np.flatnonzero(outdated).tolist()
        ]
        return fresh, None

    def _find_reason(self, statistics: LoadStatistics, least: int, most: int) -> Reason | None:
        target = self._settings.broker_load_target_std
        if statistics.std > target:
            return TransferReason.OVERLOADED
        part = min(max(target / 2, 0.0), 0.5)
        throughput = self._load.msg_throughput_ema
        if self._usage[least] < statistics.mean * part or throughput[least] < throughput[most] * part:
            return TransferReason.UNDERLOADED
        threshold = self._settings.broker_overloaded_threshold_percentage / 100
        is_over = self._usage[most] > threshold and self._usage[most] > statistics.mean + target
        return TransferReason.OVERLOADED if is_over else None

    def _transfer(self, statistics: LoadStatistics, ascending: list[int]) -> list[Pick]:
        picks: list[Pick] = []
        lowest, highest, served = self._next_receiver(ascending, 0), len(ascending) - 1, 0
        while served < self._settings.max_number_of_broker_shedding_per_cycle and lowest < highest:
            source, destination = ascending[highest], ascending[lowest]
            reason = self._find_reason(statistics, destination, source)
            if reason is None:
                break
            highest -= 1
            why = self._why(source, destination, statistics)
            transfer = self._begin(source, destination, reason, why)
            if transfer is None:
                continue
            self._select(transfer)
            if transfer.out > 0:
                moved = (transfer.out - transfer.gain) * self._usage[source] / self._throughput[source]
                statistics.move(float(self._usage[source]), float(self._usage[destination]), float(moved))
                served += 1
                lowest = self._next_receiver(ascending, lowest + 1)
                picks += self._picks(transfer)
            else:
                self._few += 1
            self._judge(transfer, why)
        return picks

    def _next_receiver(self, ascending: list[int], first: int) -> int:
        """Return the position, from `first` on, of the least used broker that may receive bundles."""
        ids, controls = self._snapshot.brokers.ids, self._snapshot.controls
        while first < len(ascending) and not controls.takes_bundles(ids[ascending[first]]):
            first += 1
        return first

    def _begin(self, source: int, destination: int, reason: Reason, why: Mapping[str, Figure]) -> _Transfer | None:
        """Begin a transfer. Return None, after counting and explaining it, if there are no bundles to choose from."""
        top = self._top.of_broker(source)
        if not self._snapshot.brokers.settled[source]:
            refusal = SheddingReason.AWAITING_REPORT
        elif not top:
            refusal = SheddingReason.NO_BUNDLES
        elif len(top) == 1:
            refusal = SheddingReason.SINGLE_BUNDLE
        else:
            difference = (self._usage[source] - self._usage[destination]) / 2
            usage, throughput = self._usage[source], self._throughput[source]
            want = float(throughput * difference / usage) if usage > 0 else 0.0
            return _Transfer(source, destination, reason, want, top)
        self._few += refusal is SheddingReason.SINGLE_BUNDLE
        self._empty += refusal is not SheddingReason.SINGLE_BUNDLE
        self._verdicts.append(Verdict(self._snapshot.brokers.ids[source], refusal, acted=False, why=why))
        return None

    def _select(self, transfer: _Transfer) -> None:
        """Fill the transfer from the busiest bundles of its source, least busy first."""
        source, destination = transfer.source, transfer.destination
        returns = self._returns(transfer)
        left = len(transfer.top)
        for bundle, throughput in transfer.top:
            if not self._may_move(bundle, source, destination):
                continue
            if left <= 1:
                return
            if throughput == 0:
                continue
            swapped: list[tuple[int, float]] = []
            if transfer.out - transfer.gain + throughput > transfer.want:
                swapped = self._find_exchange(transfer, throughput, returns)
                if not swapped:
                    return
            for returned, gain in swapped:
                self._move(returned, destination, source)
                transfer.taken.append(returned)
                transfer.gain += gain
            self._move(bundle, source, destination)
            transfer.given.append(bundle)
            transfer.out += throughput
            left -= 1

    def _returns(self, transfer: _Transfer) -> Iterator[tuple[int, float]]:
        """Yield bundles for exchange; each is tried once per transfer."""
        if self._settings.transfer_enabled and self._snapshot.brokers.settled[transfer.destination]:
            for bundle, throughput in self._top.of_broker(transfer.destination):
                if throughput != 0 and self._may_move(bundle, transfer.destination, transfer.source):
                    yield bundle, throughput

    def _find_exchange(
        self, transfer: _Transfer, throughput: float, returns: Iterator[tuple[int, float]]
    ) -> list[tuple[int, float]]:
        """Find the next bundles that compensate for this throughput; empty if they do not."""
        whole = self._throughput[transfer.source]
        source = whole - transfer.out + transfer.gain - throughput
        destination = self._throughput[transfer.destination] + transfer.out - transfer.gain + throughput
        swapped = []
        for bundle, returned in returns:
            if source + returned < whole and destination - returned < whole:
                swapped.append((bundle, returned))
                source += returned
                destination -= returned
                if destination <= source < whole * _SWAPPED_BELOW:
                    return swapped
        return []

    def _may_move(self, bundle: int, source: int, destination: int) -> bool:
        if bundle < 0 or self._keeper.item(bundle) != source:
            return False
        position = self._snapshot.bundles.namespace.item(bundle)
        if position not in self._questions:
            namespace = self._snapshot.bundles.namespaces[position]
            may_leave = may_be_transferred(namespace, self._settings, self._snapshot.policies)
            self._questions[position] = self._answers.question(namespace, None) if may_leave else None
        question = self._questions[position]
        return question is not None and bool(self._answers.allowed(question)[0].item(destination))

    def _move(self, bundle: int, source: int, destination: int) -> None:
        self._projection.move(namespace_of(self._snapshot.bundles.names[bundle]), bundle, source, destination)

    def _picks(self, transfer: _Transfer) -> list[Pick]:
        if not self._settings.transfer_enabled:
            return [Pick(transfer.source, tuple(transfer.given), transfer.reason)]
        ways = [
            (transfer.source, transfer.given, transfer.destination),
            (transfer.destination, transfer.taken, transfer.source),
        ]
        return [Pick(a, tuple(rows), transfer.reason, b, is_final=True) for a, rows, b in ways if rows]

    def _judge(self, transfer: _Transfer, why: Mapping[str, Figure]) -> None:
        figures: dict[str, Figure] = {
            "want_mib_per_s": transfer.want / MIB,
            "bundles": len(transfer.top),
            "bundles_taken": len(transfer.given),
            **({"bundles_in_exchange": len(transfer.taken)} if transfer.taken else {}),
        }
        verdict = transfer.reason if transfer.given else SheddingReason.NO_BUNDLE_FITS
        name = self._snapshot.brokers.ids[transfer.source]
        self._verdicts.append(Verdict(name, verdict, acted=bool(transfer.given), why={**why, **figures}))

    def _why(self, source: int, destination: int, statistics: LoadStatistics) -> dict[str, Figure]:
        return {
            "usage_percent": float(self._usage[source]) * 100,
            "partner": self._snapshot.brokers.ids[destination],
            "partner_usage_percent": float(self._usage[destination]) * 100,
            "average_percent": statistics.mean * 100,
            "std_percent": statistics.std * 100,
            **self._settings.as_figures("broker_load_target_std"),
        }

    def _why_not_yet(self, statistics: LoadStatistics, ascending: list[int]) -> dict[str, Figure]:
        why = self._why(ascending[-1], ascending[0], statistics)
        if self._hits:
            why["rounds"] = self._hits
            key = KEYS["shedding_condition_hit_count_threshold"]
            why[key] = self._settings.shedding_condition_hit_count_threshold
        return why

    def _skip(self, reason: Reason, why: Mapping[str, Figure]) -> Shed:
        self._counters[_SKIPPED[reason]] += 1
        self._verdicts.append(Verdict("cluster", reason, acted=False, why=why))
        return self._make_result([], {})

    def _make_result(self, picks: list[Pick], more: Mapping[str, float]) -> Shed:
        counters = dict(sorted(self._counters.items()))
        known = zip(("avg", "std"), self._statistics, strict=False)
        figures = {name: math.nan if value is None else value for name, value in known}
        state = {"hits": self._hits, "counters": counters, "statistics": self._statistics}
        return Shed(tuple(picks), tuple(self._verdicts), state, {**figures, **more, **counters})
