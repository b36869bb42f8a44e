"""Explanations: why a bundle is on its broker, why not on another, and the next decisions about a broker.

An explanation runs the real decision and discards the result. It uses copies of the memory and of the random generator,
so it has no side effects and shows the decision that would be taken now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np

from loadmanager.core.constraints.filters import PlacementQuestion, rules_of
from loadmanager.core.constraints.obstacles import FilterObstacle, find_general_obstacles, find_obstacles
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.domain.names import BrokerId, namespace_of
from loadmanager.core.domain.plan import Figure, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import ExplanationReason, FilterReason, PlacementReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.fleet_load import carried_load, fit_thresholds, share_of
from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, FloatArray
from loadmanager.core.model.snapshot import Snapshot, usage_per_broker
from loadmanager.core.planning.certificate.plan_certificate import certify
from loadmanager.core.planning.churn import find_excess
from loadmanager.core.planning.movable_bundles import explain_drain, explain_pin, explain_restraint, restrain
from loadmanager.core.planning.planner import PlacementTrial, State, find_round_refusal, try_transfer
from loadmanager.core.planning.shedding_round import shed
from loadmanager.core.strategies.placement import placement_strategy
from loadmanager.core.strategies.placement.placement_strategy import Placement
from loadmanager.core.strategies.shedding import shedding_strategy
from loadmanager.core.strategies.shedding.shedding_strategy import MIB, find_hold, throughput_per_broker


@dataclass(frozen=True, slots=True, eq=False)
class DecisionInput:
    """Input of a decision now, for explanations without side effects."""

    snapshot: Snapshot
    settings: PlannerSettings
    state: State
    rng: np.random.Generator

    def round(self) -> Plan:
        """Plan a shedding round now, within the limits on churn."""
        return shed(self.snapshot, self.settings, self.state, self.state, deepcopy(self.rng)).plan

    def trial(self, bundle: str, exclude: BrokerId | None) -> PlacementTrial:
        return PlacementTrial(self.snapshot, bundle, exclude, self.settings, self.state, self.rng)

    def without(self, broker: BrokerId) -> DecisionInput:
        """Return the same, with that broker excluded."""
        controls = replace(self.snapshot.controls, excluded=self.snapshot.controls.excluded | {broker})
        return replace(self, snapshot=replace(self.snapshot, controls=controls, _derived={}))


@dataclass(frozen=True, slots=True)
class ComparedFigures:
    """Figures of a broker that strategies compare.

    `msg_rate_per_s` is long-term, of its bundles and incoming ones; usage and `mib_per_s` are as reported.
    """

    broker_id: BrokerId
    usage_percent: float
    msg_rate_per_s: float
    mib_per_s: float
    topics: int
    bundles: int
    bundles_of_namespace: int


@dataclass(frozen=True, slots=True, eq=False)
class PlacementExplained:
    """Placement of a bundle if it left its broker now.

    `drawn_from`: the brokers of which one was drawn at random. `runner_up`: the choice without the chosen broker.
    `standings`: figures of the current broker, the chosen one and the runner-up. `dropped`: number of brokers dropped
    per filter.
    """

    verdict: Verdict
    chosen: BrokerId | None
    drawn_from: tuple[BrokerId, ...]
    runner_up: Verdict | None
    standings: tuple[ComparedFigures, ...]
    dropped: Mapping[str, Figure]


@dataclass(frozen=True, slots=True, eq=False)
class SheddingExplained:
    """Decision of a shedding round on a bundle now: that it would move, to a `destination` if that is fixed, or the
    verdict `stays`.

    `stays_by_rule`: a rule on this bundle alone forbids moves. Otherwise the decision concerns its broker, and
    `broker_verdicts` are those on that broker and the cluster.
    """

    would_move: bool
    destination: BrokerId | None
    stays: Verdict | None
    stays_by_rule: bool
    broker_verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BundleExplained:
    """Load of a bundle, `short` and `long` (4,), its shares of bytes/s as fractions, and decisions about it."""

    short: FloatArray
    long: FloatArray
    topics: int
    share_of_broker: float
    share_of_cluster: float
    shedding: SheddingExplained
    placement: PlacementExplained


@dataclass(frozen=True, slots=True, eq=False)
class BrokerExplained:
    """`usage_percent` (5,) by resource, NaN without a limit; `usage` the weighted maximum; `thresholds`: settings by
    key.

    `steps`: the steps of a round now that concern the broker, with their `verdicts`; `margin`: its distance from the
    shedding threshold. `obstacles`: filters that drop it for all bundles. `certificate`: the gap of that round to the
    best possible plan. An `is_overloaded` broker receives bundles only if others are no better.
    """

    usage_percent: FloatArray
    usage: float
    standing: ComparedFigures
    is_settled: bool
    strategy: str
    thresholds: Mapping[str, Figure]
    steps: tuple[Unload, ...]
    verdicts: tuple[Verdict, ...]
    certificate: Verdict
    margin: Verdict | None
    obstacles: tuple[Verdict, ...]
    is_overloaded: bool
    waits_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class WhyNot:
    """`verdict` is the answer in one sentence. `obstacles` are filters between bundle and broker, with preferences
    marked. `placement` is the current decision, `standings` are figures of the broker and of the chosen one.
    """

    verdict: Verdict
    obstacles: tuple[tuple[Verdict, bool], ...]
    placement: Verdict
    standings: tuple[ComparedFigures, ...]
    shedding: SheddingExplained


def explain_bundle(situation: DecisionInput, bundle: str) -> BundleExplained:
    """Explain the placement of a bundle. Raises `LookupError` for an unknown bundle, `UnknownStrategyError`."""
    snapshot = situation.snapshot
    row = _row_of(snapshot, bundle)
    bundles = snapshot.bundles
    return BundleExplained(
        short=bundles.short[row],
        long=bundles.long[row],
        topics=int(bundles.topics[row]),
        share_of_broker=_share_of_broker(snapshot, row),
        share_of_cluster=share_of(snapshot, bundle),
        shedding=_explain_shedding(situation, row),
        placement=_explain_placement(situation, row),
    )


def explain_broker(situation: DecisionInput, broker: BrokerId) -> BrokerExplained:
    """Explain decisions about a broker. Raises `LookupError` if it has not reported, `UnknownStrategyError`."""
    snapshot, settings = situation.snapshot, situation.settings
    row = snapshot.brokers.find_row(broker)
    if row is None:
        raise LookupError(f"broker {broker} has not reported")
    plan = situation.round()
    steps = _steps_from(plan, broker)
    verdicts = _verdicts_about(plan, broker)
    usage = float(usage_per_broker(snapshot, settings.resource_weights)[row])
    rules = rules_of(settings, placement_strategy(settings)[0])
    obstacles = find_general_obstacles(rules, PlacementQuestion("", Projection(snapshot), settings), row)
    return BrokerExplained(
        usage_percent=np.where(snapshot.brokers.usage[row, :, 1] > 0, snapshot.brokers.usage_percent[row], np.nan),
        usage=usage,
        standing=_standing(snapshot, row, "", settings),
        is_settled=bool(snapshot.brokers.settled[row]),
        strategy=shedding_strategy(settings)[0],
        thresholds={key: figure for each in verdicts for key, figure in each.why.items() if not key.islower()},
        steps=steps,
        verdicts=verdicts,
        certificate=certify(restrain(snapshot), settings, plan.steps).verdict,
        margin=None if steps else _find_margin(situation, broker),
        obstacles=tuple(_verdict_of(each, broker, broker) for each in obstacles),
        is_overloaded=usage > settings.broker_overloaded_threshold_percentage / 100,
        waits_s=snapshot.controls.holds(snapshot.taken_at_s).get(broker),
    )


def why_not(situation: DecisionInput, bundle: str, broker: BrokerId) -> WhyNot:
    """Explain why the bundle is not on the broker. Raises `LookupError` for an unknown one, `UnknownStrategyError`."""
    snapshot = situation.snapshot
    row = _row_of(snapshot, bundle)
    asked = snapshot.brokers.find_row(broker)
    trial = situation.trial(bundle, _holder(snapshot, row))
    obstacles = [] if asked is None else find_obstacles(trial.rules, trial.question, asked)
    if trial.placement.reason in _DECIDED or np.any(trial.candidates == asked):
        obstacles = [each for each in obstacles if not each.is_preference]  # preferences were ignored
    return WhyNot(
        verdict=_why_not(situation, row, broker, trial, obstacles),
        obstacles=tuple((_verdict_of(each, bundle, broker), each.is_preference) for each in obstacles),
        placement=trial.verdict,
        standings=_standings(situation, (asked, trial.placement.broker), bundle),
        shedding=_explain_shedding(situation, row),
    )


_DECIDED = (PlacementReason.PINNED_TO_BROKER, PlacementReason.DECIDED_BEFORE)


def _row_of(snapshot: Snapshot, bundle: str) -> int:
    row = snapshot.bundles.find_row(bundle)
    if row is None:
        raise LookupError(f"bundle {bundle} is not known")
    return row


def _broker_at(snapshot: Snapshot, row: int) -> BrokerId | None:
    return snapshot.brokers.ids[row] if row >= 0 else None


def _holder(snapshot: Snapshot, bundle: int) -> BrokerId | None:
    """Return the broker to which the bundle is assigned."""
    return _broker_at(snapshot, int(snapshot.bundles.assigned[bundle]))


def _share_of_broker(snapshot: Snapshot, bundle: int) -> float:
    """Return the bundle's share of the load of the broker to which it is assigned."""
    load, assigned = carried_load(snapshot), snapshot.bundles.assigned
    if assigned[bundle] < 0:
        return 0.0
    whole = float(load[assigned == assigned[bundle]].sum())
    return float(load[bundle]) / whole if whole > 0 else 0.0


