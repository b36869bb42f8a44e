"""The phases of a decision in their order: filter brokers, place; or shed first, then place what was shed.

Source: Pulsar's ModularLoadManagerImpl (selectBroker, doLoadShedding). A shedding round asks the strategy first and
looks at excluded namespaces and destinations afterwards, as Pulsar does, so a round may do nothing although other
bundles could have moved: the strategy's choice is what an operator configured.

Differs from Pulsar: the broker that sheds a bundle is never its destination, where Pulsar may choose it and then do
nothing; every choice of a round sees the earlier ones. There is no one-shot affinity either, by which Pulsar hands a
destination from an unload to the next lookup: here the destination is part of the transfer itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadmanager.core.filters import (
    Question,
    allowed_brokers,
    find_anti_affinity_refusal,
    find_isolation_refusal,
    preferred_brokers,
    rules_of,
)
from loadmanager.core.load import BoolArray
from loadmanager.core.names import BrokerId, namespace_of
from loadmanager.core.ownership import Registration
from loadmanager.core.placement import placement_strategy
from loadmanager.core.placement.base import Placement, PlacementStrategy, Projection, RemembersDestinations, Rows
from loadmanager.core.placement.round_robin import RoundRobinBrokerSelector
from loadmanager.core.plan import Assign, Figure, Plan, Reason, Unload, Verdict
from loadmanager.core.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.shedding import shedding_strategy
from loadmanager.core.shedding.base import Pick
from loadmanager.core.snapshot import Snapshot, usage_per_broker

__all__ = [
    "PlannerSettings",
    "State",
    "UnknownStrategyError",
    "choose_destination",
    "plan_assignments",
    "plan_shedding",
]

State = dict[str, Any]
"""What strategies remember, by strategy name: a JSON object that goes in and comes out. A new leader starts with {}."""

EXCLUDED_NAMESPACES = "loadBalancerSheddingExcludedNamespaces"
"""Where the state keeps whose turn it is to get a bundle of a namespace that is excluded from shedding."""


def plan_shedding(
    snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
) -> tuple[Plan, State]:
    """One shedding round: which bundles move from which broker to which. Raises `UnknownStrategyError`."""
    refusal = _refuse_round(snapshot, settings)
    if refusal is not None:
        return _plan(snapshot, [], [refusal]), state
    name, strategy = shedding_strategy(settings)
    shed = strategy.find_bundles_for_unloading(snapshot, state.get(name, {}))
    placer = _Placer(snapshot, settings, {**state, name: shed.state}, rng)
    steps: list[Assign | Unload] = []
    verdicts = list(shed.verdicts)
    for pick in shed.bundles:
        for bundle in pick.bundles:
            step, verdict = _transfer(placer, pick, bundle)
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
    """Owners for a batch of bundles that have none; `non_persistent` names those that hold a non-persistent topic.

    Each bundle gets a verdict: one that the snapshot does not know is placed with the default load, and one that has
    an owner, or is on its way to one, is left alone. Raises `UnknownStrategyError`.
    """
    placer = _Placer(snapshot, settings, state, rng)
    steps: list[Assign | Unload] = []
    verdicts = []
    for name in dict.fromkeys(bundle_names):
        row = snapshot.bundles.find_row(name)
        if row is not None and not snapshot.bundles.free[row]:
            verdicts.append(Verdict(name, Reason.NOT_FREE, acted=False, why={"broker": _holder(snapshot, row)}))
            continue
        placement = placer.place(name, row, None, non_persistent=name in non_persistent)
        if placement.broker is not None:
            placer.projection.move(namespace_of(name), row, None, placement.broker)
            steps.append(Assign(name, snapshot.brokers.registrations[placement.broker], placement.reason))
        verdicts.append(_placed(snapshot, name, placement, Reason.NO_BROKER_AVAILABLE))
    return _plan(snapshot, steps, verdicts), placer.state


def choose_destination(
    snapshot: Snapshot,
    bundle: str,
    exclude: BrokerId | None,
    settings: PlannerSettings,
    state: State,
    rng: np.random.Generator,
) -> tuple[Registration | None, Verdict, State]:
    """A broker for one bundle, whatever its ownership is, but not `exclude`. Raises `UnknownStrategyError`."""
    placer = _Placer(snapshot, settings, state, rng)
    excluded = None if exclude is None else snapshot.brokers.find_row(exclude)
    placement = placer.place(bundle, snapshot.bundles.find_row(bundle), excluded)
    verdict = _placed(snapshot, bundle, placement, Reason.NO_OTHER_BROKER if exclude else Reason.NO_BROKER_AVAILABLE)
    chosen = None if placement.broker is None else snapshot.brokers.registrations[placement.broker]
    return chosen, verdict, placer.state


class _Placer:
    """Chooses owners one after the other; the caller tells `projection` which choices it keeps."""

    def __init__(self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator) -> None:
        self.projection = Projection(snapshot)
        self.state = state
        self.snapshot = snapshot
        self.settings = settings
        self._rng = rng
        self._name, self._strategy = placement_strategy(settings)
        self._rules = rules_of(settings, self._name)

    def place(
        self,
        name: str,
        bundle: int | None,
        excluded: int | None,
        destination: int | None = None,
        *,
        non_persistent: bool = False,
    ) -> Placement:
        """Filter, place, and place once more without preferences if the chosen broker is overloaded.

        A `destination` that was decided on before is taken if the limits allow it, whatever the preferences say.
        """
        question = self._question(name, excluded, non_persistent=non_persistent)
        allowed, dropped = allowed_brokers(self._rules, question)
        destination = self._find_destination(name) if destination is None else destination
        if destination is not None and allowed[destination]:
            placement = self._place_as_decided(destination, allowed, bundle)
        else:
            placement, figures = self._choose(allowed, question, bundle)
            placement = replace(placement, why={**placement.why, **figures})
        self._remember(name, placement)
        return replace(placement, why={**placement.why, **dropped})

    def _choose(
        self, allowed: BoolArray, question: Question, bundle: int | None
    ) -> tuple[Placement, Mapping[str, Figure]]:
        """A broker by the strategy, and how many preferences passed over, by reason, or why there is none."""
        preferred, passed_over = preferred_brokers(self._rules, allowed, question)
        placement = self._place_first(np.flatnonzero(preferred), question.namespace, bundle)
        if placement.broker is None:
            return placement, find_isolation_refusal(question) or {}
        if self._rules.second_choice and self._is_overloaded(placement.broker):
            return self._place(np.flatnonzero(allowed), bundle), {}
        return placement, passed_over

    def _place_first(self, candidates: Rows, namespace: str, bundle: int | None) -> Placement:
        """By the strategy, but the bundles of a namespace that is excluded from shedding are dealt in turn."""
        if namespace not in self.settings.shedding_excluded_namespaces:
            return self._place(candidates, bundle)
        return self._ask(EXCLUDED_NAMESPACES, RoundRobinBrokerSelector(), candidates, bundle)

    def _place_as_decided(self, destination: int, allowed: BoolArray, bundle: int | None) -> Placement:
        if isinstance(self._strategy, RemembersDestinations) and self._is_overloaded(destination):
            instead = self._place(np.flatnonzero(allowed), bundle)
            if instead.broker is not None and not self._is_overloaded(instead.broker):
                return instead
        return self.take(destination)

    def take(self, destination: int) -> Placement:
        """The broker that was decided on before, as it is."""
        remembered = self.state.get(self._name, {})
        return Placement(destination, np.array([destination]), Reason.DECIDED_BEFORE, {}, remembered)

    def _find_memory(self, bundle: str) -> RemembersDestinations | None:
        """The strategy, if it remembers where bundles go and this one is for it to place."""
        if namespace_of(bundle) in self.settings.shedding_excluded_namespaces:
            return None
        return self._strategy if isinstance(self._strategy, RemembersDestinations) else None

    def _find_destination(self, bundle: str) -> int | None:
        memory = self._find_memory(bundle)
        broker = None if memory is None else memory.find_destination(bundle, self.state.get(self._name, {}))
        return None if broker is None else self.snapshot.brokers.find_row(broker)

    def _remember(self, bundle: str, placement: Placement) -> None:
        """Tell a strategy that wants to know where the bundle was placed."""
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
        remembered = self.state.get(name, {})
        placement = strategy.place(candidates, bundle, self.snapshot, self.projection, remembered, self._rng)
        if placement.state != remembered:
            self.state = {**self.state, name: placement.state}
        return placement

    def find_refusal(self, name: str, source: int) -> dict[str, Figure] | None:
        """Why the bundle should not leave its broker at all, whoever else may own it; the modular rules alone ask."""
        if not self._rules.policies:
            return None
        return find_anti_affinity_refusal(self._rules, self._question(name, source))

    def _question(self, name: str, excluded: int | None, *, non_persistent: bool = False) -> Question:
        namespace = namespace_of(name)
        return Question(namespace, non_persistent, self.snapshot, self.projection, self.settings, excluded)

    def _is_overloaded(self, broker: int) -> bool:
        usage = usage_per_broker(self.snapshot, self.settings.resource_weights)
        return bool(usage[broker] > self.settings.broker_overloaded_threshold_percentage / 100)


def _refuse_round(snapshot: Snapshot, settings: PlannerSettings) -> Verdict | None:
    if not (settings.load_balancer_enabled and settings.shedding_enabled):
        why: dict[str, Figure] = {
            "loadBalancerEnabled": str(settings.load_balancer_enabled).lower(),
            "loadBalancerSheddingEnabled": str(settings.shedding_enabled).lower(),
        }
        return Verdict("cluster", Reason.SHEDDING_DISABLED, acted=False, why=why)
    if len(snapshot.brokers) <= 1:
        return Verdict("cluster", Reason.ONE_BROKER_ONLY, acted=False, why={"brokers": len(snapshot.brokers)})
    return None


def _transfer(placer: _Placer, pick: Pick, bundle: int) -> tuple[Unload | None, Verdict]:
    """Where one shed bundle goes, if anywhere."""
    snapshot, settings = placer.snapshot, placer.settings
    name = snapshot.bundles.names[bundle]
    namespace = namespace_of(name)
    if namespace in settings.shedding_excluded_namespaces:
        return None, Verdict(name, Reason.NAMESPACE_EXCLUDED, acted=False, why={"namespace": namespace})
    if pick.destination is not None and pick.is_final:
        placement = placer.take(pick.destination)
    else:
        refusal = placer.find_refusal(name, pick.broker)
        if refusal is not None:
            return None, Verdict(name, Reason.ANTI_AFFINITY_KEPT, acted=False, why=refusal)
        placement = placer.place(name, bundle, pick.broker, pick.destination)
    verdict = _placed(snapshot, name, placement, Reason.NO_OTHER_BROKER)
    if placement.broker is None:
        return None, verdict
    placer.projection.move(namespace, bundle, pick.broker, placement.broker)
    registrations = snapshot.brokers.registrations
    return Unload(name, registrations[pick.broker], registrations[placement.broker], pick.reason), verdict


def _placed(snapshot: Snapshot, bundle: str, placement: Placement, nobody: Reason) -> Verdict:
    if placement.broker is None:
        return Verdict(bundle, nobody, acted=False, why={"brokers": len(snapshot.brokers), **placement.why})
    why = {"broker": snapshot.brokers.ids[placement.broker], **placement.why}
    return Verdict(bundle, placement.reason, acted=True, why=why)


def _holder(snapshot: Snapshot, bundle: int) -> str:
    """The broker that has the bundle, or is about to; empty while it is released for nobody in particular."""
    assigned = int(snapshot.bundles.assigned[bundle])
    return snapshot.brokers.ids[assigned] if assigned >= 0 else ""


def _plan(
    snapshot: Snapshot,
    steps: Sequence[Assign | Unload],
    verdicts: Sequence[Verdict],
    metrics: Mapping[str, float] | None = None,
) -> Plan:
    return Plan(snapshot.revision, snapshot.taken_at_s, tuple(steps), tuple(verdicts), metrics or {})
