"""Limits on churn: budgets for shedding, and a circuit breaker against moving bundles back and forth.

The memory of completed moves is kept under `KEY` of the state, for no longer than the windows of the settings. `limit`
drops steps beyond the limits; `noted` adds a completed move and may trip the breaker. Load is that of
`core.planning.plan_effect`, bytes/s in and out by short-term averages; shares are of all brokers' load.

Only moves of shedding count for the budgets and the breaker. Operators' moves matter in one case: shedding does not
return a bundle to a broker from which an operator has just taken it.

The breaker counts wasted moves (`core.planning.repeated_moves`): bundles that returned within four hours, and bundles
moved again within two. A cool-down of 0 switches it off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmanager.core.domain.names import namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import ChurnReason, OwnershipReason, PlacementReason, Reason, SplitReason
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.fleet_load import is_idle, share_of
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.blocking_limits import BlockingLimit
from loadmanager.core.planning.repeated_moves import (
    AGAIN_WITHIN_S,
    BACK_WITHIN_S,
    NEVER,
    PastMove,
    find_departure,
    is_again,
    is_back,
    next_move,
    share_again,
    share_back,
)

State = dict[str, Any]

KEY = "churn"
"""Key of the memory in the state."""

_MEMORY = "memory"

OPERATOR_REASONS = frozenset(
    {
        OwnershipReason.ADMIN_UNLOAD,
        OwnershipReason.DRAIN,
        OwnershipReason.RETURNED_AFTER_DRAIN,
        PlacementReason.PINNED_TO_BROKER,
        OwnershipReason.PLAN_EXECUTED,
        SplitReason.ADMIN_SPLIT,
    }
)
"""Reasons of unloads that shedding did not request."""

MOST_MOVES = 10_000
"""Maximum number of remembered moves, so that the memory fits a znode; the oldest are dropped."""

MOST_RETURNS = 2
"""Returns of a bundle within four hours at which it is frozen: one may be an accident."""
MOST_BACK = 0.20
"""Share of all load that may return within four hours before shedding stops."""
MOST_AGAIN = 0.50
"""Share of all load that may move again within two hours before shedding stops. Bursty load needs some repeated moves.
"""
FREEZE_S = 3600.0
"""Duration of a bundle's freeze. It is as long as the default cool-down of a return."""
STOP_S = 1800.0
"""Duration of shedding's stop: thirty rounds by default. An operator can lift it."""

_HOUR_S = 3600.0
_MINUTE_S = 60.0
_ROUNDING = 1e-9
"""Rounding error of summed shares."""


