"""AvgShedder: pair the most used broker with the least used one, and so on inwards, and even out each pair.

Source: Pulsar's AvgShedder (PIP-364), with destinations kept by bundle name. A broker's score is its usage in points.
If the scores of a pair differ by the low threshold or more, both brokers get a low hit, and from the high one on also a
high hit; hits count while they are consecutive. When one of the two has enough hits of either kind, both counts restart
and the more used broker sheds to the other: a part of the difference of their message rates if that exceeds a minimum,
else of their throughputs. The largest bundles leave first, each if it fits into the remaining need. The destination is
fixed with the decision; placement has to be AvgShedder too and uses it
(see `core/strategies/placement/avg_placement.py`).

The state is `{"hits": {broker: [incarnation, low, high]}, "planned": {bundle: destination}, "placed": ...}`, shared
with placement. A round forgets all earlier destinations.

As in Pulsar: hits belong to a broker, not to its pair, and restart even if nothing could be moved; a broker's only
bundle moves if it fits; a need has to exceed its minimum; with an odd number of brokers, the middle one is its own
partner.

Differs from Pulsar: a re-registered broker starts without hits; brokers of equal score and bundles of equal load are
ordered by name; a broker is skipped, and keeps its hits, while a bundle is leaving it or has left it since its report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import Reason, SheddingReason, entry
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.strategies.shedding.shedding_strategy import (
    MIB,
    Pick,
    Shed,
    State,
    count_recently_unloaded,
    largest_first,
    least_points,
)

_RATE = (MSG_RATE_IN, MSG_RATE_OUT)
_THROUGHPUT = (THROUGHPUT_IN, THROUGHPUT_OUT)


_IS_ABOVE_PARTNER = (
    "Shed {bundles_taken} of {bundles} bundles to {partner} because usage {usage_percent} % has been above its"
    " {partner_usage_percent} % for {low_hits} rounds ({=avg_shedder_hit_count_low_threshold}), and far above it for"
    " {high_hits} ({=avg_shedder_hit_count_high_threshold})"
)


class AvgSheddingReason(Reason):
    BROKER_ABOVE_PARTNER = entry(
        _IS_ABOVE_PARTNER + ": need {need_msg_rate_per_s} messages/s",
        _IS_ABOVE_PARTNER + ": need {need_mib_per_s} MiB/s",
    )
    CLOSE_TO_PARTNER = entry(
        (
            "No move because usage {usage_percent} % is {apart_points} points above that of {partner}, less than"
            " {=avg_shedder_low_threshold}"
        ),
        "No move because usage {usage_percent} % is in the middle, with no other broker to pair with",
    )
    TOO_FEW_HITS = entry(
        "No move because usage {usage_percent} % is {apart_points} points above that of {partner}, but only for"
        " {low_hits} rounds ({=avg_shedder_hit_count_low_threshold}), and far above it for {high_hits}"
        " ({=avg_shedder_hit_count_high_threshold})"
    )
    LESS_USED_PARTNER = entry("No move because its partner {partner} is more used, {partner_usage_percent} %")


@dataclass(frozen=True, slots=True)
class _Pair:
    """Rows of a less and a more used broker, their scores, and the difference."""

    low: int
    high: int
    low_score: float
    high_score: float

    @property
    def apart(self) -> float:
        return self.high_score - self.low_score

    def why(self, snapshot: Snapshot) -> dict[str, Figure]:
        if self.low == self.high:
            return {"usage_percent": self.high_score}
        return {
            "usage_percent": self.high_score,
            "partner": snapshot.brokers.ids[self.low],
            "partner_usage_percent": self.low_score,
            "apart_points": self.apart,
        }


@dataclass(frozen=True, slots=True)
class _Hits:
    """Consecutive hits by broker row."""

    low: list[int]
    high: list[int]

    @classmethod
    def remembered(cls, snapshot: Snapshot, state: State) -> _Hits:
        """Read the hits of registrations that still exist."""
        counted = state.get("hits", {})
        hits = cls([], [])
        for registration in snapshot.brokers.registrations:
            incarnation, low, high = counted.get(registration.broker, (None, 0, 0))
            same = incarnation == registration.incarnation
            hits.low.append(low if same else 0)
            hits.high.append(high if same else 0)
        return hits

    def to_remember(self, snapshot: Snapshot) -> dict[str, list[int]]:
        counted = zip(snapshot.brokers.registrations, self.low, self.high, strict=True)
        return {each.broker: [each.incarnation, low, high] for each, low, high in counted if low or high}


@dataclass(frozen=True, slots=True)
class AvgShedder:
    settings: PlannerSettings

    def find_bundles_for_unloading(self, snapshot: Snapshot, state: State) -> Shed:
        hits = _Hits.remembered(snapshot, state)
        ids, names = snapshot.brokers.ids, snapshot.bundles.names
        picks: list[Pick] = []
        verdicts: dict[int, Verdict] = {}
        planned: dict[str, str] = {}
        for pair in _pair_up(usage_per_broker(snapshot, self.settings.resource_weights) * 100):
            self._count(pair, hits)
            bundles, verdict = self._judge(snapshot, pair, hits)
            if bundles:
                picks.append(Pick(pair.high, bundles, AvgSheddingReason.BROKER_ABOVE_PARTNER, pair.low))
                planned |= {names[row]: ids[pair.low] for row in bundles}
            receiver: dict[str, Figure] = {"partner": ids[pair.high], "partner_usage_percent": pair.high_score}
            verdicts[pair.low] = Verdict(ids[pair.low], AvgSheddingReason.LESS_USED_PARTNER, acted=False, why=receiver)
            verdicts[pair.high] = verdict
        remembered = {"hits": hits.to_remember(snapshot), "planned": planned}
        return Shed(tuple(picks), tuple(verdicts[broker] for broker in sorted(verdicts)), remembered)

    def find_margin(self, snapshot: Snapshot, state: State, broker: int) -> dict[str, Figure]:
        settings = self.settings
        scores = usage_per_broker(snapshot, settings.resource_weights) * 100

        def is_reached(points: float) -> bool:
            raised = scores.copy()
            raised[broker] += points
            least = settings.avg_shedder_low_threshold
            return any(pair.high == broker and pair.apart >= least for pair in _pair_up(raised))

        if not is_reached(0.0):
            margin = least_points(is_reached)
            return {**margin, "rounds": settings.avg_shedder_hit_count_low_threshold} if margin else {}
        hits = _Hits.remembered(snapshot, state)
        pair = next(each for each in _pair_up(scores) if each.high == broker)
        rounds = settings.avg_shedder_hit_count_low_threshold - max(hits.low[pair.low], hits.low[pair.high])
        if pair.apart >= settings.avg_shedder_high_threshold:
            high_hits = max(hits.high[pair.low], hits.high[pair.high])
            rounds = min(rounds, settings.avg_shedder_hit_count_high_threshold - high_hits)
        return {"rounds": max(rounds, 1)}

    def _count(self, pair: _Pair, hits: _Hits) -> None:
        for broker in (pair.low, pair.high):
            if pair.apart < self.settings.avg_shedder_low_threshold:
                hits.low[broker] = hits.high[broker] = 0
                continue
            hits.low[broker] += 1
            hits.high[broker] = 0 if pair.apart < self.settings.avg_shedder_high_threshold else hits.high[broker] + 1

    def _judge(self, snapshot: Snapshot, pair: _Pair, hits: _Hits) -> tuple[tuple[int, ...], Verdict]:
        """Return the bundle rows that leave the more used of the pair, if any, and the verdict."""
        why, settings = pair.why(snapshot), self.settings
        low_hits = max(hits.low[pair.low], hits.low[pair.high])
        high_hits = max(hits.high[pair.low], hits.high[pair.high])
        bundles: tuple[int, ...] = ()
        reason: Reason
        if pair.apart < settings.avg_shedder_low_threshold:
            reason = AvgSheddingReason.CLOSE_TO_PARTNER
            why |= settings.as_figures("avg_shedder_low_threshold")
        else:
            low, high = settings.avg_shedder_hit_count_low_threshold, settings.avg_shedder_hit_count_high_threshold
            why |= {"low_hits": low_hits, KEYS["avg_shedder_hit_count_low_threshold"]: low}
            why |= {"high_hits": high_hits, KEYS["avg_shedder_hit_count_high_threshold"]: high}
            if low_hits < low and high_hits < high:
                reason = AvgSheddingReason.TOO_FEW_HITS
            elif not snapshot.brokers.settled[pair.high]:
                reason = SheddingReason.AWAITING_REPORT
            else:
                for broker in (pair.low, pair.high):
                    hits.low[broker] = hits.high[broker] = 0
                bundles, reason = self._even_out(snapshot, pair, why)
        return bundles, Verdict(snapshot.brokers.ids[pair.high], reason, bool(bundles), why)

    def _even_out(self, snapshot: Snapshot, pair: _Pair, why: dict[str, Figure]) -> tuple[tuple[int, ...], Reason]:
        """Return the bundles that leave the more used of a pair, and the reason; add the figures to `why`."""
        need_rate = self._compute_need(snapshot, pair, _RATE)
        need_throughput = self._compute_need(snapshot, pair, _THROUGHPUT)
        by_rate = {"need_msg_rate_per_s": need_rate, **self.settings.as_figures("min_unload_message")}
        minimum = self.settings.as_figures("min_unload_message_throughput")
        by_throughput = {"need_mib_per_s": need_throughput / MIB, **minimum}
        if need_rate > self.settings.min_unload_message:
            columns, need = _RATE, need_rate
            why |= by_rate
        elif need_throughput > self.settings.min_unload_message_throughput:
            columns, need = _THROUGHPUT, need_throughput
            why |= by_throughput
        else:
            why |= by_rate | by_throughput
            return (), SheddingReason.NEED_BELOW_MINIMUM
        rows, carried = largest_first(snapshot, pair.high, columns)
        bundles = _take(rows, carried, need)
        why |= {"bundles": int(snapshot.brokers.bundle_count[pair.high]), "eligible": len(rows)}
        why |= {"bundles_taken": len(bundles)}
        if bundles:
            return bundles, AvgSheddingReason.BROKER_ABOVE_PARTNER
        if rows:
            return (), SheddingReason.NO_BUNDLE_FITS
        why["recently_unloaded"] = count_recently_unloaded(snapshot, pair.high)
        return (), SheddingReason.NO_ELIGIBLE_BUNDLE if why["bundles"] else SheddingReason.NO_BUNDLES

    def _compute_need(self, snapshot: Snapshot, pair: _Pair, columns: tuple[int, int]) -> float:
        low, high = snapshot.brokers.load[pair.low].tolist(), snapshot.brokers.load[pair.high].tolist()
        first, second = columns
        return float((high[first] + high[second] - (low[first] + low[second])) * self.settings.max_unload_percentage)


def _pair_up(scores: FloatArray) -> Iterator[_Pair]:
    """Pair the least with the most used broker, and so on inwards; equals by name."""
    order = np.argsort(scores, kind="stable").tolist()
    ordered = scores[order].tolist()
    for i in range((len(order) + 1) // 2):
        yield _Pair(order[i], order[-1 - i], ordered[i], ordered[-1 - i])


def _take(rows: list[int], carried: list[float], need: float) -> tuple[int, ...]:
    """Take bundles with load that fit into the remaining need."""
    taken = []
    for row, load in zip(rows, carried, strict=True):
        if not (load > 0 and need > 0):
            break
        if load <= need:
            taken.append(row)
            need -= load
    return tuple(taken)
