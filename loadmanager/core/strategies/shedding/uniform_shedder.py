"""UniformLoadShedder: bring the broker with the most traffic closer to the one with the least.

Source: Pulsar's UniformLoadShedder. If the highest message rate is more per cent above the lowest than a threshold,
its broker sheds by message rate. Otherwise, if the highest throughput is more than a threshold times the lowest, its
broker sheds by throughput. A threshold that is not positive turns its rule off. The need is `maxUnloadPercentage` of
the difference; nothing happens below a minimum. The largest bundles leave first, each if it fits into the remaining
need. One broker sheds per round; the strategy is stateless.

As in Pulsar: a lowest value of about 0 counts as 1, so the difference to an idle broker is the highest value itself. If
the rate rule applies, the throughput rule is not tried, even if nothing moves. The need is an integer of at most
2^31 - 1, and each bundle reduces it by an integer. Bundles without load fit into any need, so all of them leave, up to
`maxUnloadBundleNumPerShedding`.

Differs from Pulsar: of equally loaded brokers the first by name counts, and bundles of equal load leave in the order of
their names; a broker is skipped while a bundle is leaving it or has left it since its report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.strategies.shedding.shedding_strategy import (
    MIB,
    Pick,
    Shed,
    State,
    count_recently_unloaded,
    find_refusal,
    largest_first,
)

_MAX_INT = 2**31 - 1
_NEXT_TO_NOTHING = 1e-6
"""Values up to this one count as 1 if they are the lowest."""


class UniformReason(Reason):
    MSG_RATE_DIFFERENCE = entry(
        "Shed {bundles_taken} of {bundles} bundles because its {highest_msg_rate_per_s} messages/s are"
        " {msg_rate_difference_percent} % above the lowest, {lowest_msg_rate_per_s}, more than"
        " {=msg_rate_difference_shedder_threshold} %: need {need_msg_rate_per_s} messages/s"
    )
    THROUGHPUT_DIFFERENCE = entry(
        "Shed {bundles_taken} of {bundles} bundles because its {highest_mib_per_s} MiB/s are {throughput_ratio}"
        " times the lowest, {lowest_mib_per_s}, more than"
        " {=msg_throughput_multiplier_difference_shedder_threshold}: need {need_mib_per_s} MiB/s"
    )
    DIFFERENCES_SMALL = entry(
        "No move because the highest message rate is {msg_rate_difference_percent} % above the lowest"
        " ({=msg_rate_difference_shedder_threshold}), and the highest throughput {throughput_ratio} times"
        " the lowest ({=msg_throughput_multiplier_difference_shedder_threshold})"
    )
    NOT_THE_BUSIEST = entry("No move because only the busiest broker sheds, {busiest}")


@dataclass(frozen=True, slots=True)
class _Extremes:
    """Highest and lowest load of any broker, in one pair of columns, and the broker row of the highest."""

    columns: tuple[int, int]
    broker: int
    highest: float
    lowest: float

    @classmethod
    def of(cls, snapshot: Snapshot, columns: tuple[int, int]) -> _Extremes:
        with np.errstate(over="ignore", invalid="ignore"):
            load = snapshot.brokers.load[:, columns[0]] + snapshot.brokers.load[:, columns[1]]
        return cls.of_load(load, columns)

    @classmethod
    def of_load(cls, load: FloatArray, columns: tuple[int, int]) -> _Extremes:
        highest = float(np.fmax.reduce(load, initial=-1.0))
        lowest = float(np.fmin.reduce(load, initial=float(_MAX_INT)))
        broker = int(np.argmax(load == highest))
        return cls(columns, broker, highest, 1.0 if abs(lowest) <= _NEXT_TO_NOTHING else lowest)

    def need(self, max_unload: float) -> int:
        """Return the load to shed from the broker with the highest load, as a 32-bit integer."""
        need = (self.highest - self.lowest) * max_unload
        return 0 if math.isnan(need) else math.trunc(min(max(need, -_MAX_INT - 1), _MAX_INT))


@dataclass(frozen=True, slots=True)
class UniformLoadShedder:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        if not len(snapshot.brokers):
            return Shed((), (), state)
        rate = _Extremes.of(snapshot, (MSG_RATE_IN, MSG_RATE_OUT))
        throughput = _Extremes.of(snapshot, (THROUGHPUT_IN, THROUGHPUT_OUT))
        percent = (rate.highest - rate.lowest) * 100 / rate.lowest
        ratio = throughput.highest / throughput.lowest
        why: dict[str, Figure] = {
            "msg_rate_difference_percent": percent,
            **self.settings.as_figures("msg_rate_difference_shedder_threshold"),
            "throughput_ratio": ratio,
            **self.settings.as_figures("msg_throughput_multiplier_difference_shedder_threshold"),
        }
        if percent > self.settings.msg_rate_difference_shedder_threshold > 0:
            return self._shed_by_rate(snapshot, rate, why, state)
        if ratio > self.settings.msg_throughput_multiplier_difference_shedder_threshold > 0:
            return self._shed_by_throughput(snapshot, throughput, why, state)
        return Shed((), (Verdict("cluster", UniformReason.DIFFERENCES_SMALL, acted=False, why=why),), state)

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:  # noqa: ARG002 - it remembers nothing
        """Return the margin of each rule, ignoring the other one."""
        margin: dict[str, Figure] = {}
        if len(snapshot.brokers) <= 1:
            return margin
        percent = self.settings.msg_rate_difference_shedder_threshold
        times = self.settings.msg_throughput_multiplier_difference_shedder_threshold
        rules = (
            ("msg_rate_per_s", (MSG_RATE_IN, MSG_RATE_OUT), 1 + percent / 100, percent, 1),
            ("mib_per_s", (THROUGHPUT_IN, THROUGHPUT_OUT), times, times, MIB),
        )
        for name, columns, factor, threshold, unit in rules:
            with np.errstate(over="ignore", invalid="ignore"):
                load = snapshot.brokers.load[:, columns[0]] + snapshot.brokers.load[:, columns[1]]
            others = _Extremes.of_load(np.delete(load, broker), columns)
            reached = max(others.highest, others.lowest * factor)
            if threshold > 0 and load[broker] < reached:
                margin[name] = (reached - float(load[broker])) / unit
        return margin

    def _shed_by_rate(self, snapshot: Snapshot, rate: _Extremes, why: dict[str, Figure], state: State) -> Shed:
        need, least = rate.need(self.settings.max_unload_percentage), self.settings.min_unload_message
        why = {
            **why,
            "highest_msg_rate_per_s": rate.highest,
            "lowest_msg_rate_per_s": rate.lowest,
            "need_msg_rate_per_s": need,
            KEYS["min_unload_message"]: least,
        }
        return self._make_result(snapshot, rate, need, least, UniformReason.MSG_RATE_DIFFERENCE, why, state)

    def _shed_by_throughput(self, snapshot: Snapshot, most: _Extremes, why: dict[str, Figure], state: State) -> Shed:
        need, least = most.need(self.settings.max_unload_percentage), self.settings.min_unload_message_throughput
        why = {
            **why,
            "highest_mib_per_s": most.highest / MIB,
            "lowest_mib_per_s": most.lowest / MIB,
            "need_mib_per_s": need / MIB,
            KEYS["min_unload_message_throughput"]: least,
        }
        return self._make_result(snapshot, most, need, least, UniformReason.THROUGHPUT_DIFFERENCE, why, state)

    def _make_result(
        self,
        snapshot: Snapshot,
        extremes: _Extremes,
        need: int,
        least: int,
        reason: Reason,
        why: dict[str, Figure],
        state: State,
    ) -> Shed:
        """Take bundles off the most loaded broker if the need is at least `least`, with a verdict for each broker."""
        broker = extremes.broker
        bundles: tuple[int, ...] = ()
        refusal = find_refusal(snapshot, broker) or (None if need >= least else SheddingReason.NEED_BELOW_MINIMUM)
        if refusal is None:
            rows, carried = largest_first(snapshot, broker, extremes.columns)
            bundles = self._take(rows, carried, need)
            why |= {"eligible": len(rows), **self.settings.as_figures("max_unload_bundle_num_per_shedding")}
            if not bundles:
                refusal = SheddingReason.NO_BUNDLE_FITS if rows else SheddingReason.NO_ELIGIBLE_BUNDLE
        why["bundles"] = int(snapshot.brokers.bundle_count[broker])
        why["recently_unloaded"] = count_recently_unloaded(snapshot, broker)
        why["bundles_taken"] = len(bundles)
        ids = snapshot.brokers.ids
        busiest: dict[str, Figure] = {"busiest": ids[broker]}
        verdicts = [Verdict(ids[broker], refusal or reason, bool(bundles), why)]
        verdicts += [
            Verdict(i, UniformReason.NOT_THE_BUSIEST, acted=False, why=busiest) for i in ids if i != ids[broker]
        ]
        return Shed((Pick(broker, bundles, reason),) if bundles else (), tuple(verdicts), state)

    def _take(self, rows: list[int], carried: list[float], need: int) -> tuple[int, ...]:
        """Take bundles that fit into the need one by one; each reduces it by the integer part of its load."""
        taken: list[int] = []
        for row, load in zip(rows, carried, strict=True):
            if 0 <= self.settings.max_unload_bundle_num_per_shedding <= len(taken):
                break
            if load <= need:
                taken.append(row)
                need -= math.trunc(load)
        return tuple(taken)