@dataclass(frozen=True, slots=True)
class MoveMemory:
    """Moves in order of completion, the end of each bundle's freeze, and the end of shedding's stop."""

    moves: tuple[PastMove, ...] = ()
    frozen_until_s: Mapping[str, float] = field(default_factory=dict)
    stopped_until_s: float = 0.0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> MoveMemory:
        """Read the memory from the state; empty if missing or unreadable."""
        content = state.get(KEY, {}).get(_MEMORY, {})
        if isinstance(content, MoveMemory):
            return content
        try:
            return cls(
                tuple(_move_of(*move) for move in content.get("moves", ())),
                {str(bundle): float(until_s) for bundle, until_s in content.get("frozenUntilS", {}).items()},
                float(content.get("stoppedUntilS", 0.0)),
            )
        except (AttributeError, TypeError, ValueError):
            return cls()

    def into(self, state: State) -> State:
        return {**state, KEY: {_MEMORY: self}}

    def as_json(self) -> dict[str, Any]:
        """Return the memory as JSON; see `core.planning.decision_kinds`."""
        return {
            "moves": [[None if figure == NEVER else figure for figure in move] for move in self.moves],
            "frozenUntilS": dict(self.frozen_until_s),
            "stoppedUntilS": self.stopped_until_s,
        }

    def at(self, now_s: float, settings: PlannerSettings) -> MoveMemory:
        """Drop expired entries; without a breaker, also its freezes and its stop."""
        longest_s = max(BACK_WITHIN_S, settings.return_cool_down_minutes * _MINUTE_S)
        outdated = bisect_right(self.moves, now_s - longest_s, key=lambda move: move.at_s)
        moves = self.moves[max(outdated, len(self.moves) - MOST_MOVES) :]
        if not settings.has_churn_breaker:
            return MoveMemory(moves)
        return MoveMemory(
            moves,
            {bundle: until_s for bundle, until_s in self.frozen_until_s.items() if until_s > now_s},
            self.stopped_until_s if self.stopped_until_s > now_s else 0.0,
        )

    def not_after(self, now_s: float) -> MoveMemory:
        """Clamp future times to now; they were recorded by a clock that was ahead."""
        return MoveMemory(
            tuple(move._replace(at_s=min(move.at_s, now_s)) for move in self.moves),
            {bundle: min(until_s, now_s + FREEZE_S) for bundle, until_s in self.frozen_until_s.items()},
            min(self.stopped_until_s, now_s + STOP_S),
        )

    def joined(self, other: MoveMemory) -> MoveMemory:
        """Merge two memories."""
        frozen = {
            bundle: max(each.frozen_until_s.get(bundle, 0.0) for each in (self, other))
            for bundle in {**self.frozen_until_s, **other.frozen_until_s}
        }
        return MoveMemory(
            tuple(sorted({*self.moves, *other.moves})), frozen, max(self.stopped_until_s, other.stopped_until_s)
        )

    def moved_this_hour(self, snapshot: Snapshot, now_s: float) -> list[PastMove]:
        """Return shedding's moves of the last hour, without namespaces that are gone or idle."""
        moves = [move for move in self._since(now_s - _HOUR_S) if move.is_own]
        of_bundles: dict[str, dict[str, float]] = {}
        for move in moves:
            of_namespace = of_bundles.setdefault(namespace_of(move.bundle), {})
            of_namespace[move.bundle] = max(of_namespace.get(move.bundle, 0.0), move.share)
        idle = {name for name, shares in of_bundles.items() if is_idle(snapshot, name, sum(shares.values()))}
        return [move for move in moves if namespace_of(move.bundle) not in idle]

    def moved_share(self, snapshot: Snapshot, now_s: float) -> float:
        """Return the sum of the shares of `moved_this_hour`."""
        return sum(move.share for move in self.moved_this_hour(snapshot, now_s))

    def moved_again(self, now_s: float) -> float:
        """Return the share that shedding moved again in the last two hours."""
        return share_again(self._since(now_s - AGAIN_WITHIN_S))

    def moved_back(self, now_s: float) -> float:
        """Return the share that shedding moved back in the last four hours."""
        return share_back(self._since(now_s - BACK_WITHIN_S))

    def returns_of(self, bundle: str, now_s: float) -> int:
        """Return how often shedding moved the bundle back in the last four hours."""
        moves = self._since(now_s - BACK_WITHIN_S)
        return sum(move.bundle == bundle and move.is_own and is_back(move) for move in moves)

    def find_departure(self, bundle: str, broker: Registration, since_s: float) -> float | None:
        """Find the last time after `since_s` when the bundle left that registration of the broker."""
        left_s = find_departure(self._since(since_s), bundle, broker)
        return None if left_s == NEVER else left_s

    def _since(self, since_s: float) -> tuple[PastMove, ...]:
        return tuple(move for move in self.moves if move.at_s > since_s)


def standing_limits(
    state: State, snapshot: Snapshot, settings: PlannerSettings, now_s: float, in_progress: float
) -> list[BlockingLimit]:
    """Return the limits that block all moves regardless of a plan: the breaker, and the spent hourly budget."""
    memory = MoveMemory.of(state).at(now_s, settings)
    found = []
    if memory.stopped_until_s:
        said = "Nothing is shed: the breaker has stopped shedding"
        found.append(BlockingLimit(ChurnReason.SHEDDING_STOPPED, said, memory.stopped_until_s))
    moved = memory.moved_this_hour(snapshot, now_s)
    share, most_percent = sum(move.share for move in moved) + in_progress, settings.max_load_moved_per_hour_percentage
    if moved and share >= most_percent / 100 - _ROUNDING:
        said = f"Nothing is shed: {100 * share:.0f} % of all load were moved within the hour"
        found.append(BlockingLimit(ChurnReason.MOVED_ENOUGH_THIS_HOUR, said, moved[0].at_s + _HOUR_S))
    return found


def noted(
    state: State,
    bundle: str,
    source: Registration,
    destination: Registration | None,
    share: float,
    settings: PlannerSettings,
    *,
    at_s: float,
    is_own: bool,
) -> tuple[State, list[Verdict]]:
    """Return the state after a completed move, and the breaker's verdicts."""
    memory = MoveMemory.of(state).at(at_s, settings)
    move = next_move(memory.moves, at_s, bundle, source, destination, share, is_own=is_own)
    memory = replace(memory, moves=(*memory.moves, move))
    memory, verdicts = _judge(memory, move) if move.is_own and settings.has_churn_breaker else (memory, [])
    return memory.into(state), verdicts


def restored(state: State, stored: Mapping[str, Any], now_s: float) -> State:
    """Return the state merged with the memory of a former leader."""
    if KEY not in stored:
        return state
    return MoveMemory.of(stored).not_after(now_s).joined(MoveMemory.of(state)).into(state)