def _explain_shedding(situation: DecisionInput, bundle: int) -> SheddingExplained:
    snapshot = situation.snapshot
    name = snapshot.bundles.names[bundle]
    plan = situation.round()
    step = next((each for each in plan.unloads if each.bundle == name), None)
    broker = _broker_at(snapshot, int(snapshot.bundles.broker[bundle]))
    because = () if broker is None else _verdicts_about(plan, broker)
    if step is not None:
        destination = step.destination.broker if step.destination else None
        return SheddingExplained(
            would_move=True, destination=destination, stays=None, stays_by_rule=False, broker_verdicts=because
        )
    rule = _find_rule(situation, bundle)
    stays = _passed_over(plan, name, broker) if rule is None and broker is not None else rule
    return SheddingExplained(
        would_move=False, destination=None, stays=stays, stays_by_rule=rule is not None, broker_verdicts=because
    )


def _passed_over(plan: Plan, bundle: str, broker: BrokerId) -> Verdict:
    """Return the verdict on a movable bundle that a round does not choose."""
    refusal = next((verdict for verdict in plan.verdicts if verdict.subject == bundle), None)
    if refusal is not None:
        return refusal
    others = len(_steps_from(plan, broker))
    why: dict[str, Figure] = {"broker": broker, "bundles_taken": others} if others else {"broker": broker}
    return Verdict(bundle, ExplanationReason.STAYS_ON_BROKER, acted=False, why=why)


