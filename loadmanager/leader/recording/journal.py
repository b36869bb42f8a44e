"""The recent decisions of a leader, and what it decided not to do, each with its reason and the numbers behind it.

Decisions are kept in order. A non-decision that only repeats the last one about the same subject is counted, not
kept again: "broker b1 is below the threshold", every minute for a week, is one entry.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadmanager.core.ownership import Registration
from loadmanager.core.plan import Verdict
from loadmanager.core.reasons import Reason


@dataclass(slots=True)
class Entry:
    """One line of the journal; times in epoch milliseconds, `times`: how often it was said in a row until `last_ms`."""

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
            "times": self.times,
            "lastAt": self.last_ms,
        }


class Journal:
    """Bounded memory of decisions; `counts` counts every one ever made by (kind, reason, acted)."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._decisions: deque[Entry] = deque(maxlen=kept)
        self._refrained: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._sequence = 0
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
    ) -> None:
        """A bundle was assigned, or its release began, ended or failed; `because` are the verdicts that led to it."""
        entry = self._entry(kind, bundle, reason, epoch=epoch, acted=True)
        entry.source = source.broker if source else None
        entry.destination = destination.broker if destination else None
        entry.because = because
        self._decisions.append(entry)

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

    def recent(self, limit: int, subject: str | None = None) -> list[dict[str, Any]]:
        """The newest `limit` entries, newest first; with `subject` only those about that bundle or broker."""
        entries = [*self._decisions, *self._refrained.values()]
        if subject is not None:
            entries = [e for e in entries if subject in (e.subject, e.source, e.destination)]
        entries.sort(key=lambda entry: (entry.last_ms, entry.sequence), reverse=True)
        return [entry.to_json() for entry in entries[:limit]]

    def _entry(self, kind: str, subject: str, reason: Reason, *, epoch: int, acted: bool) -> Entry:
        self._sequence += 1
        self.counts[kind, reason.value, acted] += 1
        now_ms = _now_ms()
        return Entry(self._sequence, now_ms, epoch, kind, subject, reason, acted, last_ms=now_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