def lifted(state: State, bundle: str | None = None) -> State:
    """Return the state with the breaker reset: for one bundle, or for all and for shedding."""
    memory = MoveMemory.of(state)
    if bundle is None:
        memory = replace(memory, frozen_until_s={}, stopped_until_s=0.0)
    else:
        frozen = {name: until_s for name, until_s in memory.frozen_until_s.items() if name != bundle}
        memory = replace(memory, frozen_until_s=frozen)
    return memory.into(state)


def limit(
    plan: Plan, snapshot: Snapshot, settings: PlannerSettings, state: State, in_progress: float = 0.0
) -> tuple[Plan, State]:
    """Drop the steps beyond the limits; return the plan, with a verdict for each dropped step, and the state.

    `in_progress` is the share of load in unfinished moves of former rounds.
    """
    memory = MoveMemory.of(state).at(snapshot.taken_at_s, settings)
    state = memory.into(state)
    if not plan.steps:
        return plan, state
    refusals: dict[str, Verdict] = {}
    allowance = _Allowance(memory, snapshot, settings, in_progress)
    for step in plan.unloads:
        refusal = allowance.find_refusal(step)
        if refusal is not None:
            refusals[step.bundle] = refusal
    _drop_broken_exchanges(plan.unloads, refusals)
    steps = tuple(step for step in plan.steps if step.bundle not in refusals)
    idle = _explain_idle_sources(plan.unloads, refusals)
    kept = [verdict for verdict in plan.verdicts if not (verdict.acted and verdict.subject in {*refusals, *idle})]
    return replace(plan, steps=steps, verdicts=(*kept, *idle.values(), *refusals.values())), state


def find_excess(
    step: Unload, snapshot: Snapshot, settings: PlannerSettings, state: State, in_progress: float = 0.0
) -> Verdict | None:
    """Return the limit that blocks this single step now, None if it may run."""
    memory = MoveMemory.of(state).at(snapshot.taken_at_s, settings)
    return _Allowance(memory, snapshot, settings, in_progress).find_refusal(step)


class _Allowance:
    """Remaining budget of a round; each accepted step counts."""

    def __init__(self, memory: MoveMemory, snapshot: Snapshot, settings: PlannerSettings, in_progress: float) -> None:
        self._memory = memory
        self._snapshot = snapshot
        self._settings = settings
        self._now_s = snapshot.taken_at_s
        self._moved = memory.moved_this_hour(snapshot, self._now_s)
        self._this_hour = sum(move.share for move in self._moved) + in_progress
        self._this_round = 0.0
        self._left = {move.bundle for move in memory.moves}

    def find_refusal(self, step: Unload) -> Verdict | None:
        share = share_of(self._snapshot, step.bundle)
        refusal = (
            self._find_breaker(step)
            or self._find_return(step)
            or self._find_excess_of_round(step, share)
            or self._find_excess_of_hour(step, share)
        )
        if refusal is None:
            self._this_round += share
            self._this_hour += share
        return refusal

    def _find_breaker(self, step: Unload) -> Verdict | None:
        memory = self._memory
        why: dict[str, Figure]
        if memory.stopped_until_s:
            why = {
                "seconds_left": round(memory.stopped_until_s - self._now_s),
                **_why_stopped(memory, self._now_s),
            }
            return Verdict(step.bundle, ChurnReason.SHEDDING_STOPPED, acted=False, why=why)
        until_s = memory.frozen_until_s.get(step.bundle)
        if until_s is None:
            return None
        why = {
            "seconds_left": round(until_s - self._now_s),
            "returns": memory.returns_of(step.bundle, self._now_s),
        }
        return Verdict(step.bundle, ChurnReason.KEEPS_RETURNING, acted=False, why=why)

    def _find_return(self, step: Unload) -> Verdict | None:
        if step.destination is None or step.bundle not in self._left:
            return None
        minutes = self._settings.return_cool_down_minutes
        left_s = self._memory.find_departure(step.bundle, step.destination, self._now_s - minutes * _MINUTE_S)
        if left_s is None:
            return None
        why: dict[str, Figure] = {
            "broker": step.destination.broker,
            "seconds_ago": round(self._now_s - left_s),
            KEYS["return_cool_down_minutes"]: minutes,
        }
        return Verdict(step.bundle, ChurnReason.NO_RETURN, acted=False, why=why)

    def _find_excess_of_round(self, step: Unload, share: float) -> Verdict | None:
        """Check the budget per round. One bundle may always move, else one above the limit never could."""
        most_percent = self._settings.max_load_moved_per_cycle_percentage
        if self._this_round == 0 and most_percent > 0:
            return None
        key = KEYS["max_load_moved_per_cycle_percentage"]
        return self._find_excess(step, ChurnReason.MOVED_ENOUGH_THIS_ROUND, key, share, self._this_round, most_percent)

    def _find_excess_of_hour(self, step: Unload, share: float) -> Verdict | None:
        most_percent = self._settings.max_load_moved_per_hour_percentage
        key = KEYS["max_load_moved_per_hour_percentage"]
        refusal = self._find_excess(step, ChurnReason.MOVED_ENOUGH_THIS_HOUR, key, share, self._this_hour, most_percent)
        if refusal is None:
            return None
        left_s = self._seconds_until(most_percent / 100 - share)
        return refusal if left_s is None else replace(refusal, why={**refusal.why, "seconds_left": round(left_s)})

    def _seconds_until(self, most: float) -> float | None:
        """Return the seconds until the hourly share falls to `most`; None if waiting does not help."""
        moved = self._this_hour
        for move in self._moved:
            moved -= move.share
            if moved <= most + _ROUNDING:
                return move.at_s + _HOUR_S - self._now_s
        return None

    def _find_excess(
        self, step: Unload, reason: Reason, key: str, share: float, moved: float, most_percent: float
    ) -> Verdict | None:
        if moved + share <= most_percent / 100 + _ROUNDING:
            return None
        why: dict[str, Figure] = {"share_percent": 100 * share, "moved_percent": 100 * moved, key: most_percent}
        return Verdict(step.bundle, reason, acted=False, why=why)


