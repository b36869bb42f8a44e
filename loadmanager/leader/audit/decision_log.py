"""Decision log of a leader: decisions and non-decisions, each with its reason and its numbers.

A non-decision that repeats the last one about the same subject is counted, not kept again: "broker b1 is below the
threshold", every minute for a week, is one entry.

Each entry has a place, its position in the log. A follower asks for the entries behind the last place it has seen. When
the effect of a move is measured, its entries get new places and keep their sequence numbers.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.planning.churn import OPERATOR_REASONS
from loadmanager.core.planning.plan_effect import MoveEffect
from loadmanager.util import clock

_KEPT = 2_000
"""Some hours of a busy cluster, in a few MiB. Older entries are in the recorded history."""
_MOVES = ("unload", "would_unload")


@dataclass(slots=True)
class LoggedDecision:
    """Entry of the decision log. Times are epoch milliseconds; `times` counts consecutive repeats until `last_ms`.

    `round` numbers the shedding rounds; the summary of a round and its moves have the same number.
    """

    place: int
    sequence: int
    at_ms: int
    epoch: int
    kind: str
    subject: str
    reason: Reason
    acted: bool
    because: Sequence[Verdict] = ()
    source: str | None = None
    destination: str | None = None
    effect: MoveEffect | None = None
    round: int | None = None
    times: int = 1
    last_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "at": self.at_ms,
            "epoch": self.epoch,
            "kind": self.kind,
            "subject": self.subject,
            "reason": self.reason.value,
            "acted": self.acted,
            "sentence": ". ".join(verdict.sentence() for verdict in self.because),
            "why": {name: figure for verdict in self.because for name, figure in verdict.why.items()},
            "source": self.source,
            "destination": self.destination,
            "effect": None if self.effect is None else _effect_as_json(self.effect),
            "round": self.round,
            "times": self.times,
            "lastAt": self.last_ms,
        }


class DecisionLog:
    """Bounded decision log; `counts` counts every entry ever made by (kind, reason, acted)."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._decisions: deque[LoggedDecision] = deque(maxlen=kept)
        self._refrained: OrderedDict[tuple[str, str], LoggedDecision] = OrderedDict()
        self._sequence = 0
        self._place = 0
        self._last_round = (-1, 0)
        """Epoch and number of the last round."""
        self.counts: Counter[tuple[str, str, bool]] = Counter()

    def moved(
        self,
        kind: str,
        bundle: str,
        reason: Reason,
        *,
        epoch: int,
        source: Registration | None = None,
        destination: Registration | None = None,
        because: Sequence[Verdict] = (),
        effect: MoveEffect | None = None,
        acted: bool = True,
    ) -> None:
        """Log an assignment, or the start, end or failure of an unload; `because` are the verdicts that led to it.

        `acted` is false if a dry run or a move guard prevented the move.
        """
        entry = self._entry(kind, bundle, reason, epoch=epoch, acted=acted)
        entry.source = source.broker if source else None
        entry.destination = destination.broker if destination else None
        entry.because, entry.effect = because, effect
        epoch_of_round, number = self._last_round
        if kind in _MOVES and reason not in OPERATOR_REASONS and epoch == epoch_of_round:
            entry.round = number
        self._decisions.append(entry)

    def measured(self, effect: MoveEffect) -> None:
        """Add the measured effect of a move: its entries get new places, so that followers read them again."""
        for entry in self._decisions:
            if entry.effect is effect:
                entry.place = self._next_place()

    def stopped(self, subject: str, stops: Sequence[Verdict], *, epoch: int) -> None:
        """Log that guardrails stopped a move of that bundle, or every move of the cluster."""
        self.judged("guardrail", replace(stops[0], subject=subject), epoch=epoch, because=stops)

    def judged(self, kind: str, verdict: Verdict, *, epoch: int, because: Sequence[Verdict] = ()) -> None:
        """Log a verdict of a round, and whether the round acted on it; `because` replaces the verdict where several led
        to it.
        """
        because = because or (verdict,)
        key = (kind, verdict.subject)
        last = self._refrained.get(key)
        if last is not None and not verdict.acted and last.reason is verdict.verdict and last.epoch == epoch:
            self.counts[kind, verdict.verdict.value, False] += 1
            last.times += 1
            last.last_ms = clock.now_ms()
            last.because = because
            self._refrained.move_to_end(key)
            return
        entry = self._entry(kind, verdict.subject, verdict.verdict, epoch=epoch, acted=verdict.acted)
        entry.because = because
        if kind == "round":
            entry.round = int(verdict.why["round"])
            self._last_round = (epoch, entry.round)
        if verdict.acted:
            self._refrained.pop(key, None)
            self._decisions.append(entry)
            return
        self._refrained[key] = entry
        self._refrained.move_to_end(key)
        while len(self._refrained) > self._kept:
            self._refrained.popitem(last=False)

    def recent(
        self,
        limit: int,
        subject: str | None = None,
        *,
        kinds: Collection[str] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the newest `limit` entries, newest first; with `subject` only those about that bundle or broker.

        `kinds`, unless empty, selects kinds. A repeated non-decision lasts from its first time to its last.
        """
        entries = [
            entry
            for entry in chain(self._decisions, self._refrained.values())
            if (subject is None or subject in (entry.subject, entry.source, entry.destination))
            and (not kinds or entry.kind in kinds)
            and (since_ms is None or entry.last_ms >= since_ms)
            and (until_ms is None or entry.at_ms < until_ms)
        ]
        entries.sort(key=lambda entry: (entry.last_ms, entry.sequence), reverse=True)
        return [entry.to_json() for entry in entries[:limit]]

    @property
    def place(self) -> int:
        """Place of the newest entry."""
        return self._place

    def later_than(self, place: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """Return the last `limit` entries behind `place`, each with its place, oldest first."""
        if place >= self._place:
            return []
        later = [entry for entry in chain(self._decisions, self._refrained.values()) if entry.place > place]
        later.sort(key=lambda entry: entry.place)
        return [(entry.place, entry.to_json()) for entry in later[-limit:]]

    def _entry(self, kind: str, subject: str, reason: Reason, *, epoch: int, acted: bool) -> LoggedDecision:
        self._sequence += 1
        self.counts[kind, reason.value, acted] += 1
        now_ms = clock.now_ms()
        return LoggedDecision(
            self._next_place(), self._sequence, now_ms, epoch, kind, subject, reason, acted, last_ms=now_ms
        )

    def _next_place(self) -> int:
        self._place += 1
        return self._place


def _effect_as_json(effect: MoveEffect) -> dict[str, Any]:
    return {
        "predicted": _imbalances(effect.predicted),
        "measured": None if effect.measured is None else _imbalances(effect.measured),
        "measuredAt": effect.measured_at_ms,
        "load": effect.load,
        "source": effect.source,
        "destination": effect.destination,
    }


def _imbalances(before_after: tuple[float, float]) -> dict[str, float]:
    return dict(zip(("imbalanceBefore", "imbalanceAfter"), before_after, strict=True))
