"""Replay of a leader's decisions: recorded inputs are applied to a model in their order, and each decision is computed
again with the recorded settings, memory and random generator.

    checkpoint ──▶ model, memory, generator ──▶ input, input, snapshot, decision: taken again, and compared ──▶ ...
                         ▲                                                             │
                         └── after a gap, or in another term: the next checkpoint ◀────┘

Everything must be exactly equal: steps and verdicts with their figures, the state of the generator, and at each later
checkpoint the whole model and the memory. The first difference ends the replay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.bundle_averages import PartLoad
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.fleet_load import share_of
from loadmanager.core.model.load import BundleAverages, TimeMean
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import churn
from loadmanager.core.planning.planner import State
from loadmanager.lab.replay.replayed_decisions import (
    REPLAYED_KINDS,
    RUNS_IN_PARALLEL,
    DecisionInputs,
    Difference,
    Mismatch,
    ReplayedDecisions,
    ReplayedMemory,
    compare_checkpoints,
    compare_decision,
    compare_value,
    content_of,
    replay_decision,
)
from loadmanager.wire.checkpoint_codec import Record, faults_of, owned_of, read_checkpoint, record_of
from loadmanager.wire.control_records import controls_of
from loadmanager.wire.learned_records import learned_of
from loadmanager.wire.policy_records import policies_of
from loadmanager.wire.strategy_state import digest_of

if TYPE_CHECKING:
    from loadmanager.history.reader import RecordedReport

DECISIONS, MOVES, EVENTS = "decisions", "moves", "events"
_SNAPSHOTS_KEPT = 16
"""Number of snapshots kept. A decision uses the last one, unless more were taken while it ran."""

_WITHOUT_MODEL = ("checkpoint", "checkpoint_part", "gap", "term_began")
"""Kinds of events that are applied even without a model, while nothing is compared."""

_CANNOT_BE_USED = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

SettingsOf = Callable[[Mapping[str, str]], PlannerSettings]
"""Function from all settings, as text by key, to the planner's settings."""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the history that is not a report: its table, and its columns; JSON is text."""

    at_ms: int
    epoch: int
    sequence: int
    table: str
    columns: Mapping[str, Any]


Item: TypeAlias = "Row | RecordedReport"


@dataclass(frozen=True, slots=True)
class _Hole:
    """Missing sequence numbers, and the time of the row that follows them."""

    epoch: int
    first: int
    last: int
    until_ms: int


@dataclass(slots=True)
class ReplayOutcome:
    """Result of a replay. `compared` counts by kind, `left_out` counts decisions that were not replayed, by cause.

    `notes` list missing rows, and the checkpoints at which the replay restarted. `is_complete` is False if rows are
    missing without a recorded gap.
    """

    compared: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    notes: list[str] = field(default_factory=list)
    difference: Difference | None = None
    is_complete: bool = True

    @property
    def is_equal(self) -> bool:
        return self.difference is None and self.is_complete


