"""Comparison of Pulsar's moves with ours: observations and plans go in, findings come out.

A move of Pulsar's is often observed in two parts: the bundle loses its owner, then gets one. It is judged after a
delay, since the end of the source's registration may be observed later.

    a bundle    loses its owner       gets an owner         gets another owner    its owner left    time
    ----------  --------------------  --------------------  --------------------  ----------------  --------------------
    at rest     LEFT                  ARRIVED               ARRIVED
    LEFT        judged; LEFT          ARRIVED               judged; ARRIVED       is recorded       judged as unowned
    ARRIVED     judged; LEFT          judged; ARRIVED       judged; ARRIVED       is recorded       judged

So each move is judged exactly once, by the first of these that holds: we requested it; its owner left; the bundle was
unowned before; it was split, or resulted from a split; it is unowned now; it is back at its source; our last round
before the move wanted it at this broker, or at another; it was at this broker within the last hour; our round wanted
other bundles of the source; there was no round; Pulsar's strategy selects it; it does not.

    a move we want    our round wants it    our round does not    the bundle leaves its broker   Pulsar's time is over
    ----------------  --------------------  --------------------  -----------------------------  -----------------------
    none              NEW
    NEW               NEW                   no longer wanted      is judged with the move        a finding: REPORTED
    REPORTED          REPORTED              no longer wanted      is judged with the move

    Pulsar      its strategy selects nothing    it selects, and a move was seen    it selects, and none was seen
    ----------  ------------------------------  ---------------------------------  -------------------------------------
    moves       moves                           moves                              after two rounds, each of them after
                                                                                   its interval: a finding: STALLED
    STALLED     a finding: moves                a finding: moves                   STALLED
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import (
    ComparisonReason,
    FilterReason,
    PlacementReason,
    Reason,
    SheddingReason,
)

ASKED_FOR_WITHIN_MS = 30_000
"""Time without an owner after which a move is judged. Clients of a bundle look it up in less than three seconds."""
SETTLED_MS = 5_000
"""Delay of a judgement. A broker loses its bundles with its registration; polling shows both within this time."""
NO_LIFE = 0
"""Incarnation of an unregistered owner."""
_REMEMBERED_MS = 3_600_000
_OVERDUE_AFTER = 1.25
"""Time for Pulsar to make a move that we want, in its intervals: it has had a round, and bundles have arrived."""
_FRUITLESS = 2
"""Number of rounds without effect that count as a stall."""
_A_ROUND = 0.9
"""Minimum time between rounds, as a part of Pulsar's interval, since our own interval differs slightly."""
_MS_PER_MINUTE = 60_000
_MIB = 1024 * 1024
_NAMED = 3
_EVENLY = FilterReason.OWNS_MORE_OF_NAMESPACE.value
_KEPT = (SheddingReason.NAMESPACE_EXCLUDED, SheddingReason.ANTI_AFFINITY_KEPT)
_NO_ROUND: Mapping[Reason, ComparisonReason] = {
    SheddingReason.SHEDDING_DISABLED: ComparisonReason.WE_ALONE_SHEDDING_OFF,
    ComparisonReason.STRATEGY_UNKNOWN: ComparisonReason.WE_ALONE_UNKNOWN,
}

PULSARS_MOVES = (
    ComparisonReason.MOVED_AS_WE_WOULD,
    ComparisonReason.MOVED_ELSEWHERE,
    ComparisonReason.MOVED_BACK,
    ComparisonReason.MOVED_ANOTHER,
    ComparisonReason.MOVED_AGAINST_US,
    ComparisonReason.MOVED_UNSELECTED,
    ComparisonReason.MOVED_BEFORE_OUR_ROUND,
    ComparisonReason.CAME_BACK,
    ComparisonReason.LEFT_WITHOUT_OWNER,
)
"""Reasons of moves that Pulsar or an operator decided."""

MOVES = frozenset(
    (
        *PULSARS_MOVES,
        ComparisonReason.OWNER_LEFT,
        ComparisonReason.FIRST_OWNER,
        ComparisonReason.PULSAR_SPLIT,
        ComparisonReason.MOVED_BY_US,
    )
)
"""Reasons of observed moves."""

WE_ALONE = tuple(reason for reason in ComparisonReason if reason.name.startswith("WE_ALONE_"))
"""Reasons of moves that only we would make."""

