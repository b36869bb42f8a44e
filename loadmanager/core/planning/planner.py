"""Phases of a decision: filter brokers, then place; or shed first, then place what was shed.

Source: Pulsar's ModularLoadManagerImpl (selectBroker, doLoadShedding). As in Pulsar, a shedding round asks the strategy
first and checks excluded namespaces and destinations afterwards. So a round may move nothing although other bundles
could move.

Differs from Pulsar: the broker that sheds a bundle is never its destination; Pulsar may choose it and then do nothing.
Every choice of a round takes the earlier ones into account. Pulsar passes a destination from an unload to the next
lookup (one-shot affinity); here the destination is part of the transfer.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from loadmanager.core.constraints.filters import (
    FilterCache,
    PlacementQuestion,
    find_anti_affinity_refusal,
    find_ban,
    find_isolation_refusal,
    find_pin,
    preferred_brokers,
    rules_of,
)
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Assign, Figure, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import OwnershipReason, PlacementReason, Reason, SheddingReason
from loadmanager.core.domain.settings import KEYS, PlannerSettings
from loadmanager.core.model.fleet_load import carried_load, fit_thresholds
from loadmanager.core.model.load import BoolArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.planning.movable_bundles import (
    as_if_draining,
    explain_faults,
    explain_restraints,
    find_freeze,
    restrain,
)
from loadmanager.core.strategies.placement import placement_strategy
from loadmanager.core.strategies.placement.placement_strategy import (
    Placement,
    PlacementStrategy,
    RemembersDestinations,
    Rows,
)
from loadmanager.core.strategies.placement.round_robin import RoundRobinBrokerSelector
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.shedding_strategy import Pick

State = dict[str, Any]
"""Memory of the strategies by strategy name, passed in and returned. A new leader starts with {}, or with the result of
`core.planning.decision_kinds.as_json`.
"""

EXCLUDED_NAMESPACES = KEYS["shedding_excluded_namespaces"]
"""Key of the round-robin position for bundles of namespaces excluded from shedding."""


def plan_shedding(
    snapshot: Snapshot,
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
    *,
    offers_source: bool = False,
) -> tuple[Plan, State]:
    """Plan a shedding round. Raises `UnknownStrategyError`.

    With `offers_source` the source may be chosen as destination, and the bundle then stays: Pulsar's rule.
    """
    whole, snapshot = snapshot, restrain(snapshot)
    settings = fit_thresholds(settings, snapshot)
    refusal = find_round_refusal(snapshot, settings)
    if refusal is not None:
        return _plan(snapshot, [], [refusal, *explain_faults(whole)]), state
    name, strategy = shedding_strategy(settings)
    shed = strategy.find_bundles_for_unloading(snapshot, state.get(name, {}))
    placer = _Placer(snapshot, settings, {**state, name: shed.state}, rng)
    steps: list[Assign | Unload] = []
    verdicts = [*shed.verdicts, *explain_restraints(whole, shed)]
    for pick in shed.bundles:
        for bundle in pick.bundles:
            step, verdict = _transfer(placer, pick, bundle, offers_source=offers_source)
            steps += [step] if step else []
            verdicts.append(verdict)
    return _plan(snapshot, steps, verdicts, shed.metrics), placer.state


def plan_assignments(
    snapshot: Snapshot,
    bundle_names: Sequence[str],
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
    non_persistent: Collection[str] = (),
) -> tuple[Plan, State]:
    """Plan owners for unowned bundles; `non_persistent` names those that hold a non-persistent topic.

    Each bundle gets a verdict. An unknown bundle is placed with the default load; one that has an owner or a
    destination is skipped. Raises `UnknownStrategyError`.
    """
    placer = _Placer(snapshot, settings, state, rng)
    steps: list[Assign | Unload] = []
    verdicts = []
    for name in dict.fromkeys(bundle_names):
        row = snapshot.bundles.find_row(name)
        if row is not None and not snapshot.bundles.free[row]:
            verdicts.append(
                Verdict(name, PlacementReason.NOT_FREE, acted=False, why={"broker": _holder(snapshot, row)})
            )
            continue
        placement = placer.place(name, row, None, non_persistent=name in non_persistent)
        if placement.broker is not None:
            placer.projection.move(namespace_of(name), row, None, placement.broker)
            steps.append(Assign(name, snapshot.brokers.registrations[placement.broker], placement.reason))
        verdicts.append(_placement_verdict(snapshot, name, placement, PlacementReason.NO_BROKER_AVAILABLE))
    return _plan(snapshot, steps, verdicts), placer.state


def choose_destination(
    snapshot: Snapshot,
    bundle: str,
    exclude: BrokerId | None,
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
) -> tuple[Registration | None, Verdict, State]:
    """Choose a broker for one bundle, whatever its ownership, except `exclude`. Raises `UnknownStrategyError`."""
    placer = _Placer(snapshot, settings, state, rng)
    placement, verdict = placer.place_anywhere(bundle, exclude)
    chosen = None if placement.broker is None else snapshot.brokers.registrations[placement.broker]
    return chosen, verdict, placer.state


def plan_drain(
    snapshot: Snapshot,
    brokers: Collection[BrokerId],
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
    most: int | None = None,
    leave: Container[str] = (),
) -> tuple[Plan, State]:
    """Plan to move bundles off these brokers, heaviest first: at most `most` bundles, without those in `leave`.

    A bundle that no other broker may own stays, with a verdict. Raises `UnknownStrategyError`.
    """
    placer = _Placer(as_if_draining(snapshot, brokers), settings, state, rng)
    rows = [row for row in map(snapshot.brokers.find_row, sorted(brokers)) if row is not None]
    bundles = snapshot.bundles
    owned = np.flatnonzero(np.isin(bundles.assigned, rows))
    steps: list[Assign | Unload] = []
    verdicts = []
    for bundle in owned[np.argsort(-carried_load(snapshot)[owned], kind="stable")].tolist():
        name, source = bundles.names[bundle], int(bundles.assigned[bundle])
        if most is not None and len(steps) >= most:
            break
        if name in leave:
            continue
        placement = placer.place(name, bundle, source)
        verdicts.append(_placement_verdict(snapshot, name, placement, PlacementReason.NO_OTHER_BROKER))
        if placement.broker is not None:
            placer.projection.move(namespace_of(name), bundle, source, placement.broker)
            steps.append(_unload(snapshot, name, source, placement.broker, OwnershipReason.DRAIN))
    return _plan(snapshot, steps, verdicts), placer.state


def plan_pins(snapshot: Snapshot, settings: PlannerSettings, leave: Container[str] = ()) -> Plan:
    """Plan the return of bundles to their home brokers: pinned bundles, and those of drains that have ended.

    A verdict explains each bundle that must stay.
    """
    steps: list[Assign | Unload] = []
    verdicts = []
    for name, broker in sorted(snapshot.controls.homes.items()):
        bundle, destination = snapshot.bundles.find_row(name), snapshot.brokers.find_row(broker)
        if bundle is None or name in leave:
            continue
        source = int(snapshot.bundles.assigned[bundle])
        if source < 0 or source == destination:
            continue
        refusal = _find_sickness(snapshot, name, broker) or find_move_refusal(snapshot, name, broker, settings)
        if refusal is not None:
            verdicts.append(refusal)
            continue
        assert destination is not None, "a broker without a row is refused"
        is_pinned = name in snapshot.controls.pinned
        reason = PlacementReason.PINNED_TO_BROKER if is_pinned else OwnershipReason.RETURNED_AFTER_DRAIN
        steps.append(_unload(snapshot, name, source, destination, reason))
    return _plan(snapshot, steps, verdicts)


def _find_sickness(snapshot: Snapshot, bundle: str, broker: BrokerId) -> Verdict | None:
    """Return the verdict on a pinned bundle whose broker is sick, None if it is healthy."""
    sick = snapshot.faults.sick.get(broker)
    return None if sick is None else replace(sick, subject=bundle, why={"broker": broker, **sick.why})


def find_move_refusal(
    snapshot: Snapshot, bundle: str, destination: BrokerId, settings: PlannerSettings
) -> Verdict | None:
    """Return the reason why even an operator may not move the bundle to the broker, None if it is allowed."""
    row = snapshot.brokers.find_row(destination)
    if row is None:
        rule = "it is not registered, or has not reported"
    else:
        ban = find_ban(row, PlacementQuestion(namespace_of(bundle), Projection(snapshot), settings))
        if ban is None:
            return None
        rule = ban.value.replace("_", " ")
    return Verdict(
        bundle, SheddingReason.DESTINATION_NOT_ALLOWED, acted=False, why={"broker": destination, "rule": rule}
    )


def try_transfer(
    snapshot: Snapshot, bundle: int, settings: PlannerSettings, state: State, rng: np.random.Generator
) -> tuple[Unload | None, Verdict]:
    """Return the decision of a round if a strategy chose the bundle (a row); `rng` is not advanced."""
    pick = Pick(int(snapshot.bundles.broker[bundle]), (bundle,), OwnershipReason.LOOKUP)
    return _transfer(_Placer(snapshot, settings, state, deepcopy(rng)), pick, bundle)


class PlacementTrial:
    """Trial placement of one bundle for explanations, without side effects on memory or `rng`.

    `candidates` are the broker rows to choose from.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        bundle: str,
        exclude: BrokerId | None,
        settings: PlannerSettings,
        state: State,
        rng: np.random.Generator,
    ) -> None:
        """Prepare as `choose_destination` does. Raises `UnknownStrategyError`."""
        self._placer = _Placer(snapshot, settings, state, deepcopy(rng))
        self._state = state
        self._bundle = snapshot.bundles.find_row(bundle)
        self.rules = self._placer.rules
        self.question = self._placer.ask(bundle, None if exclude is None else snapshot.brokers.find_row(exclude))
        self.placement, self.verdict = self._placer.place_anywhere(bundle, exclude)
        self.candidates = self._placer.candidates

    def choices(self) -> Iterator[Placement]:
        """Yield the choice and its successors in order, each without the alternatives of earlier ones."""
        placement, left = self.placement, self.candidates
        while len(left):
            yield placement
            if placement.reason is PlacementReason.ROUND_ROBIN:
                left = left[:-1]
                placement = self._placer.choose_again(self.candidates, self._bundle)
                continue
            left = np.setdiff1d(left, placement.drawn_from)
            self._placer.state = self._state
            placement = self._placer.choose_again(left, self._bundle)