class Replay:
    """Replay of a history. Call `take` with each item in the order of (epoch, sequence), until `outcome.difference` is
    set; then call `end`.
    """

    def __init__(self, settings_of: SettingsOf) -> None:
        self.outcome = ReplayOutcome()
        self._settings_of = settings_of
        self._place = (-1, -1)
        self._model: ClusterModel | None = None
        rng = np.random.Generator(np.random.PCG64(0))
        self._memory = ReplayedMemory({}, {}, {}, rng, rng)
        self._records: dict[str, Record] = {}
        self._settings: dict[str, PlannerSettings] = {}
        self._snapshots: dict[int, Snapshot] = {}
        self._in_progress: dict[int, DecisionInputs] = {}
        self._head: tuple[Item, Mapping[str, Any]] | None = None
        self._parts: list[tuple[str, Any]] = []
        self._holes: list[_Hole] = []
        self._apply_by_kind: dict[str, Callable[[str, Any, Item], None]] = {
            "checkpoint": self._begin_checkpoint,
            "checkpoint_part": self._take_part,
            "gap": self._gap,
            "term_began": self._begin_term,
            "snapshot": self._take_snapshot,
            "decision_began": self._begin_decision,
            "broker_gone": lambda broker, _, __: self._current_model.remove_broker(BrokerId(broker)),
            "namespace": self._set_namespace,
            "namespace_gone": self._remove_namespace,
            "redistributed": self._redistribute,
            "configuration": self._configure,
            "policies": lambda _, body, __: _set_policies(self._current_model, body),
            "controls": lambda _, body, __: self._current_model.set_controls(controls_of(body)),
            "learned": lambda _, body, __: self._current_model.set_learned(learned_of(body or None)),
            "faults": lambda _, body, __: self._current_model.set_faults(faults_of(body)),
            "seeded": self._seed_averages,
            "unloaded": lambda name, body, _: self._current_model.mark_unloaded(name, body["atS"], body["source"]),
            "restored": lambda _, body, __: self._current_model.restore_unloaded(
                body["unloaded"], body["unloadedFrom"]
            ),
            "breaker_lifted": self._lift,
            "memory": lambda _, body, __: self._memory.restore(body),
        }

    def take(self, item: Item) -> None:
        """Apply an input, or replay a decision."""
        self._find_hole(item)
        try:
            if not isinstance(item, Row):
                self._report(item)
            elif item.table == EVENTS:
                self._event(item)
            elif item.table == DECISIONS:
                self._decision(item)
            elif item.table == MOVES and item.columns["kind"] == "done":
                self._apply_move(item)
        except Mismatch as mismatch:
            self._differs(item, mismatch)
        except _CANNOT_BE_USED as error:
            what = f"{type(error).__name__}: {error}"
            self._differs(item, Mismatch("", "", "a row that can be used", what))

    def end(self, unended: tuple[int, int] | None = None) -> ReplayOutcome:
        """Finish, and return the outcome.

        `unended` is for a last term without a recorded end: its epoch, and the time (ms) from which rows may be
        missing, because rows that are written together are in several files.
        """
        if unended is not None:
            self._explain_holes(*unended, "its leader has not ended its term, and not all of its last rows are here")
        for hole in self._holes:
            self.outcome.is_complete = False
            self.outcome.notes.append(
                f"epoch {hole.epoch}: sequences {hole.first} to {hole.last} are missing, and no gap says so"
            )
        return self.outcome

    @property
    def _current_model(self) -> ClusterModel:
        assert self._model is not None, "only after a checkpoint anything is applied"
        return self._model

    def _find_hole(self, item: Item) -> None:
        """Suspend until the next checkpoint when another term begins or rows are missing."""
        epoch, sequence = self._place
        self._place = item.epoch, item.sequence
        if item.epoch != epoch:
            self._wait(None)
        elif sequence >= 0 and item.sequence != sequence + 1:
            self._holes.append(_Hole(epoch, sequence + 1, item.sequence - 1, item.at_ms))
            self._wait(f"epoch {epoch}: nothing is compared from sequence {sequence + 1} to the next checkpoint")

    def _wait(self, note: str | None) -> None:
        if self._model is not None and note is not None:
            self.outcome.notes.append(note)
        self._model, self._head = None, None

    def _differs(self, item: Item, mismatch: Mismatch) -> None:
        kind = item.columns["kind"] if isinstance(item, Row) else "report"
        self.outcome.difference = Difference(item.at_ms, item.epoch, item.sequence, str(kind), *mismatch.args)

    # Inputs

    def _report(self, item: RecordedReport) -> None:
        if self._model is not None:
            self.outcome.inputs += 1
            self._model.apply_report(item.registration, item.report)

    def _event(self, item: Row) -> None:
        kind, subject = item.columns["kind"], item.columns["subject"] or ""
        apply = self._apply_by_kind.get(kind)
        if apply is None or (self._model is None and kind not in _WITHOUT_MODEL):
            return
        self.outcome.inputs += 1
        apply(subject, content_of(item.columns["body"]), item)

    def _gap(self, _: str, body: Mapping[str, Any], item: Item) -> None:
        """Remove the missing rows that this recorded gap explains, and suspend."""
        first, last = body.get("first_sequence", -1), body.get("last_sequence", -1)
        self._holes = [
            hole for hole in self._holes if hole.epoch != item.epoch or not (first <= hole.first and hole.last <= last)
        ]
        self.outcome.notes.append(f"epoch {item.epoch}: a gap of {body.get('rows')} rows: {body.get('why')}")
        self._wait(None)

    def _begin_term(self, _: str, body: Mapping[str, Any], __: Item) -> None:
        """Explain missing rows of the previous leader, which may have been killed between writing two files."""
        previous, gap = body.get("previous"), body.get("gap")
        if previous and gap:
            self._explain_holes(previous["epoch"], gap["from_ms"], gap["why"])

    def _explain_holes(self, epoch: int, from_ms: int, why: str) -> None:
        explained = [hole for hole in self._holes if hole.epoch == epoch and hole.until_ms >= from_ms]
        if explained:
            self._holes = [hole for hole in self._holes if hole not in explained]
            missing = sum(hole.last - hole.first + 1 for hole in explained)
            self.outcome.notes.append(f"epoch {epoch}: {missing} rows are missing: {why}")

    def _take_snapshot(self, _: str, body: Mapping[str, Any], item: Item) -> None:
        self._snapshots[item.sequence] = self._current_model.snapshot(body["atS"], body["gracePeriodS"])
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            del self._snapshots[next(iter(self._snapshots))]

    def _begin_decision(self, _: str, body: Mapping[str, Any], __: Item) -> None:
        snapshot = self._snapshots.get(body["snapshot"])
        if snapshot is not None:
            self._in_progress[body["snapshot"]] = DecisionInputs.of(snapshot, self._memory)

    def _set_namespace(self, namespace: str, body: Mapping[str, Any], _: Item) -> None:
        if "changed" in body:
            names, before = self._records[namespace]
            ownerships = list(before)
            for index, content in body["changed"].items():
                ownerships[int(index)] = owned_of(content)
            record: Record = names, ownerships
        else:
            record = record_of(namespace, body)
        self._records[namespace] = record
        self._current_model.set_namespace(namespace, *record)

    def _remove_namespace(self, namespace: str, _: Any, __: Item) -> None:  # noqa: ANN401 - there is no body
        self._records.pop(namespace, None)
        self._current_model.remove_namespace(namespace)

    def _redistribute(self, _: str, body: Mapping[str, Any], __: Item) -> None:
        self._current_model.redistribute(
            {name: PartLoad(np.array(load, dtype=np.float64), topics) for name, (load, topics) in body.items()}
        )

    def _seed_averages(self, name: str, body: Sequence[Any], _: Item) -> None:
        short, long, short_samples, long_samples, topics, *by_time = body
        averages = BundleAverages(
            np.array(short, dtype=np.float64),
            np.array(long, dtype=np.float64),
            short_samples,
            long_samples,
            topics,
            TimeMean(np.array(by_time[0], dtype=np.float64), by_time[1]) if by_time else None,
        )
        self._current_model.seed_bundle(name, averages)

    def _configure(self, settings_id: str, body: Mapping[str, str], _: Item) -> None:
        self._settings[settings_id] = self._settings_of(body)
        self._current_model.set_settings(self._settings[settings_id])

    def _lift(self, bundle: str, _: Any, __: Item) -> None:  # noqa: ANN401 - there is no body
        self._memory.churn = churn.lifted(self._memory.churn, bundle or None)

    # Checkpoints

    def _begin_checkpoint(self, _: str, head: Mapping[str, Any], item: Item) -> None:
        self._head, self._parts = (item, head), []
        self._finish_checkpoint()

    def _take_part(self, holds: str, content: Any, _: Item) -> None:  # noqa: ANN401 - whatever the part holds
        if self._head is not None:
            self._parts.append((holds, content))
            self._finish_checkpoint()

    def _finish_checkpoint(self) -> None:
        """Once all parts are read: compare the checkpoint with the replayed state, and continue from it."""
        assert self._head is not None, "a checkpoint has begun"
        item, head = self._head
        if len(self._parts) < head["parts"]:
            return
        checkpoint, records = read_checkpoint(head, self._parts)
        memory = ReplayedMemory.of(head)
        if self._model is not None:
            compare_checkpoints(checkpoint, self._model.checkpoint())
            for name in ("states", "split_state", "churn"):
                compare_value("", name, _digest(name, memory), _digest(name, self._memory))
            for name in ("rng", "round_rng"):
                generators = (getattr(each, name) for each in (memory, self._memory))
                compare_value("", name, *(each.bit_generator.state for each in generators))
            self.outcome.compared["checkpoint"] += 1
        else:
            self.outcome.notes.append(f"epoch {item.epoch}: begins at the checkpoint of sequence {item.sequence}")
        settings = self._settings_of(head["settings"])
        self._settings = {head["settingsId"]: settings}
        model = ClusterModel(settings)
        _set_policies(model, head["policies"])
        model.set_controls(controls_of(head["controls"]))
        model.set_learned(learned_of(head["learned"] or None))
        model.set_faults(faults_of(head["faults"]))
        model.restore(checkpoint)
        self._model, self._memory, self._records = model, memory, records
        self._snapshots, self._in_progress, self._head, self._parts = {}, {}, None, []

    # Decisions

    def _decision(self, row: Row) -> None:
        if self._model is None:
            self.outcome.left_out["before a checkpoint"] += 1
            return
        columns = row.columns
        kind, detail = columns["kind"], content_of(columns["detail"])
        if kind not in REPLAYED_KINDS:
            self.outcome.left_out[f"{kind}: at an operator's word"] += 1
            return
        if "error" in detail:
            self._skip_failed(kind, columns)
            return
        began = self._find_inputs(kind, detail["snapshot"])
        replayed = replay_decision(kind, began, self._settings[columns["settings_id"]], self._memory, detail)
        if replayed is None:
            self.outcome.left_out[f"{kind}: its snapshot is from before the checkpoint"] += 1
            return
        self._compare(columns, replayed)
        self.outcome.compared[kind] += 1

    def _find_inputs(self, kind: str, snapshot: int) -> DecisionInputs | None:
        """Return the inputs of a decision: those copied when it began, else the current ones."""
        if kind in RUNS_IN_PARALLEL and snapshot in self._in_progress:
            return self._in_progress.pop(snapshot)
        found = self._snapshots.get(snapshot)
        return None if found is None else DecisionInputs.of(found, self._memory)

    def _skip_failed(self, kind: str, columns: Mapping[str, Any]) -> None:
        """Skip a decision that ended in an error, but set its generator as recorded."""
        self.outcome.left_out[f"{kind}: it ended in an error"] += 1
        rng = self._memory.round_rng if kind in RUNS_IN_PARALLEL else self._memory.rng
        rng.bit_generator.state = content_of(columns["rng_state"])
        if kind == "shed":
            self._memory.states = {}

    def _compare(self, columns: Mapping[str, Any], replayed: ReplayedDecisions) -> None:
        compare_decision(columns, replayed)
        if columns["rng_state"] and replayed.rng is not None:
            compare_value("", "rng_state", content_of(columns["rng_state"]), replayed.rng.bit_generator.state)

    def _apply_move(self, row: Row) -> None:
        """Apply a completed move to the churn memory, and compare the results."""
        if self._model is None:
            return
        columns, detail = row.columns, content_of(row.columns["detail"])
        snapshot = self._snapshots[detail["snapshot"]]
        bundle, (source, life), destination = columns["bundle"], detail["source"], detail["destination"]
        share = share_of(snapshot, bundle)
        compare_value(bundle, "share", detail["share"], share)
        self._memory.churn, verdicts = churn.noted(
            self._memory.churn,
            bundle,
            Registration(BrokerId(source), life),
            None if destination is None else Registration(BrokerId(destination[0]), destination[1]),
            share,
            self._settings[detail["settingsId"]],
            at_s=detail["atS"],
            is_own=detail["isOwn"],
        )
        compare_value(bundle, "tripped", detail["tripped"], [[each.subject, each.verdict.value] for each in verdicts])
        self.outcome.compared["moved"] += 1


def replay(
    items: Iterable[Item],
    settings_of: SettingsOf,
    find_unended: Callable[[], tuple[int, int] | None] = lambda: None,
) -> ReplayOutcome:
    """Replay all items, up to the first difference. `find_unended` is called then; see `Replay.end`."""
    run = Replay(settings_of)
    for item in items:
        run.take(item)
        if run.outcome.difference is not None:
            break
    return run.end(find_unended())


def _set_policies(model: ClusterModel, body: Mapping[str, Any]) -> None:
    model.set_policies(policies_of(body["isolation"], body["failureDomains"], body["antiAffinity"]))


def _digest(name: str, memory: ReplayedMemory) -> str:
    state: State = getattr(memory, name)
    return digest_of({name: state} if name == "split_state" else state)
