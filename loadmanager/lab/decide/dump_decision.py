"""Decisions of one strategy on the lines of a dump, in order; the state is passed from line to line.

The result is the strategy's own: the selected bundles in its order, each with the destination that it fixes, if any. A
leader does more, which is left out here: it skips a shed bundle of an excluded namespace, or one that no other broker
may own, and it has placement choose the missing destinations.

Candidates for a placement are only brokers that may own the bundle: isolation policies, anti-affinity groups and limits
apply. Preferences would hide the strategy's opinion of the other brokers. So those of the modular rules apply only if
set explicitly, also the even distribution of namespaces, which a leader applies by default. Those of the simple rules,
which no setting switches off, do not apply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from loadmanager.core.constraints.filters import (
    CONTROLS,
    SIMPLE,
    PlacementQuestion,
    apply,
    find_pin,
    preferred_brokers,
    rules_of,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import PlacementReason, Reason
from loadmanager.core.domain.settings import PlannerSettings, get_by_name
from loadmanager.core.model.fleet_load import fit_thresholds
from loadmanager.core.model.load import BoolArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.movable_bundles import explain_restraints, find_freeze, restrain
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.placement.placement_strategy import (
    Placement,
    PlacementStrategy,
    RemembersDestinations,
    Rows,
    State,
)
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES
from loadmanager.core.strategies.shedding.shedding_strategy import Pick
from loadmanager.core.strategies.shedding.transfer_shedder import TransferReason
from loadmanager.lab.decide.decision_settings import settings_for
from loadmanager.lab.decide.dump_snapshot import snapshot_of
from loadmanager.lab.decide.dump_validation import check, check_bundle, parse_bundle
from loadmanager.wire.dump_line import DumpLine

_MS_PER_MINUTE = 60_000
_LABELS: dict[Reason, str] = {TransferReason.OVERLOADED: "Overloaded", TransferReason.UNDERLOADED: "Underloaded"}
"""Labels of reasons under which Pulsar counts decisions."""


@dataclass(frozen=True, slots=True, eq=False)
class DecidedLine:
    """Result for one line. `candidates` are the brokers from which a placement was drawn, None for other decisions.

    `decisions` are JSON objects, as `--json` prints them.
    """

    taken_at_ms: int
    decisions: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Verdict]
    state: State
    metrics: Mapping[str, float] = field(default_factory=dict)
    candidates: Sequence[str] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        verdicts = [{"subject": each.subject, "verdict": str(each.verdict), "why": each.why} for each in self.verdicts]
        return {
            "takenAt": self.taken_at_ms,
            "decisions": self.decisions,
            "verdicts": verdicts,
            "state": as_json(self.state),
            "metrics": self.metrics,
            **({} if self.candidates is None else {"candidates": self.candidates}),
        }


class Decider(ABC):
    """Applies one strategy to line after line; `overrides` are settings that take precedence over those of the lines.

    A given `shedding` or `placement` strategy replaces the configured one. Raises `ConfigurationError` for invalid
    overrides, and `UnknownStrategyError`.
    """

    def __init__(
        self, overrides: Mapping[str, str], *, shedding: str | None = None, placement: str | None = None
    ) -> None:
        self._overrides = overrides
        self._settings = partial(settings_for, shedding=shedding, placement=placement)
        self._state: State = {}
        self._settings(overrides, "--set")

    def decide(self, line: DumpLine, where: str) -> DecidedLine:
        """Raises `InvalidRecordError`, `ConfigurationError` and `UnknownStrategyError`, which name `where`."""
        check(line, where)
        configuration = {**line.get("configuration", {}), **self._overrides}
        settings = self._settings(configuration, f"{where}: configuration")
        if "state" in line:
            self._state = dict(line["state"])
        grace_period_ms = settings.load_balancer_shedding_grace_period_minutes * _MS_PER_MINUTE
        with np.errstate(all="ignore"):
            planner, snapshot = settings.planner_settings(), snapshot_of(line, grace_period_ms, where)
            decided = self._ask(snapshot, fit_thresholds(planner, snapshot), line, where)
        self._state = decided.state
        return decided

    @abstractmethod
    def _ask(self, snapshot: Snapshot, settings: PlannerSettings, line: DumpLine, where: str) -> DecidedLine: ...

    def _with_state(self, name: str, state: State) -> State:
        return {**self._state, name: state}


class ShedDecider(Decider):
    """Decides one shedding round per line."""

    def __init__(self, strategy: str, overrides: Mapping[str, str]) -> None:
        self._strategy = strategy
        super().__init__(overrides, shedding=strategy)

    def _ask(self, snapshot: Snapshot, settings: PlannerSettings, line: DumpLine, where: str) -> DecidedLine:
        del where
        name, factory = get_by_name("--shed", self._strategy, SHEDDING_STRATEGIES)
        refusal = find_freeze(snapshot)
        if refusal is not None:
            return DecidedLine(line.get("takenAt", 0), [], [refusal], self._state)
        whole, snapshot = snapshot, restrain(snapshot)
        shed = factory(settings).find_bundles_for_unloading(snapshot, self._state.get(name, {}))
        decisions = [_unload(snapshot, pick, bundle) for pick in shed.bundles for bundle in pick.bundles]
        state = self._with_state(name, shed.state)
        verdicts = [*shed.verdicts, *explain_restraints(whole, shed)]
        return DecidedLine(line.get("takenAt", 0), decisions, verdicts, state, shed.metrics)


class PlaceDecider(Decider):
    """Chooses an owner for `bundle`, once per line; random numbers come from `rng`."""

    def __init__(self, strategy: str, bundle: str, overrides: Mapping[str, str], rng: np.random.Generator) -> None:
        parse_bundle(bundle, "--bundle")
        self._strategy = strategy
        self._bundle = bundle
        self._rng = rng
        super().__init__(overrides, placement=strategy)

    def _ask(self, snapshot: Snapshot, settings: PlannerSettings, line: DumpLine, where: str) -> DecidedLine:
        bundle = self._bundle
        check_bundle(line, bundle, where, "--bundle")
        name, factory = get_by_name("--place", self._strategy, PLACEMENT_STRATEGIES)
        placement, dropped = self._choose(snapshot, settings, factory(settings), name, line)
        ids = snapshot.brokers.ids
        broker = None if placement.broker is None else ids[placement.broker]
        why = {**({"brokers": len(ids)} if broker is None else {"broker": broker}), **placement.why, **dropped}
        reason = str(placement.reason)
        decision = {"action": "assign", "bundle": bundle, "destination": broker, "reason": reason}
        return DecidedLine(
            line.get("takenAt", 0),
            [decision],
            [Verdict(bundle, placement.reason, acted=broker is not None, why=why)],
            self._with_state(name, placement.state),
            candidates=[ids[row] for row in placement.drawn_from.tolist()],
        )

    def _choose(
        self, snapshot: Snapshot, settings: PlannerSettings, strategy: PlacementStrategy, name: str, line: DumpLine
    ) -> tuple[Placement, dict[str, Figure]]:
        """Return the strategy's choice, and the number of brokers excluded before, by reason.

        If the chosen broker is overloaded, and the rules say so, the choice is repeated without preferences.
        """
        rules = rules_of(settings, name)
        question = self._question(snapshot, settings, line)
        rows = self._find_candidates(snapshot, line)
        asked = np.zeros(len(snapshot.brokers), dtype=bool)
        asked[rows] = True
        allowed, dropped = apply((*CONTROLS, *rules.policies, *rules.limits), asked, question)
        pin, not_kept = find_pin(snapshot, self._bundle, allowed)
        dropped |= not_kept
        state = self._state.get(name, {})
        if pin is not None:
            return Placement(pin, np.array([pin]), PlacementReason.PINNED_TO_BROKER, {}, state), dropped
        overloaded = _find_overloaded(snapshot, settings)
        decided = self._find_decided(snapshot, strategy, state)
        if decided is not None and allowed[decided]:
            healthy = rows[(allowed & ~overloaded)[rows]]
            if overloaded[decided] and len(healthy):
                return self._place(snapshot, strategy, healthy, state), dropped
            return Placement(decided, np.array([decided]), PlacementReason.DECIDED_BEFORE, {}, state), dropped
        preferred, passed_over = (allowed, {}) if rules is SIMPLE else preferred_brokers(rules, allowed, question)
        placement = self._place(snapshot, strategy, rows[preferred[rows]], state)
        again = rules.second_choice and placement.broker is not None and np.any(allowed & ~preferred)
        if again and overloaded[placement.broker]:
            return self._place(snapshot, strategy, rows[allowed[rows]], placement.state), dropped
        return placement, dropped | passed_over

    def _find_candidates(self, snapshot: Snapshot, line: DumpLine) -> Rows:
        """Return the rows of the line's candidates in their order; all brokers if it has none."""
        brokers = snapshot.brokers
        listed = line.get("candidates", brokers.ids)
        rows = [row for row in (brokers.find_row(BrokerId(broker)) for broker in listed) if row is not None]
        return np.array(rows, dtype=np.intp)

    def _question(self, snapshot: Snapshot, settings: PlannerSettings, line: DumpLine) -> PlacementQuestion:
        topics = line.get("topics", {}).get(self._bundle, ())
        return PlacementQuestion(
            namespace_of(self._bundle),
            Projection(snapshot),
            settings,
            non_persistent=any(topic["topic"].startswith("non-persistent://") for topic in topics),
        )

    def _find_decided(self, snapshot: Snapshot, strategy: PlacementStrategy, state: State) -> int | None:
        """Return the row of the broker that the strategy has planned for the bundle, None without one."""
        memory = strategy if isinstance(strategy, RemembersDestinations) else None
        broker = None if memory is None else memory.find_destination(self._bundle, state)
        return None if broker is None else snapshot.brokers.find_row(broker)

    def _place(self, snapshot: Snapshot, strategy: PlacementStrategy, candidates: Rows, state: State) -> Placement:
        """Return the strategy's choice; a strategy that remembers destinations is notified of it."""
        row = snapshot.bundles.find_row(self._bundle)
        choice = strategy.place(candidates, row, Projection(snapshot), state, self._rng)
        if choice.broker is None or not isinstance(strategy, RemembersDestinations):
            return choice
        return replace(choice, state=strategy.remember(self._bundle, snapshot.brokers.ids[choice.broker], state))


def _find_overloaded(snapshot: Snapshot, settings: PlannerSettings) -> BoolArray:
    """Return a mask (M,) of the brokers above the overload threshold."""
    usage = usage_per_broker(snapshot, settings.resource_weights)
    return np.asarray(usage > settings.broker_overloaded_threshold_percentage / 100)


def _unload(snapshot: Snapshot, pick: Pick, bundle: int) -> dict[str, Any]:
    ids = snapshot.brokers.ids
    return {
        "action": "unload",
        "bundle": snapshot.bundles.names[bundle],
        "source": ids[pick.broker],
        "destination": None if pick.destination is None else ids[pick.destination],
        "reason": _LABELS.get(pick.reason, str(pick.reason)),
    }
