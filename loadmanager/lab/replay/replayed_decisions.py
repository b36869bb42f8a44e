"""Replay of each kind of decision, with the functions of the core that the leader calls, in the same order; and the
field-by-field comparison of a recorded decision or checkpoint with the replayed one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from loadmanager.core.domain.plan import Plan, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.model.snapshot_builder import ModelCheckpoint
from loadmanager.core.planning.decision_kinds import DECISIONS, Request, merged
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import shed
from loadmanager.core.strategies.merging import find_merges
from loadmanager.core.strategies.splitting.split_round import find_splits
from loadmanager.wire.checkpoint_codec import (
    BROKERS,
    head_of,
    merge_as_json,
    merging_of,
    parts_of,
    question_of,
    split_as_json,
    step_as_json,
    unquoted,
)
from loadmanager.wire.dump_line import quoted


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
    """Result of a replayed decision: `steps` as they are recorded, `rng` the generator used, if any."""

    steps: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Verdict]
    rng: np.random.Generator | None = None

    @classmethod
    def of(cls, plan: Plan, rng: np.random.Generator | None = None) -> ReplayedDecisions:
        return cls([*map(step_as_json, plan.steps)], plan.verdicts, rng)


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
        return ReplayedDecisions.of(plan)
    plan, memory.states = DECISIONS[kind](began.snapshot, settings, memory.states, memory.rng, request)
    return ReplayedDecisions.of(plan, memory.rng)


def _shed(
    kind: str, began: DecisionInputs, settings: PlannerSettings, memory: ReplayedMemory, request: Request
) -> ReplayedDecisions:
    in_progress = request.get("inProgress", 0.0)
    done = shed(began.snapshot, settings, began.states, memory.churn, began.rng, in_progress)
    if kind == "preview_shed":
        return ReplayedDecisions.of(done.plan)
    memory.states, memory.churn = merged(began.states, done.state, memory.states), done.churn_state
    memory.round_rng.bit_generator.state = began.rng.bit_generator.state
    return ReplayedDecisions.of(done.plan, memory.round_rng)


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


@dataclass(frozen=True, slots=True)
class Difference:
    """First difference between a recording and its replay: row, subject, field, and both values."""

    at_ms: int
    epoch: int
    sequence: int
    kind: str
    subject: str
    field: str
    recorded: Any
    replayed: Any


class Mismatch(Exception):  # noqa: N818 - a finding, not a failure
    """A recorded value differs from the replayed one: subject, field, and both values."""


def compare_value(subject: str, field: str, recorded: object, replayed: object) -> None:
    """Raise `Mismatch` unless both values are equal."""
    if recorded != replayed:
        raise Mismatch(subject, field, recorded, replayed)


def compare_decision(columns: Mapping[str, Any], replayed: ReplayedDecisions) -> None:
    """Compare steps and verdicts in order; raise `Mismatch` at the first difference."""
    for recorded, step in zip_longest(columns["steps"] or (), replayed.steps):
        subject = (recorded or step)["bundle"]
        if recorded is None or step is None:
            raise Mismatch(subject, "step", recorded, step)
        for name, said in recorded.items():
            compare_value(subject, f"step.{name}", content_of(said) if name == "detail" else said, step.get(name))
    for said, verdict in zip_longest(columns["verdicts"] or (), replayed.verdicts):
        _compare_verdict(said, verdict)


def _compare_verdict(said: Mapping[str, Any] | None, verdict: Verdict | None) -> None:
    if said is None or verdict is None:
        subject = said["subject"] if said is not None else verdict.subject if verdict is not None else ""
        raise Mismatch(subject, "verdict", said, verdict)
    compare_value(said["subject"], "verdict.subject", said["subject"], verdict.subject)
    compare_value(said["subject"], "verdict.reason", said["reason"], verdict.verdict.value)
    compare_value(said["subject"], "verdict.acted", said["acted"], verdict.acted)
    recorded, replayed = content_of(said["why"]) or {}, _as_recorded(verdict.why)
    for figure in {**recorded, **replayed}:
        compare_value(said["subject"], f"verdict.why.{figure}", recorded.get(figure), replayed.get(figure))


def compare_checkpoints(recorded: ModelCheckpoint, replayed: ModelCheckpoint) -> None:
    """Compare entire models; raise `Mismatch` at the first difference."""
    for said, came in zip_longest(_state_by_subject(recorded), _state_by_subject(replayed)):
        if said is None or came is None or said[0] != came[0]:
            raise Mismatch((said or came or "")[0], "subject", said and said[0], came and came[0])
        if said == came:
            continue
        subject, content = said
        for field, value in content.items():
            compare_value(subject, field, value, came[1][field])


def _state_by_subject(checkpoint: ModelCheckpoint) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each bundle and each broker of the model with its state, and the rest of the model at the end.

    Registrations are by name: they have other numbers in a model that began at a checkpoint.
    """
    registrations = [*checkpoint.registrations, None]
    for kind, part in parts_of(checkpoint, {}):
        content = part.as_json()
        if kind == BROKERS:
            yield from ((each["registration"][0], each) for each in content)
            continue
        for name in ("reporter", "owner", "destination"):
            content[name] = [registrations[number] for number in content[name]]
        for bundle, *state in zip(*content.values(), strict=True):
            yield bundle, dict(zip(list(content)[1:], state, strict=True))
    head = head_of(checkpoint)
    yield "", {name: value for name, value in head.items() if name != "registrations"}


def content_of(text: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the value of a JSON column; None for an empty one."""
    return None if text is None else json.loads(text)


def _as_recorded(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the value after a round trip through the recording."""
    return json.loads(json.dumps(quoted(value), default=_number))


def _number(value: Any) -> Any:  # noqa: ANN401 - a number of numpy's
    return value.item()
