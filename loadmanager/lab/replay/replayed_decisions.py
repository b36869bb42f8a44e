"""Replay of each kind of decision, with the functions of the core that the leader calls, in the same order; and the
field-by-field comparison of a recorded decision or checkpoint with the replayed one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import numpy as np

from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.reporters import ReportingBroker
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.model.snapshot_builder import ModelCheckpoint
from loadmanager.core.planning.decision_kinds import DECISIONS, Request, merged
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import shed
from loadmanager.core.strategies.merging import find_merges
from loadmanager.core.strategies.splitting.split_round import find_splits
from loadmanager.wire.checkpoint_codec import (
    merge_as_json,
    merging_of,
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
    """A recorded value differs from the replayed one."""

    def __init__(self, subject: str, field: str, recorded: object, replayed: object) -> None:
        super().__init__(subject, field, recorded, replayed)
        self.subject = subject
        self.field = field
        self.recorded = recorded
        self.replayed = replayed


def compare_value(subject: str, field: str, recorded: object, replayed: object) -> None:
    """Raise `Mismatch` unless both values are equal."""
    if recorded != replayed:
        raise Mismatch(subject, field, recorded, replayed)


def compare_decision(columns: Mapping[str, Any], replayed: ReplayedDecisions) -> None:
    """Compare steps and verdicts in order; raise `Mismatch` at the first difference."""
    for recorded, step in zip_longest(columns["steps"] or (), map(_step, replayed.steps)):
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
    _compare_columns(recorded, replayed)
    registered = [(each.registrations, each) for each in (recorded, replayed)]
    for name in ("reporter", "owner", "destination"):
        said, came = ([_at(names, at) for at in getattr(each, name).tolist()] for names, each in registered)
        for bundle, one, other in zip(recorded.names, said, came, strict=True):
            compare_value(bundle, name, one, other)
    compare_value("", "with_record", recorded.with_record, replayed.with_record)
    compare_value("", "unloaded", dict(recorded.unloaded), dict(replayed.unloaded))
    compare_value("", "unloaded_from", dict(recorded.unloaded_from), dict(replayed.unloaded_from))
    compare_value("", "revision", recorded.revision, replayed.revision)
    for said_broker, came_broker in zip_longest(recorded.brokers, replayed.brokers):
        _compare_brokers(said_broker, came_broker)


def _compare_columns(recorded: ModelCheckpoint, replayed: ModelCheckpoint) -> None:
    for name, other in zip_longest(recorded.names, replayed.names):
        compare_value(name or other, "bundle", name, other)
    pairs = [
        (name, getattr(recorded, name), getattr(replayed, name))
        for name in ("short", "long", "short_samples", "long_samples", "topics", "recorded", "by_range")
    ]
    pairs += [
        (name, getattr(recorded.time_means, name), getattr(replayed.time_means, name))
        for name in ("mean", "last", "reported_s", "sigma")
    ]
    for name, one, other in pairs:
        different = np.flatnonzero((one != other).reshape(len(one), -1).any(axis=1))
        if len(different):
            row = int(different[0])
            raise Mismatch(recorded.names[row], name, one[row].tolist(), other[row].tolist())


def _compare_brokers(recorded: ReportingBroker | None, replayed: ReportingBroker | None) -> None:
    if recorded is None or replayed is None:
        raise Mismatch("", "broker", recorded and recorded.registration, replayed and replayed.registration)
    broker = recorded.registration.broker
    for column in fields(recorded):
        if column.name in ("report", "unknown", "busiest"):
            continue
        one, other = getattr(recorded, column.name), getattr(replayed, column.name)
        if isinstance(one, np.ndarray):
            one, other = one.tolist(), other.tolist()
        compare_value(broker, column.name, one, other)
    said, came = recorded.busiest(), replayed.busiest()
    compare_value(broker, "top", said[0].tolist(), came[0].tolist())
    compare_value(broker, "top_throughput", said[1].tolist(), came[1].tolist())
    for name in ("report", "unknown"):
        compare_value(broker, name, _plain(getattr(recorded, name)), _plain(getattr(replayed, name)))


def _plain(report: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a report or None
    if report is None:
        return None
    values = {column.name: getattr(report, column.name) for column in fields(report)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def _at(names: Sequence[Any], at: int) -> Any:  # noqa: ANN401 - a registration or None
    return None if at < 0 else names[at]


def content_of(text: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the value of a JSON column; None for an empty one."""
    return None if text is None else json.loads(text)


def _as_recorded(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the value after a round trip through the recording."""
    return json.loads(json.dumps(quoted(value), default=_number))


def _number(value: Any) -> Any:  # noqa: ANN401 - a number of numpy's
    return value.item()


def _step(step: Assign | Unload | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(step, Mapping):
        return step
    return step_as_json(step)