class _Placer:
    """Chooses owners one after the other; the caller adds accepted choices to `projection`."""

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator) -> None:
        self.projection = Projection(snapshot)
        self.state = state
        self.snapshot = snapshot
        self.settings = settings = fit_thresholds(settings, snapshot)
        self.candidates: Rows = np.empty(0, dtype=np.intp)
        """Candidates of the last choice."""
        self._rng = rng
        self._name, self._strategy = placement_strategy(settings)
        self._asked: tuple[str, PlacementStrategy] = (self._name, self._strategy)
        self._memory = self._strategy if isinstance(self._strategy, RemembersDestinations) else None
        self.rules = rules_of(settings, self._name)
        self._answers = FilterCache(self.rules, self.projection, settings)
        self._overloaded: list[bool] | None = None

    def place(
        self,
        name: str,
        bundle: int | None,
        excluded: int | None,
        destination: int | None = None,
        *,
        non_persistent: bool = False,
    ) -> Placement:
        """Filter and place; place again without preferences if the chosen broker is overloaded.

        A `destination` decided earlier is used if hard limits allow it; a pin takes precedence.
        """
        question = self.ask(name, excluded, non_persistent=non_persistent)
        allowed, dropped = self._answers.allowed(question)
        pin, not_kept = find_pin(self.snapshot, name, allowed)
        destination = self._find_destination(name) if destination is None else destination
        if pin is not None:
            placement = self.take(pin, PlacementReason.PINNED_TO_BROKER)
        elif destination is not None and allowed[destination]:
            placement = self._place_as_decided(destination, allowed, bundle)
        else:
            placement, figures = self._choose(allowed, question, bundle)
            dropped = {**figures, **dropped}
        self._remember(name, placement)
        if dropped or not_kept:
            why = {**placement.why, **dropped, **not_kept}
            return Placement(placement.broker, placement.drawn_from, placement.reason, why, placement.state)
        return placement

    def place_anywhere(self, name: str, exclude: BrokerId | None) -> tuple[Placement, Verdict]:
        """Place one bundle, whatever its ownership, except on `exclude`."""
        excluded = None if exclude is None else self.snapshot.brokers.find_row(exclude)
        placement = self.place(name, self.snapshot.bundles.find_row(name), excluded)
        nobody = PlacementReason.NO_OTHER_BROKER if exclude else PlacementReason.NO_BROKER_AVAILABLE
        return placement, _placement_verdict(self.snapshot, name, placement, nobody)

    def _choose(
        self, allowed: BoolArray, question: PlacementQuestion, bundle: int | None
    ) -> tuple[Placement, Mapping[str, Figure]]:
        """Choose a broker by the strategy, with the number skipped per preference, or the reasons why there is none."""
        preferred, passed_over = preferred_brokers(self.rules, allowed, question)
        placement = self._place_first(np.flatnonzero(preferred), question.namespace, bundle)
        if placement.broker is None:
            return placement, find_isolation_refusal(question) or {}
        if self.rules.second_choice and self._is_overloaded(placement.broker):
            return self._place(np.flatnonzero(allowed), bundle), {}
        return placement, passed_over

    def _place_first(self, candidates: Rows, namespace: str, bundle: int | None) -> Placement:
        """Place by the strategy; bundles of a namespace excluded from shedding are placed round-robin."""
        if namespace not in self.settings.shedding_excluded_namespaces:
            return self._place(candidates, bundle)
        return self._ask(EXCLUDED_NAMESPACES, RoundRobinBrokerSelector(), candidates, bundle)

    def _place_as_decided(self, destination: int, allowed: BoolArray, bundle: int | None) -> Placement:
        if self._memory is not None and self._is_overloaded(destination):
            instead = self._place(np.flatnonzero(allowed), bundle)
            if instead.broker is not None and not self._is_overloaded(instead.broker):
                return instead
        return self.take(destination)

    def take(self, destination: int, reason: Reason = PlacementReason.DECIDED_BEFORE) -> Placement:
        remembered = self.state.get(self._name, {})
        self.candidates = np.array([destination])
        return Placement(destination, self.candidates, reason, {}, remembered)

    def _find_memory(self, bundle: str) -> RemembersDestinations | None:
        """Return the strategy if it remembers destinations and places this bundle itself."""
        if self._memory is None or namespace_of(bundle) in self.settings.shedding_excluded_namespaces:
            return None
        return self._memory

    def _find_destination(self, bundle: str) -> int | None:
        memory = self._find_memory(bundle)
        broker = None if memory is None else memory.find_destination(bundle, self.state.get(self._name, {}))
        return None if broker is None else self.snapshot.brokers.find_row(broker)

    def _remember(self, bundle: str, placement: Placement) -> None:
        memory = self._find_memory(bundle)
        if memory is None or placement.broker is None:
            return
        remembered = self.state.get(self._name, {})
        broker = self.snapshot.brokers.ids[placement.broker]
        if memory.find_destination(bundle, remembered) != broker:
            self.state = {**self.state, self._name: memory.remember(bundle, broker, remembered)}

    def _place(self, candidates: Rows, bundle: int | None) -> Placement:
        return self._ask(self._name, self._strategy, candidates, bundle)

    def _ask(self, name: str, strategy: PlacementStrategy, candidates: Rows, bundle: int | None) -> Placement:
        self.candidates, self._asked = candidates, (name, strategy)
        remembered = self.state.get(name, {})
        placement = strategy.place(candidates, bundle, self.projection, remembered, self._rng)
        if placement.state is not remembered and placement.state != remembered:
            self.state = {**self.state, name: placement.state}
        return placement

    def choose_again(self, candidates: Rows, bundle: int | None) -> Placement:
        return self._ask(*self._asked, candidates, bundle)

    def find_refusal(self, name: str, source: int) -> dict[str, Figure] | None:
        """Return the figures of an anti-affinity refusal to unload the bundle; only under the modular rules."""
        if not self.rules.policies or self.snapshot.policies.find_group(namespace_of(name)) is None:
            return None
        return find_anti_affinity_refusal(self.rules, self.ask(name, source))

    def ask(self, name: str, excluded: int | None, *, non_persistent: bool = False) -> PlacementQuestion:
        return self._answers.question(
            namespace_of(name), excluded, non_persistent=non_persistent, is_homeless=excluded is None
        )

    def _is_overloaded(self, broker: int) -> bool:
        if self._overloaded is None:
            usage = usage_per_broker(self.snapshot, self.settings.resource_weights)
            self._overloaded = (usage > self.settings.broker_overloaded_threshold_percentage / 100).tolist()
        return self._overloaded[broker]