def _find_rule(situation: DecisionInput, bundle: int) -> Verdict | None:
    """Find the first rule that forbids rounds to move the bundle, whatever the strategy."""
    snapshot, settings = situation.snapshot, situation.settings
    bundles, controls = snapshot.bundles, snapshot.controls
    restrained = restrain(snapshot)
    rule = find_round_refusal(restrained, settings) or find_hold(snapshot, bundle)
    if rule is not None:
        return rule
    broker = snapshot.brokers.ids[bundles.broker[bundle]]
    if broker in controls.draining:
        return explain_drain(snapshot, broker)
    if broker in snapshot.faults.rejected:
        return snapshot.faults.rejected[broker]
    name = bundles.names[bundle]
    if not controls.may_be_shed(name):
        return explain_restraint(name, snapshot)
    step, verdict = try_transfer(restrained, bundle, settings, situation.state, situation.rng)
    if step is None:
        return verdict
    return find_excess(step, snapshot, settings, situation.state)


def _explain_placement(situation: DecisionInput, bundle: int) -> PlacementExplained:
    snapshot = situation.snapshot
    name = snapshot.bundles.names[bundle]
    assigned = int(snapshot.bundles.assigned[bundle])
    leaves = _broker_at(snapshot, assigned)
    trial = situation.trial(name, leaves)
    chosen = trial.placement.broker
    ids = snapshot.brokers.ids
    following = None if chosen is None else situation.without(ids[chosen]).trial(name, leaves)
    next_best = None if following is None else following.placement.broker
    compared = [assigned if assigned >= 0 else None, chosen, next_best]
    return PlacementExplained(
        verdict=trial.verdict,
        chosen=None if chosen is None else ids[chosen],
        drawn_from=tuple(ids[row] for row in trial.placement.drawn_from.tolist()),
        runner_up=None if following is None or next_best is None else _with_one_excluded_less(following.verdict),
        standings=_standings(situation, compared, name),
        dropped={key: figure for key, figure in trial.placement.why.items() if key in _FILTERS},
    )


def _with_one_excluded_less(verdict: Verdict) -> Verdict:
    """Remove the exclusion that only this explanation made from the verdict."""
    excluded = int(verdict.why[FilterReason.BROKER_EXCLUDED.value]) - 1
    others = {name: figure for name, figure in verdict.why.items() if name != FilterReason.BROKER_EXCLUDED.value}
    return replace(verdict, why={**others, **({FilterReason.BROKER_EXCLUDED.value: excluded} if excluded else {})})


_FILTERS = frozenset(reason.value for reason in FilterReason)