STALLS = tuple(reason for reason in ComparisonReason if reason.name.startswith("STALLED_"))


# Events


@dataclass(frozen=True, slots=True)
class Sighted:
    """An owner observed at `at_ms`, epoch milliseconds; None if unowned. `by_us`: we requested the move.

    `load` is the bundle's bytes/s in and out. `is_new`: unknown in our last round.
    """

    bundle: str
    before: Registration | None
    after: Registration | None
    at_ms: int
    by_us: bool
    load: float = 0.0
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class RegistrationEnded:
    """A broker's registration has ended."""

    owner: Registration
    at_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRounds:
    """A round of ours, and a computed one of Pulsar's, at the same moment. `loads` are bytes/s of the bundles that we
    would move; Pulsar's rounds are `interval_ms` apart.
    """

    at_ms: int
    ours: Plan
    pulsars: Plan
    loads: Mapping[str, float]
    interval_ms: int


@dataclass(frozen=True, slots=True)
class Time:
    """Time passes."""

    at_ms: int


Event = Sighted | RegistrationEnded | ComparedRounds | Time


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonEntry:
    """Finding about a bundle or "pulsar", with explaining verdicts: ours for a move that Pulsar made, Pulsar's for one
    that it did not make. `load` is in bytes/s.
    """

    at_ms: int
    verdict: Verdict
    because: tuple[Verdict, ...] = ()
    load: float = 0.0

    @property
    def reason(self) -> ComparisonReason:
        reason = self.verdict.verdict
        assert isinstance(reason, ComparisonReason), "a finding has such a reason"
        return reason


@dataclass(slots=True, eq=False)
class Wish:
    """A move that our rounds want since `since_ms`; `is_reported`: reported as not made by Pulsar."""

    step: Unload
    since_ms: int
    load: float
    is_reported: bool = False


class _Left(NamedTuple):
    """Source and time of Pulsar's last move of a bundle."""

    broker: BrokerId
    at_ms: int


@dataclass(slots=True, eq=False)
class _Move:
    """An observed move. `round` is our last round before it, `wish` the move of this bundle that it wanted;
    `left_before` is Pulsar's previous move of the bundle.
    """

    bundle: str
    before: Registration | None
    after: Registration | None
    began_ms: int
    changed_ms: int
    load: float
    round: _Round | None
    wish: Wish | None
    by_us: bool
    owner_left: bool
    is_of_split: bool
    left_before: _Left | None
    due_ms: int = 0

    @property
    def is_of_left(self) -> bool:
        """Return True if its owner's registration has ended; a restarted owner has another one."""
        before, after = self.before, self.after
        started_again = before is not None and after is not None and before != after and before.broker == after.broker
        was_gone = before is not None and before.incarnation == NO_LIFE
        return self.owner_left or started_again or was_gone

    @property
    def is_pulsars(self) -> bool:
        """Return True if shedding or an operator may have caused it."""
        return not (self.before is None or self.by_us or self.is_of_left or self.is_of_split)


class _Round:
    """The last pair of rounds, indexed."""

    def __init__(self, rounds: ComparedRounds) -> None:
        self.steps = {step.bundle: step for step in rounds.ours.unloads}
        self.by_source: dict[Registration, list[str]] = {}
        for step in self.steps.values():
            self.by_source.setdefault(step.source, []).append(step.bundle)
        self.verdicts = {verdict.subject: verdict for verdict in rounds.ours.verdicts}
        self.pulsars_steps = {step.bundle: step for step in rounds.pulsars.unloads}
        self.pulsars_verdicts = {verdict.subject: verdict for verdict in rounds.pulsars.verdicts}
        self.selected = {**self.pulsars_steps, **dict.fromkeys(self._find_selected_but_kept())}

    def _find_selected_but_kept(self) -> Iterator[str]:
        """Yield bundles that Pulsar's strategy selects but that stay."""
        for subject, verdict in self.pulsars_verdicts.items():
            is_selected = isinstance(verdict.verdict, PlacementReason) or verdict.verdict in _KEPT
            if "/" in subject and not verdict.acted and is_selected:
                yield subject