def _drop_broken_exchanges(steps: Sequence[Unload], refusals: dict[str, Verdict]) -> None:
    """Refuse the rest of an exchange between two brokers if one of its steps was refused.

    Half of an exchange could add load to the broker that it was to relieve. The refusal names the bundle that was
    refused first.
    """
    if not refusals:
        return
    directed = {(step.source, step.destination) for step in steps if step.destination is not None}
    broken: dict[frozenset[Registration | None], str] = {}
    for step in steps:
        if (step.destination, step.source) in directed and step.bundle in refusals:
            broken.setdefault(_pair(step), step.bundle)
    for step in steps:
        if step.bundle not in refusals and _pair(step) in broken:
            why: dict[str, Figure] = {"other": broken[_pair(step)]}
            refusals[step.bundle] = Verdict(step.bundle, ChurnReason.EXCHANGE_BROKEN, acted=False, why=why)


def _explain_idle_sources(steps: Sequence[Unload], refusals: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return a verdict for each broker whose steps were all refused, with the first refusal."""
    bundles: dict[str, list[str]] = {}
    for step in steps:
        bundles.setdefault(step.source.broker, []).append(step.bundle)
    idle: dict[str, Verdict] = {}
    for source, chosen in bundles.items():
        if refusals.keys() >= set(chosen):
            why: dict[str, Figure] = {
                "bundles_chosen": len(chosen),
                "bundle": chosen[0],
                "refusal": refusals[chosen[0]].sentence(),
            }
            idle[source] = Verdict(source, ChurnReason.CHOSEN_BUNDLES_STAY, acted=False, why=why)
    return idle


def _pair(step: Unload) -> frozenset[Registration | None]:
    return frozenset({step.source, step.destination})


def _judge(memory: MoveMemory, move: PastMove) -> tuple[MoveMemory, list[Verdict]]:
    """Return the memory after a move, which may trip the breaker, and the breaker's verdicts."""
    verdicts = []
    returned = is_back(move)
    returns = memory.returns_of(move.bundle, move.at_s) if returned else 0
    if returned and returns >= MOST_RETURNS:
        memory = replace(memory, frozen_until_s={**memory.frozen_until_s, move.bundle: move.at_s + FREEZE_S})
        verdicts.append(Verdict(move.bundle, ChurnReason.KEEPS_RETURNING, acted=True, why={"returns": returns}))
    if (returned and memory.moved_back(move.at_s) > MOST_BACK) or (
        is_again(move) and memory.moved_again(move.at_s) > MOST_AGAIN
    ):
        memory = replace(memory, stopped_until_s=move.at_s + STOP_S)
        why = _why_stopped(memory, move.at_s)
        verdicts.append(Verdict("cluster", ChurnReason.SHEDDING_STOPPED, acted=True, why=why))
    return memory, verdicts


def _why_stopped(memory: MoveMemory, now_s: float) -> dict[str, Figure]:
    return {
        "back_percent": 100 * memory.moved_back(now_s),
        "most_back_percent": 100 * MOST_BACK,
        "again_percent": 100 * memory.moved_again(now_s),
        "most_again_percent": 100 * MOST_AGAIN,
    }


def _move_of(
    at_s: float,
    bundle: str,
    source: str,
    incarnation: int,
    share: float,
    own: bool,  # noqa: FBT001 - as it was stored
    *before: float | None,
) -> PastMove:
    moved_s, left_s = (NEVER if each is None else float(each) for each in before)
    return PastMove(float(at_s), str(bundle), str(source), int(incarnation), float(share), bool(own), moved_s, left_s)