def _why_not(
    situation: DecisionInput, bundle: int, broker: BrokerId, trial: PlacementTrial, obstacles: Sequence[FilterObstacle]
) -> Verdict:
    """Choose the single verdict that answers the question."""
    snapshot = situation.snapshot
    name, asked = snapshot.bundles.names[bundle], snapshot.brokers.find_row(broker)
    if asked is None:
        return Verdict(name, ExplanationReason.NOT_REGISTERED, acted=False, why={"broker": broker})
    if asked == snapshot.bundles.assigned[bundle]:
        return Verdict(name, ExplanationReason.OWNS_IT_ALREADY, acted=True, why={"broker": broker})
    if obstacles:
        return _verdict_of(obstacles[0], name, broker)
    holder = _holder(snapshot, bundle)
    if holder is not None and holder == snapshot.controls.pinned.get(name):
        return explain_pin(name, holder)
    return _compare(name, asked, broker, trial, holder)


def _compare(bundle: str, asked: int, broker: BrokerId, trial: PlacementTrial, holder: BrokerId | None) -> Verdict:
    """Return the rank of an eligible broker in the order of the strategy, as a verdict."""
    if not np.any(trial.candidates == asked):
        return trial.verdict  # pinned, or the destination was planned before
    why: dict[str, Figure] = {"broker": broker, "candidates": len(trial.candidates)}
    if trial.placement.broker == asked:
        leaves: dict[str, Figure] = {} if holder is None else {"holder": holder}
        return Verdict(bundle, ExplanationReason.WOULD_BE_CHOSEN, acted=True, why=why | leaves)
    ahead, placement = _find_position(trial, asked)
    why |= {"chosen": trial.verdict.why["broker"], "ahead": ahead}
    if ahead:
        return Verdict(bundle, ExplanationReason.COMES_AFTER, acted=False, why=why)
    return Verdict(
        bundle, ExplanationReason.AS_GOOD_AS_CHOSEN, acted=False, why={**why, "equals": len(placement.drawn_from)}
    )


def _find_position(trial: PlacementTrial, asked: int) -> tuple[int, Placement]:
    """Return the number of candidates before this one, and the choice that includes it."""
    ahead, choices = 0, trial.choices()
    while not np.any((placement := next(choices)).drawn_from == asked):
        ahead += len(placement.drawn_from)
    return ahead, placement


def _find_margin(situation: DecisionInput, broker: BrokerId) -> Verdict | None:
    snapshot = restrain(situation.snapshot)
    row = snapshot.brokers.find_row(broker)
    if row is None:
        return None
    name, strategy = shedding_strategy(fit_thresholds(situation.settings, snapshot))
    figures = strategy.find_margin(snapshot, situation.state.get(name, {}), row)
    return Verdict(broker, ExplanationReason.SHEDS_FROM, acted=False, why=figures) if figures else None


def _standings(situation: DecisionInput, brokers: Sequence[int | None], bundle: str) -> tuple[ComparedFigures, ...]:
    snapshot, namespace = situation.snapshot, namespace_of(bundle)
    rows = [row for row in dict.fromkeys(brokers) if row is not None]
    return tuple(_standing(snapshot, row, namespace, situation.settings) for row in rows)


def _standing(snapshot: Snapshot, row: int, namespace: str, settings: PlannerSettings) -> ComparedFigures:
    brokers, known = snapshot.brokers, snapshot.find_namespace(namespace)
    given, long_term = brokers.preallocated[row], brokers.long_term((MSG_RATE_IN, MSG_RATE_OUT))[row]
    return ComparedFigures(
        broker_id=brokers.ids[row],
        usage_percent=float(usage_per_broker(snapshot, settings.resource_weights)[row]) * 100,
        msg_rate_per_s=float(given[MSG_RATE_IN] + given[MSG_RATE_OUT] + long_term.sum()),
        mib_per_s=float(throughput_per_broker(snapshot)[row]) / MIB,
        topics=int(brokers.topics[row] + brokers.preallocated_topics[row]),
        bundles=int(np.count_nonzero(snapshot.bundles.assigned == row)),
        bundles_of_namespace=0 if known is None else int(snapshot.bundles_per_broker(known)[row]),
    )


def _verdict_of(obstacle: FilterObstacle, subject: str, broker: BrokerId) -> Verdict:
    return Verdict(subject, obstacle.reason, acted=False, why={"broker": broker, **obstacle.why})


def _steps_from(plan: Plan, broker: BrokerId) -> tuple[Unload, ...]:
    return tuple(step for step in plan.unloads if step.source.broker == broker)


def _verdicts_about(plan: Plan, broker: BrokerId) -> tuple[Verdict, ...]:
    return tuple(verdict for verdict in plan.verdicts if verdict.subject in (broker, "cluster"))