def find_round_refusal(snapshot: Snapshot, settings: PlannerSettings) -> Verdict | None:
    """Return the reason why no shedding round takes place, None if one does."""
    if not (settings.load_balancer_enabled and settings.shedding_enabled):
        why: dict[str, Figure] = {
            KEYS["load_balancer_enabled"]: str(settings.load_balancer_enabled).lower(),
            KEYS["shedding_enabled"]: str(settings.shedding_enabled).lower(),
        }
        return Verdict("cluster", SheddingReason.SHEDDING_DISABLED, acted=False, why=why)
    frozen = find_freeze(snapshot)
    if frozen is not None:
        return frozen
    if len(snapshot.brokers) <= 1:
        return Verdict("cluster", SheddingReason.ONE_BROKER_ONLY, acted=False, why={"brokers": len(snapshot.brokers)})
    return None


def _transfer(
    placer: _Placer, pick: Pick, bundle: int, *, offers_source: bool = False
) -> tuple[Unload | None, Verdict]:
    """Place one shed bundle: return the step, if any, and the verdict."""
    snapshot, settings = placer.snapshot, placer.settings
    name = snapshot.bundles.names[bundle]
    namespace = namespace_of(name)
    if namespace in settings.shedding_excluded_namespaces:
        return None, Verdict(name, SheddingReason.NAMESPACE_EXCLUDED, acted=False, why={"namespace": namespace})
    if pick.destination is not None and pick.is_final:
        placement = placer.take(pick.destination)
    else:
        refusal = placer.find_refusal(name, pick.broker)
        if refusal is not None:
            return None, Verdict(name, SheddingReason.ANTI_AFFINITY_KEPT, acted=False, why=refusal)
        placement = placer.place(name, bundle, None if offers_source else pick.broker, pick.destination)
    if placement.broker == pick.broker:
        return None, _stays(snapshot, name, placement, len(placer.candidates))
    verdict = _placement_verdict(snapshot, name, placement, PlacementReason.NO_OTHER_BROKER)
    if placement.broker is None:
        return None, verdict
    placer.projection.move(namespace, bundle, pick.broker, placement.broker)
    return _unload(snapshot, name, pick.broker, placement.broker, pick.reason), verdict


