"""Explanations have no side effects and agree with the decisions."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.deep import at_most
from support.random_clusters import Build, SomeCluster, clusters

from loadmanager.core.constraints.filters import PlacementQuestion, allowed_brokers, rules_of
from loadmanager.core.constraints.obstacles import find_obstacles
from loadmanager.core.constraints.projection import Projection
from loadmanager.core.diagnosis.explanation import DecisionInput, explain_broker, explain_bundle, why_not
from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.reasons import ExplanationReason, PlacementReason, SheddingReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.planner import choose_destination, plan_assignments
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES, placement_strategy
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES
from loadmanager.core.strategies.shedding.shedding_strategy import eligible, find_hold

SETTINGS = st.builds(
    PlannerSettings,
    shedding_strategy=st.sampled_from(sorted(SHEDDING_STRATEGIES)),
    placement_strategy=st.sampled_from(sorted(PLACEMENT_STRATEGIES)),
    shedding_excluded_namespaces=st.sampled_from([frozenset(), frozenset({"tenant/ns-0"})]),
    max_load_moved_per_cycle_percentage=st.sampled_from([30.0, 100.0]),
)


@st.composite
def situations(draw: st.DrawFn) -> DecisionInput:
    """Draw a cluster with the state of some lookups, and with controls."""
    cluster: SomeCluster = draw(clusters(fewest_brokers=2, fewest_bundles=1))
    snapshot = Build().snapshot(cluster)
    ids, names = st.sampled_from(snapshot.brokers.ids), st.sampled_from(snapshot.bundles.names)
    controls = Controls(
        draining=dict.fromkeys(draw(st.lists(ids, max_size=1)), DrainOrder(0.0)),
        excluded=frozenset(draw(st.lists(ids, max_size=1))),
        pinned=draw(st.dictionaries(names, ids, max_size=1)),
    )
    settings = draw(SETTINGS)
    snapshot = replace(snapshot, controls=controls)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    _, state = plan_assignments(snapshot, snapshot.bundles.names[:3], settings, {}, rng)
    return DecisionInput(snapshot, settings, state, rng)


def decisions(situation: DecisionInput) -> list[object]:
    """Return all current decisions, computed from copies."""
    snapshot, rng = situation.snapshot, deepcopy(situation.rng)
    fresh = replace(snapshot, _derived={})
    placed, state = plan_assignments(fresh, snapshot.bundles.names, situation.settings, situation.state, rng)
    return [placed.steps, as_json(state), situation.round().steps, as_json(situation.state), rng.bit_generator.state]


def explain_everything(situation: DecisionInput) -> None:
    for bundle in situation.snapshot.bundles.names[:4]:
        explain_bundle(situation, bundle)
        for broker in situation.snapshot.brokers.ids:
            why_not(situation, bundle, broker)
    for broker in situation.snapshot.brokers.ids:
        explain_broker(situation, broker)


@at_most(50)
@given(situation=situations())
def test_explanations_change_no_decision(situation: DecisionInput) -> None:
    before = decisions(situation)
    explain_everything(situation)
    assert decisions(situation) == before


@given(situation=situations(), data=st.data())
def test_explained_winner_is_the_choice_of_placement(situation: DecisionInput, data: st.DataObject) -> None:
    snapshot = situation.snapshot
    bundle = data.draw(st.sampled_from(snapshot.bundles.names))
    explained = explain_bundle(situation, bundle).placement
    row = snapshot.bundles.names.index(bundle)
    rng = deepcopy(situation.rng)
    if snapshot.bundles.free[row]:
        plan, _ = plan_assignments(snapshot, [bundle], situation.settings, situation.state, rng)
        chosen = [step.destination.broker for step in plan.steps if step.destination]
    else:
        assigned = int(snapshot.bundles.assigned[row])
        holder = snapshot.brokers.ids[assigned] if assigned >= 0 else None
        winner, _, _ = choose_destination(snapshot, bundle, holder, situation.settings, situation.state, rng)
        chosen = [winner.broker] if winner else []
    assert ([explained.chosen] if explained.chosen else []) == chosen
    assert explained.runner_up is None or explained.runner_up.why["broker"] != explained.chosen


@given(situation=situations(), data=st.data())
def test_explained_move_equals_the_round(situation: DecisionInput, data: st.DataObject) -> None:
    bundle = data.draw(st.sampled_from(situation.snapshot.bundles.names))
    shedding = explain_bundle(situation, bundle).shedding
    moves = [step for step in situation.round().unloads if step.bundle == bundle]
    assert [shedding.destination] * shedding.would_move == [
        step.destination.broker if step.destination else None for step in moves
    ]
    assert (shedding.stays is None) == bool(moves)


@given(situation=situations(), data=st.data())
def test_broker_with_an_obstacle_is_no_candidate(situation: DecisionInput, data: st.DataObject) -> None:
    snapshot, settings = situation.snapshot, situation.settings
    namespace = data.draw(st.sampled_from(snapshot.bundles.namespaces))
    rules = rules_of(settings, placement_strategy(settings)[0])
    question = PlacementQuestion(namespace, Projection(snapshot), settings)
    allowed, _ = allowed_brokers(rules, question)
    for broker in range(len(snapshot.brokers)):
        obstacles = find_obstacles(rules, question, broker)
        assert bool(allowed[broker]) == all(each.is_preference for each in obstacles)


@given(situation=situations(), data=st.data())
def test_why_not_says_would_be_chosen_only_for_the_winner(situation: DecisionInput, data: st.DataObject) -> None:
    bundle = data.draw(st.sampled_from(situation.snapshot.bundles.names))
    chosen = explain_bundle(situation, bundle).placement.chosen
    for broker in situation.snapshot.brokers.ids:
        verdict = why_not(situation, bundle, broker).verdict.verdict
        if verdict is ExplanationReason.WOULD_BE_CHOSEN:
            assert broker == chosen
        if broker == chosen:
            assert verdict in (
                ExplanationReason.WOULD_BE_CHOSEN,
                PlacementReason.PINNED_TO_BROKER,
                SheddingReason.BUNDLE_PINNED,
                PlacementReason.DECIDED_BEFORE,
            )


@pytest.mark.parametrize("strategy", sorted(PLACEMENT_STRATEGIES))
@at_most(50)
@given(cluster=clusters(fewest_brokers=2, fewest_bundles=1))
def test_every_candidate_is_ranked_by_every_strategy(strategy: str, cluster: SomeCluster) -> None:
    snapshot = Build().snapshot(cluster)
    settings = PlannerSettings(placement_strategy=strategy)
    situation = DecisionInput(snapshot, settings, {}, np.random.default_rng(1))
    trial = situation.trial(snapshot.bundles.names[0], None)
    seen = [row for placement in trial.choices() for row in np.unique(placement.drawn_from).tolist()]
    assert sorted(set(seen)) == sorted(trial.candidates.tolist())


@given(cluster=clusters())
def test_bundle_is_held_exactly_when_no_strategy_may_move_it(cluster: SomeCluster) -> None:
    snapshot: Snapshot = Build().snapshot(cluster)
    may_move = eligible(snapshot)
    for row in range(len(snapshot.bundles)):
        assert bool(may_move[row]) == (find_hold(snapshot, row) is None)
