"""Replay of each kind of decision, with the functions of the core that the leader calls, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import planner
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import shed
from loadmanager.core.planning.strategy_memory import merged
from loadmanager.core.strategies.merging import find_merges
from loadmanager.core.strategies.splitting.split_round import SPLIT_STRATEGY, find_splits
from loadmanager.wire.checkpoint_codec import unquoted
from loadmanager.wire.plan_steps import merge_as_json, split_as_json
from loadmanager.wire.reshape_codec import merging_of, question_of


@dataclass(slots=True)
class ReplayedMemory:
    """Planner state of a leader besides the model: strategy states and two random generators, for small decisions and
    for rounds. Older histories have one generator, which then serves both.
    """

    states: State
    split_state: State
    churn: State
    rng: np.random.Generator
    round_rng: np.random.Generator

    @classmethod
    def of(cls, head: Mapping[str, Any]) -> ReplayedMemory:
        """Restore from the head of a checkpoint."""
        rng = _generator(head["rng"])
        memory = cls({}, {}, {}, rng, _generator(head["roundRng"]) if "roundRng" in head else rng)
        memory.restore(head)
        return memory

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on with what is remembered in the content."""
        self.states, self.split_state, self.churn = (
            unquoted(content[key]) for key in ("states", "splitState", "churn")
        )


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Inputs of a decision that runs in parallel with others, copied when it began."""

    snapshot: Snapshot
    states: State
    rng: np.random.Generator

    @classmethod
    def of(cls, snapshot: Snapshot, memory: ReplayedMemory) -> DecisionInputs:
        """Copy the current inputs."""
        return cls(snapshot, memory.states, deepcopy(memory.round_rng))


@dataclass(frozen=True, slots=True)
class ReplayedDecisions:
    """Result of a replayed decision: `steps` as core objects or as JSON mappings; `state` is the state kept afterwards,
    if any, `rng` the generator that was used.
    """

    steps: Sequence[Assign | Unload | Mapping[str, Any]]
    verdicts: Sequence[Verdict]
    state: State | None = None
    rng: np.random.Generator | None = None


Detail = Mapping[str, Any]
ReplayDecision = Callable[[DecisionInputs | None, PlannerSettings, ReplayedMemory, Detail], ReplayedDecisions | None]
"""From its beginning, settings, what is remembered, which it changes, and what was asked; None without the snapshot."""


def _shed(
    began: DecisionInputs | None, settings: PlannerSettings, memory: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    under_way = detail.get("underWay", 0.0)
    done = shed(began.snapshot, settings, began.states, memory.churn, began.rng, under_way)
    memory.states, memory.churn = merged(began.states, done.state, memory.states), done.churn_state
    memory.round_rng.bit_generator.state = began.rng.bit_generator.state
    return ReplayedDecisions(done.plan.steps, done.plan.verdicts, memory.states, memory.round_rng)


def _preview_shed(
    began: DecisionInputs | None, settings: PlannerSettings, memory: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    under_way = detail.get("underWay", 0.0)
    plan = shed(began.snapshot, settings, began.states, memory.churn, began.rng, under_way).plan
    return ReplayedDecisions(plan.steps, plan.verdicts)


def _place(
    began: DecisionInputs | None, settings: PlannerSettings, memory: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    plan, memory.states = planner.plan_assignments(
        began.snapshot, detail["bundles"], settings, memory.states, memory.rng, detail["nonPersistent"]
    )
    return ReplayedDecisions(plan.steps, plan.verdicts, memory.states, memory.rng)


def _drain(
    began: DecisionInputs | None, settings: PlannerSettings, memory: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    brokers, leave = [BrokerId(each) for each in detail["brokers"]], frozenset(detail["leave"])
    plan, memory.states = planner.plan_drain(
        began.snapshot, brokers, settings, memory.states, memory.rng, detail["most"], leave
    )
    return ReplayedDecisions(plan.steps, plan.verdicts, memory.states, memory.rng)


def _preview_drain(
    began: DecisionInputs | None, settings: PlannerSettings, _: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    brokers = [BrokerId(each) for each in detail["brokers"]]
    plan = planner.plan_drain(began.snapshot, brokers, settings, began.states, began.rng)[0]
    return ReplayedDecisions(plan.steps, plan.verdicts)


def _choose(
    began: DecisionInputs | None, settings: PlannerSettings, memory: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    bundle = detail["bundle"]
    chosen, verdict, memory.states = planner.choose_destination(
        began.snapshot, bundle, None, settings, memory.states, memory.rng
    )
    steps = [] if chosen is None else [Assign(bundle, chosen, verdict.verdict)]
    return ReplayedDecisions(steps, [verdict], memory.states, memory.rng)


def _bring_home(
    began: DecisionInputs | None, settings: PlannerSettings, _: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    if began is None:
        return None
    plan = planner.plan_pins(began.snapshot, settings, frozenset(detail["leave"]))
    return ReplayedDecisions(plan.steps, plan.verdicts)


def _split(
    _: DecisionInputs | None, settings: PlannerSettings, memory: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    """Replay from the recorded question: the topics came from brokers, not from the model."""
    found, remembered = find_splits(question_of(detail["question"]), settings)
    if remembered is not None:
        memory.split_state = remembered
    steps = [split_as_json(split) for split in found.splits]
    return ReplayedDecisions(steps, found.verdicts, {SPLIT_STRATEGY: memory.split_state})


def _merge(
    _: DecisionInputs | None, settings: PlannerSettings, __: ReplayedMemory, detail: Detail
) -> ReplayedDecisions | None:
    merges, verdicts = find_merges(merging_of(detail["candidates"]), settings)
    steps = [merge_as_json(each) for each in merges]
    return ReplayedDecisions(steps, [*verdicts, *(each.why for each in merges)])


REPLAY_BY_KIND: dict[str, ReplayDecision] = {
    "shed": _shed,
    "preview_shed": _preview_shed,
    "place": _place,
    "drain": _drain,
    "preview_drain": _preview_drain,
    "choose": _choose,
    "bring_home": _bring_home,
    "split": _split,
    "merge": _merge,
}
"""By the kind of a decision. The one that is not here, `plan`, is what an operator had executed."""

RUNS_IN_PARALLEL = frozenset({"shed", "preview_shed", "preview_drain"})
"""Decisions beside which others may be made; they draw from the generator of rounds."""


def _generator(state: Mapping[str, Any]) -> np.random.Generator:
    rng = np.random.Generator(getattr(np.random, state["bit_generator"])(0))
    rng.bit_generator.state = state
    return rng