def _unload(snapshot: Snapshot, bundle: str, source: int, destination: int, reason: Reason) -> Unload:
    registrations = snapshot.brokers.registrations
    return Unload(bundle, registrations[source], registrations[destination], reason)


def _stays(snapshot: Snapshot, bundle: str, placement: Placement, candidates: int) -> Verdict:
    """Return the verdict on a bundle whose owner was chosen again."""
    assert placement.broker is not None, "its owner was chosen"
    why = {
        **placement.why,
        "broker": snapshot.brokers.ids[placement.broker],
        "brokers": len(snapshot.brokers),
        "candidates": candidates,
        "namespace": namespace_of(bundle),
    }
    return Verdict(bundle, PlacementReason.OWNER_CHOSEN, acted=False, why=why)


def _placement_verdict(snapshot: Snapshot, bundle: str, placement: Placement, nobody: Reason) -> Verdict:
    if placement.broker is None:
        return Verdict(bundle, nobody, acted=False, why={"brokers": len(snapshot.brokers), **placement.why})
    why = {"broker": snapshot.brokers.ids[placement.broker], **placement.why}
    return Verdict(bundle, placement.reason, acted=True, why=why)


def _holder(snapshot: Snapshot, bundle: int) -> str:
    """Return the broker to which the bundle is assigned; empty while it is released without destination."""
    assigned = int(snapshot.bundles.assigned[bundle])
    return snapshot.brokers.ids[assigned] if assigned >= 0 else ""


def _plan(
    snapshot: Snapshot,
    steps: Sequence[Assign | Unload],
    verdicts: Sequence[Verdict],
    metrics: Mapping[str, float] | None = None,
) -> Plan:
    return Plan(snapshot.revision, snapshot.taken_at_s, tuple(steps), tuple(verdicts), metrics or {})
