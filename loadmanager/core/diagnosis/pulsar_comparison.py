"""Pulsar's moves against ours: what was seen and what was planned go in, and what there is to say about it comes out.

A move of Pulsar's is often seen in two parts: the bundle has no owner, then it has one. Its judgement waits for a
moment, as the end of the broker that it left may be seen later.

    a bundle    its owner is gone     it has an owner       another has it        its owner left    time
    ----------  --------------------  --------------------  --------------------  ----------------  --------------------
    at rest     LEFT                  ARRIVED               ARRIVED
    LEFT        judged; LEFT          ARRIVED               judged; ARRIVED       is noted          judged: nobody asks
    ARRIVED     judged; LEFT          judged; ARRIVED       judged; ARRIVED       is noted          judged

So each move is judged once and only once, by the first of these that holds: it was ours; its owner left; nobody had it;
it came of a split, or was split; nobody has it; it is where it was; our last round before it wanted it there, or
elsewhere; it is where it was within the hour; our round wanted other bundles of that broker; there was none; Pulsar's
strategy selects it; nobody does.

    a wish of ours    our round wants it    our round does not    the bundle is seen to leave    Pulsar has had its time
    ----------------  --------------------  --------------------  -----------------------------  -----------------------
    none              NEW
    NEW               NEW                   no longer wanted      is judged with the move        said, and why: SAID
    SAID              SAID                  no longer wanted      is judged with the move

    Pulsar      its strategy selects nothing    it selects, and a move was seen    it selects, and none was seen
    ----------  ------------------------------  ---------------------------------  -------------------------------------
    moves       moves                           moves                              after two rounds, each of them after
                                                                                   its interval: said, and why: STALLED
    STALLED     said: moves                     said: moves                        STALLED
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
"""A bundle that has clients is asked for in less than three seconds."""
SETTLED_MS = 5_000
"""What a broker had goes with its registration; who looks once a second sees both by then."""
NO_LIFE = 0
"""The incarnation of an owner that is not registered."""
_REMEMBERED_MS = 3_600_000
_PATIENCE = 1.25
"""In intervals of Pulsar's: it has had a round by then, and bundles have landed."""
_FRUITLESS = 2
"""So many rounds without any effect are a stall."""
_A_ROUND = 0.9
"""Of an interval of Pulsar's: ours are not exactly as long."""
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
"""What somebody decided, and not we."""

OTHER_MOVES = (
    ComparisonReason.OWNER_LEFT,
    ComparisonReason.FIRST_OWNER,
    ComparisonReason.PULSAR_SPLIT,
    ComparisonReason.MOVED_BY_US,
)

MOVES = frozenset((*PULSARS_MOVES, *OTHER_MOVES))
"""Every move that was seen is said with one of these."""

WE_ALONE = (
    ComparisonReason.WE_ALONE_SHEDDING_OFF,
    ComparisonReason.WE_ALONE_NOT_SELECTED,
    ComparisonReason.WE_ALONE_UNKNOWN,
    ComparisonReason.WE_ALONE_WAITS,
    ComparisonReason.WE_ALONE_STAYS,
    ComparisonReason.WE_ALONE_STALLED,
    ComparisonReason.WE_ALONE_UNEXPLAINED,
)
"""What we would move, and Pulsar does not."""

STALLS = (
    ComparisonReason.STALLED_ON_OWNER,
    ComparisonReason.STALLED_WITHOUT_DESTINATION,
    ComparisonReason.STALLED_UNEXPLAINED,
)


@dataclass(frozen=True, slots=True)
class Sighted:
    """An owner that changed, as seen at `at_ms`, epoch milliseconds; None is nobody. `by_us`: we had it moved."""

    bundle: str
    before: Registration | None
    after: Registration | None
    at_ms: int
    by_us: bool


# Events


@dataclass(frozen=True, slots=True)
class SeenBundle:
    """`load` is what the bundle carried, bytes/s in and out. `is_new`: our last round did not know it yet."""

    sighted: Sighted
    load: float = 0.0
    is_new: bool = False

    @property
    def at_ms(self) -> int:
        return self.sighted.at_ms


@dataclass(frozen=True, slots=True)
class Left:
    """A registration of a broker has ended."""

    owner: Registration
    at_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRounds:
    """A round of ours, and one of Pulsar's as we work it out, of the same moment. `loads` are bytes/s of the bundles
    that we would move; Pulsar makes a round every `interval_ms`.
    """

    at_ms: int
    ours: Plan
    pulsars: Plan
    loads: Mapping[str, float]
    interval_ms: int


