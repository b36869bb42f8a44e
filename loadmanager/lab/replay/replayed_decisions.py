"""Replay of each kind of decision, with the functions of the core that the leader calls, in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.decision_kinds import DECISIONS, Request, merged
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import shed
from loadmanager.core.strategies.merging import find_merges
from loadmanager.core.strategies.splitting.split_round import find_splits
from loadmanager.wire.checkpoint_codec import unquoted
from loadmanager.wire.plan_steps import merge_as_json, split_as_json
from loadmanager.wire.reshape_codec import merging_of, question_of


@dataclass(slots=True)
class ReplayedMemory:
    """Planner state of a leader besides the model: strategy states and two random generators, for small decisions and
    for rounds.
    """

    states: State
    split_state: State
    churn: State
    rng: np.random.Generator
    round_rng: np.random.Generator

    @classmethod
    def of(cls, head: Mapping[str, Any]) -> ReplayedMemory:
        """Restore from the head of a checkpoint."""
        memory = cls({}, {}, {}, _generator(head["rng"]), _generator(head["roundRng"]))
        memory.restore(head)
        return memory

    def restore(self, content: Mapping[str, Any]) -> None:
        """Replace the memory by the recorded one."""
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
    """Result of a replayed decision: `steps` as core objects or as JSON mappings, `rng` the generator used, if any."""

    steps: Sequence[Assign | Unload | Mapping[str, Any]]
    verdicts: Sequence[Verdict]
    rng: np.random.Generator | None = None


def replay_decision(
    kind: str,
    began: DecisionInputs | None,
    settings: PlannerSettings,
    memory: ReplayedMemory,
    request: Request,
) -> ReplayedDecisions | None:
    """Replay one of `REPLAYED_KINDS`, and update the memory; return None if its snapshot is missing."""
    if kind == "split":
        return _split(settings, memory, request)
    if kind == "merge":
        return _merge(settings, request)
    if began is None:
        return None
    if kind in ("shed", "preview_shed"):
        return _shed(kind, began, settings, memory, request)
    if kind == "preview_drain":
        plan, _ = DECISIONS["drain"](began.snapshot, settings, began.states, began.rng, request)
        return ReplayedDecisions(plan.steps, plan.verdicts)
    plan, memory.states = DECISIONS[kind](began.snapshot, settings, memory.states, memory.rng, request)
    return ReplayedDecisions(plan.steps, plan.verdicts, memory.rng)


def _shed(
    kind: str, began: DecisionInputs, settings: PlannerSettings, memory: ReplayedMemory, request: Request
) -> ReplayedDecisions:
    in_progress = request.get("inProgress", 0.0)
    done = shed(began.snapshot, settings, began.states, memory.churn, began.rng, in_progress)
    if kind == "preview_shed":
        return ReplayedDecisions(done.plan.steps, done.plan.verdicts)
    memory.states, memory.churn = merged(began.states, done.state, memory.states), done.churn_state
    memory.round_rng.bit_generator.state = began.rng.bit_generator.state
    return ReplayedDecisions(done.plan.steps, done.plan.verdicts, memory.round_rng)


def _split(settings: PlannerSettings, memory: ReplayedMemory, request: Request) -> ReplayedDecisions:
    """Replay from the recorded question: the topics came from brokers, not from the model."""
    found, remembered = find_splits(question_of(request["question"]), settings)
    if remembered is not None:
        memory.split_state = remembered
    steps = [split_as_json(split) for split in found.splits]
    return ReplayedDecisions(steps, found.verdicts)


def _merge(settings: PlannerSettings, request: Request) -> ReplayedDecisions:
    merges, verdicts = find_merges(merging_of(request["candidates"]), settings)
    steps = [merge_as_json(each) for each in merges]
    return ReplayedDecisions(steps, [*verdicts, *(each.why for each in merges)])


RUNS_IN_PARALLEL = frozenset({"shed", "preview_shed", "preview_drain"})
"""Decisions that run concurrently with others; they use the generator of rounds."""

REPLAYED_KINDS = RUNS_IN_PARALLEL | DECISIONS.keys() | {"split", "merge"}
"""Kinds that are replayed. The other kind, `plan`, is executed for an operator and involves no decision."""


def _generator(state: Mapping[str, Any]) -> np.random.Generator:
    rng = np.random.Generator(getattr(np.random, state["bit_generator"])(0))
    rng.bit_generator.state = state
    return rng