@dataclass(slots=True)
class PulsarComparison:
    """State machine that compares Pulsar's moves with ours. Events come in order of observation.

    `is_there` returns True if a bundle exists now; it no longer does after a split.
    """

    is_there: Callable[[str], bool]
    wishes: dict[str, Wish] = field(default_factory=dict)
    """Moves that our last round wants and Pulsar has not begun, by bundle."""
    stalled: ComparisonEntry | None = None
    """Start and reason of the current stall."""
    last: ComparedRounds | None = None
    _round: _Round | None = None
    _moves: dict[str, _Move] = field(default_factory=dict)
    _due: list[tuple[int, int, _Move]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _left: dict[Registration, int] = field(default_factory=dict)
    _took: dict[str, _Left] = field(default_factory=dict)
    _moved: bool = False
    _idle_since_ms: int | None = None
    _fruitless: int = 0
    _findings: list[ComparisonEntry] = field(default_factory=list)
    _now_ms: int = 0

    @property
    def unjudged(self) -> int:
        """Return the number of observed moves without a judgement."""
        return len(self._moves)

    def step(self, event: Event) -> list[ComparisonEntry]:
        """Process an event and return the findings."""
        self._now_ms = max(self._now_ms, event.at_ms)
        self._judge_due()
        match event:
            case Sighted():
                self._on_bundle_seen(event)
            case RegistrationEnded(owner):
                self._on_broker_left(owner)
            case ComparedRounds():
                self._on_round_planned(event)
            case _:
                pass  # due moves are judged above
        while self._due and self._due[0][0] != self._due[0][2].due_ms:
            heapq.heappop(self._due)  # outdated: the move was judged, or waits until another time
        findings, self._findings = self._findings, []
        return findings

    # Moves

    def _on_bundle_seen(self, sighted: Sighted) -> None:
        known = self._moves.get(sighted.bundle)
        if known is not None and sighted.before is None and known.after is None:
            known.after, known.changed_ms, known.by_us = sighted.after, self._now_ms, known.by_us or sighted.by_us
            self._wait(known)
            return
        if known is not None:
            known.after = known.after or sighted.before
            self._judge(known)
        self._begin(sighted)

    def _begin(self, sighted: Sighted) -> None:
        wish = self.wishes.get(sighted.bundle)
        if wish is not None and wish.step.source == sighted.before:
            del self.wishes[sighted.bundle]
        else:
            wish = None
        move = _Move(
            sighted.bundle,
            sighted.before,
            sighted.after,
            self._now_ms,
            self._now_ms,
            sighted.load,
            self._round,
            wish,
            sighted.by_us,
            owner_left=sighted.before in self._left,
            is_of_split=sighted.is_new,
            left_before=self._took.get(sighted.bundle),
        )
        self._moves[move.bundle] = move
        self._wait(move)

    def _wait(self, move: _Move) -> None:
        move.due_ms = self._now_ms + (ASKED_FOR_WITHIN_MS if move.after is None else SETTLED_MS)
        heapq.heappush(self._due, (move.due_ms, next(self._numbers), move))

    def _on_broker_left(self, owner: Registration) -> None:
        self._left[owner] = self._now_ms
        for move in self._moves.values():
            move.owner_left |= move.before == owner

    def _judge_due(self) -> None:
        while self._due and self._due[0][0] <= self._now_ms:
            due_ms, _, move = heapq.heappop(self._due)
            if due_ms == move.due_ms:
                self._judge(move)

    def _judge(self, move: _Move) -> None:
        del self._moves[move.bundle]
        move.due_ms = -1
        move.is_of_split |= move.after is None and not self.is_there(move.bundle)
        reason, because = _judgement_of(move)
        if move.is_pulsars and move.before is not None and reason is not ComparisonReason.CAME_BACK:
            self._moved = True
            self._took[move.bundle] = _Left(move.before.broker, move.began_ms)
        self._report(move.bundle, reason, _figures(move), because, move.load)

    # Wishes

    def _on_round_planned(self, rounds: ComparedRounds) -> None:
        self.last, self._round = rounds, _Round(rounds)
        self._forget_before(self._now_ms - _REMEMBERED_MS)
        self._watch_for_stall(self._round, rounds.interval_ms)
        self._compare_wishes(self._round, rounds.loads)
        for wish in self.wishes.values():
            if not wish.is_reported and self._now_ms - wish.since_ms >= _OVERDUE_AFTER * rounds.interval_ms:
                wish.is_reported = True
                reason, because = self._find_why_not(wish.step, self._round)
                self._report(wish.step.bundle, reason, self._figures_of(wish), because, wish.load)

    def _compare_wishes(self, now: _Round, loads: Mapping[str, float]) -> None:
        for bundle, wish in list(self.wishes.items()):
            step = now.steps.get(bundle)
            if step is None or step.source != wish.step.source:
                del self.wishes[bundle]
                self._report(bundle, ComparisonReason.NO_LONGER_WANTED, self._figures_of(wish), (), wish.load)
        for bundle, step in now.steps.items():
            if bundle in self._moves:
                continue  # planned before its move was observed
            wish = self.wishes.setdefault(bundle, Wish(step, self._now_ms, 0.0))
            wish.step, wish.load = step, loads.get(bundle, 0.0)

    def _find_why_not(self, step: Unload, now: _Round) -> tuple[ComparisonReason, tuple[Verdict, ...]]:
        """Return why Pulsar does not make a move that we want, from its own round."""
        cluster, own = now.pulsars_verdicts.get("cluster"), now.pulsars_verdicts.get(step.bundle)
        if cluster is not None and cluster.verdict in _NO_ROUND:
            return _NO_ROUND[cluster.verdict], (cluster,)
        if step.bundle in now.pulsars_steps:
            return ComparisonReason.WE_ALONE_UNEXPLAINED, ()
        if own is not None:
            is_kept = step.bundle in now.selected
            return ComparisonReason.WE_ALONE_STAYS if is_kept else ComparisonReason.WE_ALONE_WAITS, (own,)
        if self.stalled is not None:
            return ComparisonReason.WE_ALONE_STALLED, (self.stalled.verdict,)
        of_source = now.pulsars_verdicts.get(step.source.broker) or cluster
        return ComparisonReason.WE_ALONE_NOT_SELECTED, () if of_source is None else (of_source,)

    # Stalls

    def _watch_for_stall(self, now: _Round, interval_ms: int) -> None:
        moves = self._moved or any(move.is_pulsars for move in self._moves.values())
        idle_since_ms, self._moved = self._idle_since_ms, False
        if not now.selected or moves or idle_since_ms is None:
            self._idle_since_ms, self._fruitless = (self._now_ms if now.selected else None), 0
            if self.stalled is not None:
                assert idle_since_ms is not None, "it selected something when it stalled"
                self.stalled = None
                why = {"minutes" if moves else "idle_minutes": _minutes(self._now_ms - idle_since_ms)}
                self._report("pulsar", ComparisonReason.STALL_OVER, why)
            return
        self._fruitless += self._now_ms - idle_since_ms >= (self._fruitless + _A_ROUND) * interval_ms
        if self.stalled is None and self._fruitless >= _FRUITLESS:
            self._report_stall(now)

    def _report_stall(self, now: _Round) -> None:
        kept = [now.pulsars_verdicts[bundle] for bundle in now.selected if bundle not in now.pulsars_steps]
        if now.pulsars_steps:
            reason = ComparisonReason.STALLED_UNEXPLAINED
        elif all(verdict.verdict is PlacementReason.OWNER_CHOSEN for verdict in kept):
            reason = ComparisonReason.STALLED_ON_OWNER
        else:
            reason = ComparisonReason.STALLED_WITHOUT_DESTINATION
        sources = sorted(
            subject for subject, verdict in now.pulsars_verdicts.items() if verdict.acted and "/" not in subject
        )
        why: dict[str, Figure] = {
            "rounds": self._fruitless,
            "bundles": len(now.selected),
            "source": ", ".join(sources[:_NAMED]) or "its brokers",
        }
        if reason is ComparisonReason.STALLED_ON_OWNER and _EVENLY in kept[0].why:
            why["passed_over"] = kept[0].why[_EVENLY]
        self._report("pulsar", reason, why, tuple(kept))
        self.stalled = self._findings[-1]

    def _forget_before(self, oldest_ms: int) -> None:
        self._left = {owner: at_ms for owner, at_ms in self._left.items() if at_ms >= oldest_ms}
        self._took = {bundle: left for bundle, left in self._took.items() if left.at_ms >= oldest_ms}

    def _figures_of(self, wish: Wish) -> dict[str, Figure]:
        return {
            "source": wish.step.source.broker,
            "destination": _name(wish.step.destination),
            "mib_per_s": wish.load / _MIB,
            "minutes": _minutes(self._now_ms - wish.since_ms),
        }

    def _report(
        self,
        subject: str,
        reason: ComparisonReason,
        why: Mapping[str, Figure],
        because: tuple[Verdict, ...] = (),
        load: float = 0.0,
    ) -> None:
        verdict = Verdict(subject, reason, acted=reason in MOVES, why=why)
        self._findings.append(ComparisonEntry(self._now_ms, verdict, because, load))


def _judgement_of(move: _Move) -> tuple[ComparisonReason, tuple[Verdict, ...]]:
    """Judge the move, with explaining verdicts."""
    reason = _find_other_cause(move)
    if reason is not None:
        return reason, ()
    if move.after is None:
        return ComparisonReason.LEFT_WITHOUT_OWNER, _ours_of(move)
    if move.after == move.before:
        return ComparisonReason.CAME_BACK, _ours_of(move)
    return _compare(move)


def _find_other_cause(move: _Move) -> ComparisonReason | None:
    if move.by_us:
        return ComparisonReason.MOVED_BY_US
    if move.is_of_left:
        return ComparisonReason.OWNER_LEFT
    if move.before is None:
        return ComparisonReason.FIRST_OWNER
    return ComparisonReason.PULSAR_SPLIT if move.is_of_split else None


def _compare(move: _Move) -> tuple[ComparisonReason, tuple[Verdict, ...]]:
    """Compare a decision of Pulsar's with our last round before it."""
    if move.wish is not None:
        is_there = _name(move.wish.step.destination) == _name(move.after)
        return ComparisonReason.MOVED_AS_WE_WOULD if is_there else ComparisonReason.MOVED_ELSEWHERE, ()
    if move.left_before is not None and _name(move.after) == move.left_before.broker:  # it returned there
        return ComparisonReason.MOVED_BACK, _ours_of(move)
    if move.round is None:
        return ComparisonReason.MOVED_BEFORE_OUR_ROUND, ()
    if _others_of(move):
        return ComparisonReason.MOVED_ANOTHER, ()
    cluster = move.round.pulsars_verdicts.get("cluster")
    is_unknown = cluster is not None and cluster.verdict is ComparisonReason.STRATEGY_UNKNOWN
    is_selected = is_unknown or move.bundle in move.round.selected
    return ComparisonReason.MOVED_AGAINST_US if is_selected else ComparisonReason.MOVED_UNSELECTED, _ours_of(move)


def _others_of(move: _Move) -> list[str]:
    """Return the other bundles that our round takes from the same broker."""
    if move.round is None or move.before is None:
        return []
    return [bundle for bundle in move.round.by_source.get(move.before, ()) if bundle != move.bundle]


def _ours_of(move: _Move) -> tuple[Verdict, ...]:
    """Return the verdict of our round on the bundle, else on its source, else on the cluster; none without a round."""
    if move.round is None or move.before is None:
        return ()
    verdicts = (move.round.verdicts.get(subject) for subject in (move.bundle, move.before.broker, "cluster"))
    return next(((verdict,) for verdict in verdicts if verdict is not None), ())


def _figures(move: _Move) -> dict[str, Figure]:
    """Return the figures of a move, common to all judgements."""
    why: dict[str, Figure] = {
        "mib_per_s": move.load / _MIB,
        "seconds": round((move.changed_ms - move.began_ms) / 1000, 1) if move.after else ASKED_FOR_WITHIN_MS // 1000,
    }
    for name, owner in (("source", move.before), ("destination", move.after)):
        if owner is not None:
            why[name] = owner.broker
    if move.wish is not None:
        why["ours"] = _name(move.wish.step.destination)
        if move.wish.is_reported:
            why["minutes"] = _minutes(move.began_ms - move.wish.since_ms)
    elif others := _others_of(move):
        why |= {"others": len(others), "ours": others[0]}
    if move.left_before is not None:
        why["minutes_ago"] = _minutes(move.began_ms - move.left_before.at_ms)
    return why


def _name(owner: Registration | None) -> str:
    return "another broker" if owner is None else owner.broker


def _minutes(ms: int) -> int:
    return round(ms / _MS_PER_MINUTE)