@dataclass(frozen=True, slots=True)
class Time:
    """`wake_ms` has come."""

    at_ms: int


Event = SeenBundle | Left | ComparedRounds | Time


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonEntry:
    """What there is to say, of a bundle or of "pulsar", and the verdicts that explain it: ours of a move that Pulsar
    made, Pulsar's of one that it did not make. `load` is in bytes/s.
    """

    at_ms: int
    verdict: Verdict
    because: tuple[Verdict, ...] = ()
    load: float = 0.0

    @property
    def reason(self) -> ComparisonReason:
        reason = self.verdict.verdict
        assert isinstance(reason, ComparisonReason), "nothing else is said here"
        return reason


@dataclass(slots=True, eq=False)
class Wish:
    """A move that our rounds want since `since_ms`; `is_said` when it was said that Pulsar does not make it."""

    step: Unload
    since_ms: int
    load: float
    is_said: bool = False


class _Left(NamedTuple):
    """From which broker Pulsar took a bundle, and when."""

    broker: BrokerId
    at_ms: int


@dataclass(slots=True, eq=False)
class _Move:
    """A bundle that is not at rest. `round` is the last one before it, `wish` what it wanted of this bundle;
    `left_before` is the move of Pulsar's before this one.
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
        """Whether its owner is no more; one that started again has another registration."""
        before, after = self.before, self.after
        started_again = before is not None and after is not None and before != after and before.broker == after.broker
        was_gone = before is not None and before.incarnation == NO_LIFE
        return self.owner_left or started_again or was_gone

    @property
    def is_back(self) -> bool:
        """Whether it is where Pulsar took it from the last time."""
        return self.left_before is not None and self.after is not None and self.after.broker == self.left_before.broker

    @property
    def is_pulsars(self) -> bool:
        """Whether shedding, or an operator, may have had it moved."""
        return not (self.before is None or self.by_us or self.is_of_left or self.is_of_split)


class _Round:
    """The last pair of rounds, by what is asked of them."""

    def __init__(self, rounds: ComparedRounds) -> None:
        self.steps = {step.bundle: step for step in rounds.ours.steps if isinstance(step, Unload)}
        self.by_source: dict[Registration, list[str]] = {}
        for step in self.steps.values():
            self.by_source.setdefault(step.source, []).append(step.bundle)
        self.said = {verdict.subject: verdict for verdict in rounds.ours.verdicts}
        self.pulsars_steps = {step.bundle: step for step in rounds.pulsars.steps if isinstance(step, Unload)}
        self.pulsars_said = {verdict.subject: verdict for verdict in rounds.pulsars.verdicts}
        self.selected = {**self.pulsars_steps, **dict.fromkeys(self._kept())}

    def _kept(self) -> Iterator[str]:
        """The bundles that Pulsar's strategy selects, and that stay."""
        for subject, verdict in self.pulsars_said.items():
            is_selected = isinstance(verdict.verdict, PlacementReason) or verdict.verdict in _KEPT
            if "/" in subject and not verdict.acted and is_selected:
                yield subject


