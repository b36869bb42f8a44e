"""The recent decisions of a leader, and what it decided not to do, each with its reason and the numbers behind it.

Decisions are kept in order. A non-decision that only repeats the last one about the same subject is counted, not
kept again: "broker b1 is below the threshold", every minute for a week, is one entry.

Each entry has a place, by which somebody who follows asks for what came later. An entry whose move was measured since
takes a new one; its sequence stays.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.planning.plan_effect import MoveEffect


@dataclass(slots=True)
class LoggedDecision:
    """One line of the journal; times in epoch milliseconds, `times`: how often it was said in a row until `last_ms`."""

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
            "times": self.times,
            "lastAt": self.last_ms,
        }


class DecisionLog:
    """Bounded memory of decisions; `counts` counts every one ever made by (kind, reason, acted)."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._decisions: deque[LoggedDecision] = deque(maxlen=kept)
        self._refrained: OrderedDict[tuple[str, str], LoggedDecision] = OrderedDict()
        self._sequence = 0
        self._place = 0
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
    ) -> None:
        """A bundle was assigned, or its release began, ended or failed; `because` are the verdicts that led to it."""
        entry = self._entry(kind, bundle, reason, epoch=epoch, acted=True)
        entry.source = source.broker if source else None
        entry.destination = destination.broker if destination else None
        entry.because, entry.effect = because, effect
        self._decisions.append(entry)

    def measured(self, effect: MoveEffect) -> None:
        """What a move has brought is known now: what was said of it is said again, with that."""
        for entry in self._decisions:
            if entry.effect is effect:
                entry.place = self._next_place()

    def would_move(
        self,
        kind: str,
        bundle: str,
        reason: Reason,
        *,
        epoch: int,
        source: Registration,
        destination: Registration | None,
        because: Sequence[Verdict],
    ) -> None:
        """In a dry run: what would have been done, and was not."""
        entry = self._entry(kind, bundle, reason, epoch=epoch, acted=False)
        entry.source = source.broker
        entry.destination = destination.broker if destination else None
        entry.because = because
        self._decisions.append(entry)

    def stopped(self, subject: str, stops: Sequence[Verdict], *, epoch: int) -> None:
        """Rails stopped something: a move of that bundle, or all that the cluster would have had moved."""
        self.judged("rail", replace(stops[0], subject=subject), epoch=epoch, because=stops)

    def judged(self, kind: str, verdict: Verdict, *, epoch: int, because: Sequence[Verdict] = ()) -> None:
        """A cycle looked at something and said why it acted on it, or did not; `because` of more than that verdict."""
        because = because or (verdict,)
        key = (kind, verdict.subject)
        last = self._refrained.get(key)
        if last is not None and not verdict.acted and last.reason is verdict.verdict and last.epoch == epoch:
            self.counts[kind, verdict.verdict.value, False] += 1
            last.times += 1
            last.last_ms = _now_ms()
            last.because = because
            self._refrained.move_to_end(key)
            return
        entry = self._entry(kind, verdict.subject, verdict.verdict, epoch=epoch, acted=verdict.acted)
        entry.because = because
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
        """The newest `limit` entries, newest first; with `subject` only those about that bundle or broker.

        `kinds`, unless empty, are those wanted; a non-decision that was repeated lasts from its first time to its last.
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
        """That of what was noted last."""
        return self._place

    def later_than(self, place: int, limit: int) -> list[tuple[int, dict[str, Any]]]:
        """The entries of later places, with these: the last `limit` of them, oldest first."""
        if place >= self._place:
            return []
        later = [entry for entry in chain(self._decisions, self._refrained.values()) if entry.place > place]
        later.sort(key=lambda entry: entry.place)
        return [(entry.place, entry.to_json()) for entry in later[-limit:]]

    def _entry(self, kind: str, subject: str, reason: Reason, *, epoch: int, acted: bool) -> LoggedDecision:
        self._sequence += 1
        self.counts[kind, reason.value, acted] += 1
        now_ms = _now_ms()
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