@dataclass(slots=True)
class PulsarComparison:
    """What Pulsar did, and what we would have done. Events come in the order in which they are learned of.

    `is_there` says whether a bundle is one at this moment: one that was split is none any more.
    """

    is_there: Callable[[str], bool]
    wishes: dict[str, Wish] = field(default_factory=dict)
    """What our last round wants, and Pulsar has not begun, by bundle."""
    stalled: ComparisonEntry | None = None
    """Since when and why nothing moves, while it has stalled."""
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
    _said: list[ComparisonEntry] = field(default_factory=list)
    _now_ms: int = 0

    @property
    def wake_ms(self) -> int | None:
        """When a move is to be judged, at the latest."""
        return self._due[0][0] if self._due else None

    @property
    def under_way(self) -> int:
        """Moves that were seen, and are not judged yet."""
        return len(self._moves)

    def step(self, event: Event) -> list[ComparisonEntry]:
        """What there is to say now that this has happened."""
        self._now_ms = max(self._now_ms, event.at_ms)
        self._judge_what_is_due()
        match event:
            case SeenBundle():
                self._seen(event)
            case Left(owner):
                self._broker_left(owner)
            case ComparedRounds():
                self._planned(event)
            case _:
                pass  # what is due was judged
        while self._due and self._due[0][0] != self._due[0][2].due_ms:
            heapq.heappop(self._due)  # it waits for something else by now, or was judged
        said, self._said = self._said, []
        return said

    # Moves

    def _seen(self, seen: SeenBundle) -> None:
        sighted = seen.sighted
        known = self._moves.get(sighted.bundle)
        if known is not None and sighted.before is None and known.after is None:
            known.after, known.changed_ms, known.by_us = sighted.after, self._now_ms, known.by_us or sighted.by_us
            self._wait(known)
            return
        if known is not None:
            known.after = known.after or sighted.before
            self._judge(known)
        self._begin(seen)

    def _begin(self, seen: SeenBundle) -> None:
        sighted = seen.sighted
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
            seen.load,
            self._round,
            wish,
            sighted.by_us,
            owner_left=sighted.before in self._left,
            is_of_split=seen.is_new,
            left_before=self._took.get(sighted.bundle),
        )
        self._moves[move.bundle] = move
        self._wait(move)

    def _wait(self, move: _Move) -> None:
        move.due_ms = self._now_ms + (ASKED_FOR_WITHIN_MS if move.after is None else SETTLED_MS)
        heapq.heappush(self._due, (move.due_ms, next(self._numbers), move))

    def _broker_left(self, owner: Registration) -> None:
        self._left[owner] = self._now_ms
        for move in self._moves.values():
            move.owner_left |= move.before == owner

    def _judge_what_is_due(self) -> None:
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
        self._say(move.bundle, reason, _figures(move), because, move.load)

    # Wishes

    def _planned(self, rounds: ComparedRounds) -> None:
        self.last, self._round = rounds, _Round(rounds)
        self._forget_before(self._now_ms - _REMEMBERED_MS)
        self._watch_for_stall(self._round, rounds.interval_ms)
        self._compare_wishes(self._round, rounds.loads)
        for wish in self.wishes.values():
            if not wish.is_said and self._now_ms - wish.since_ms >= _PATIENCE * rounds.interval_ms:
                wish.is_said = True
                reason, because = self._find_why_not(wish.step, self._round)
                self._say(wish.step.bundle, reason, self._figures_of(wish), because, wish.load)

    def _compare_wishes(self, now: _Round, loads: Mapping[str, float]) -> None:
        for bundle, wish in list(self.wishes.items()):
            step = now.steps.get(bundle)
            if step is None or step.source != wish.step.source:
                del self.wishes[bundle]
                self._say(bundle, ComparisonReason.NO_LONGER_WANTED, self._figures_of(wish), (), wish.load)
        for bundle, step in now.steps.items():
            if bundle in self._moves:
                continue  # it was planned before it was seen to move
            wish = self.wishes.setdefault(bundle, Wish(step, self._now_ms, 0.0))
            wish.step, wish.load = step, loads.get(bundle, 0.0)

    def _find_why_not(self, step: Unload, now: _Round) -> tuple[ComparisonReason, tuple[Verdict, ...]]:
        """Why Pulsar does not make the move that we want: what its own round says."""
        cluster, own = now.pulsars_said.get("cluster"), now.pulsars_said.get(step.bundle)
        if cluster is not None and cluster.verdict in _NO_ROUND:
            return _NO_ROUND[cluster.verdict], (cluster,)
        if step.bundle in now.pulsars_steps:
            return ComparisonReason.WE_ALONE_UNEXPLAINED, ()
        if own is not None:
            is_kept = step.bundle in now.selected
            return ComparisonReason.WE_ALONE_STAYS if is_kept else ComparisonReason.WE_ALONE_WAITS, (own,)
        if self.stalled is not None:
            return ComparisonReason.WE_ALONE_STALLED, (self.stalled.verdict,)
        of_source = now.pulsars_said.get(step.source.broker) or cluster
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
                self._say("pulsar", ComparisonReason.STALL_OVER, why)
            return
        self._fruitless += self._now_ms - idle_since_ms >= (self._fruitless + _A_ROUND) * interval_ms
        if self.stalled is None and self._fruitless >= _FRUITLESS:
            self._say_stalled(now)

    def _say_stalled(self, now: _Round) -> None:
        kept = [now.pulsars_said[bundle] for bundle in now.selected if bundle not in now.pulsars_steps]
        if now.pulsars_steps:
            reason = ComparisonReason.STALLED_UNEXPLAINED
        elif all(verdict.verdict is PlacementReason.OWNER_CHOSEN for verdict in kept):
            reason = ComparisonReason.STALLED_ON_OWNER
        else:
            reason = ComparisonReason.STALLED_WITHOUT_DESTINATION
        sources = sorted(subject for subject, said in now.pulsars_said.items() if said.acted and "/" not in subject)
        why: dict[str, Figure] = {
            "rounds": self._fruitless,
            "bundles": len(now.selected),
            "source": ", ".join(sources[:_NAMED]) or "its brokers",
        }
        if reason is ComparisonReason.STALLED_ON_OWNER and _EVENLY in kept[0].why:
            why["passed_over"] = kept[0].why[_EVENLY]
        self._say("pulsar", reason, why, tuple(kept))
        self.stalled = self._said[-1]

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

    def _say(
        self,
        subject: str,
        reason: ComparisonReason,
        why: Mapping[str, Figure],
        because: tuple[Verdict, ...] = (),
        load: float = 0.0,
    ) -> None:
        verdict = Verdict(subject, reason, acted=reason in MOVES, why=why)
        self._said.append(ComparisonEntry(self._now_ms, verdict, because, load))


def _judgement_of(move: _Move) -> tuple[ComparisonReason, tuple[Verdict, ...]]:
    """What is said of the move, and what explains it."""
    reason = _find_other_cause(move)
    if reason is not None:
        return reason, ()
    if move.after is None:
        return ComparisonReason.LEFT_WITHOUT_OWNER, _ours_of(move)
    if move.after == move.before:
        return ComparisonReason.CAME_BACK, _ours_of(move)
    return _compare(move)


def _find_other_cause(move: _Move) -> ComparisonReason | None:
    """What had it moved, if that was no decision of Pulsar's."""
    if move.by_us:
        return ComparisonReason.MOVED_BY_US
    if move.is_of_left:
        return ComparisonReason.OWNER_LEFT
    if move.before is None:
        return ComparisonReason.FIRST_OWNER
    return ComparisonReason.PULSAR_SPLIT if move.is_of_split else None


def _compare(move: _Move) -> tuple[ComparisonReason, tuple[Verdict, ...]]:
    """A decision of Pulsar's with our last round before it."""
    if move.wish is not None:
        is_there = _name(move.wish.step.destination) == _name(move.after)
        return ComparisonReason.MOVED_AS_WE_WOULD if is_there else ComparisonReason.MOVED_ELSEWHERE, ()
    if move.is_back:
        return ComparisonReason.MOVED_BACK, _ours_of(move)
    if move.round is None:
        return ComparisonReason.MOVED_BEFORE_OUR_ROUND, ()
    if _others_of(move):
        return ComparisonReason.MOVED_ANOTHER, ()
    cluster = move.round.pulsars_said.get("cluster")
    is_unknown = cluster is not None and cluster.verdict is ComparisonReason.STRATEGY_UNKNOWN
    is_selected = is_unknown or move.bundle in move.round.selected
    return ComparisonReason.MOVED_AGAINST_US if is_selected else ComparisonReason.MOVED_UNSELECTED, _ours_of(move)


def _others_of(move: _Move) -> list[str]:
    """The other bundles that our round takes from the same broker."""
    if move.round is None or move.before is None:
        return []
    return [bundle for bundle in move.round.by_source.get(move.before, ()) if bundle != move.bundle]


def _ours_of(move: _Move) -> tuple[Verdict, ...]:
    """What our last round said: of the bundle, else of its broker, else of all."""
    if move.round is None or move.before is None:
        return ()
    said = (move.round.said.get(subject) for subject in (move.bundle, move.before.broker, "cluster"))
    return next(((verdict,) for verdict in said if verdict is not None), ())


def _figures(move: _Move) -> dict[str, Figure]:
    """All that there is to say of a move, whatever is said."""
    why: dict[str, Figure] = {
        "mib_per_s": move.load / _MIB,
        "seconds": round((move.changed_ms - move.began_ms) / 1000, 1) if move.after else ASKED_FOR_WITHIN_MS // 1000,
    }
    for name, owner in (("source", move.before), ("destination", move.after)):
        if owner is not None:
            why[name] = owner.broker
    if move.wish is not None:
        why["ours"] = _name(move.wish.step.destination)
        if move.wish.is_said:
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
