"""What a leader puts into the history: first a checkpoint, then every input in the order in which it was applied, and
every decision with all that it was taken with.

So whoever reads it can bring an equal cluster to the same point and decide again: see `lab.replay.replayer`. Recording
keeps references and returns; what they refer to is never changed, and is written down in the writer's thread. On a node
that does not lead, or without a history, nothing is kept.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import orjson

from loadmanager.config import values_as_text
from loadmanager.config.overrides import OF_THE_NODE
from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.model.checkpoint import ModelCheckpoint
from loadmanager.core.model.report_validation import Doubts
from loadmanager.core.planning import churn
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.strategy_memory import InColumns
from loadmanager.history.entry_rows import Decision, Entry, HistoryEvent, StrategyState
from loadmanager.history.writer import NOT_RECORDED, HistoryWriter, WriterFigures
from loadmanager.leader.mirror.cluster_mirror import OperatorConfig
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.wire.checkpoint_codec import Later, Record, doubts_as_json, head_of, parts_of
from loadmanager.wire.control_records import encode_controls
from loadmanager.wire.learned_records import encode_learned, what_decides
from loadmanager.wire.machines.step_form import Image
from loadmanager.wire.policy_records import encode_domains, encode_groups, encode_isolation
from loadmanager.wire.strategy_state import digest_of

_CLOSE_S = 5.0
"""How long a node that stops waits for the last rows to be written, and again for the thread to end."""

_MOST_HASHED = 2_000
"""Entries of a state that is hashed after each placement; a larger one is hashed after each round of shedding."""


@dataclass(frozen=True, slots=True)
class DeskMemory:
    """What the desk goes by besides the model: what is remembered, and where its random generators stand, that of
    small decisions and that of rounds.
    """

    states: State
    split_state: State
    churn: State
    rng: Mapping[str, Any]
    round_rng: Mapping[str, Any]


class RecordedDesk(Protocol):
    """Who decides, as a checkpoint needs to know it."""

    def memory_now(self) -> DeskMemory: ...


class Model(Protocol):
    """What is known of the cluster, as a checkpoint needs to know it."""

    def image(self) -> ModelCheckpoint: ...

    def records(self) -> dict[str, Record]: ...

    def doubts(self) -> Doubts: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A decision that has begun: on which snapshot, with which settings and when. `at_s` is on the monotonic clock."""

    kind: str
    snapshot: int
    settings_id: str
    at_s: float


class HistoryRecorder:
    """Puts into a history what this node sees and does while it leads; without a `writer` nothing.

    `laid_down` is what operators have laid down. `begin_term` comes once the node has taken over, and before it decides
    anything.
    """

    def __init__(
        self,
        live: LiveSettings | None = None,
        laid_down: OperatorConfig | None = None,
        writer: HistoryWriter | None = None,
    ) -> None:
        self._live = live
        self._laid_down = laid_down or OperatorConfig()
        self._writer = writer
        self._is_recording = False
        self._cycle = 0
        self._states: State = {}
        self.last_snapshot = NOT_RECORDED
        """The place in the history of the snapshot that was taken last."""
        self.settings_id = ""
        self.machines: dict[str, Callable[[], Image]] = {}
        """By the name of each machine whose steps are recorded: all that it remembers now."""

    @property
    def is_on(self) -> bool:
        """Whether there is a history to record in."""
        return self._writer is not None

    @property
    def is_recording(self) -> bool:
        return self._is_recording

    @property
    def figures(self) -> WriterFigures:
        return WriterFigures() if self._writer is None else self._writer.figures

    def start(self) -> None:
        """Have what is put from now on written, by a thread."""
        if self._writer is not None:
            self._writer.start()

    def flush(self, timeout_s: float) -> bool:
        """Have everything written that was recorded so far; blocks, and says whether it was within that time."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write what is left, as far as that is possible within seconds; blocks."""
        if self._writer is not None:
            self._writer.close(timeout_s=_CLOSE_S)

    def put(self, entry: Entry, at_ms: int | None = None) -> int:
        """Record it, if this node leads, as of now unless said; its place in the order, -1 when it was not."""
        if not self._is_recording or self._writer is None:
            return NOT_RECORDED
        return self._writer.put(now_ms() if at_ms is None else at_ms, entry)

    def begin_term(self, epoch: int, node_id: str, model: Model, desk: RecordedDesk) -> None:
        """From here on everything is recorded; what was known and remembered until now is in the checkpoint."""
        if self._writer is None:
            return
        self._writer.begin_term(epoch, now_ms())
        self._is_recording = True
        self._cycle, self._states = 0, {}
        self.put(HistoryEvent("leader_elected", node_id, {"epoch": epoch}))
        self.checkpoint(model, desk)

    def end_term(self, reason: str) -> None:
        if self._writer is None or not self._is_recording:
            return
        self.put(HistoryEvent("leader_lost", reason))
        self._is_recording = False
        self._writer.end_term(now_ms())

    def checkpoint(self, model: Model, desk: RecordedDesk) -> None:
        """All that decisions depend on, as it is now. The snapshot that was taken last is not part of it."""
        if not self._is_recording:
            return
        self.last_snapshot = NOT_RECORDED
        settings = self._settings()
        image, memory = model.image(), desk.memory_now()
        parts = list(parts_of(image, model.records()))
        head = {
            **head_of(image),
            "parts": len(parts),
            "settingsId": self.settings_id,
            "settings": settings,
            "policies": Later(policies_later(self._laid_down)),
            "controls": Later(controls_later(self._laid_down)),
            "learned": Later(learned_later(self._laid_down)),
            "doubts": doubts_as_json(model.doubts()),
            "states": memory.states,
            "splitState": memory.split_state,
            "churn": memory.churn,
            "rng": memory.rng,
            "roundRng": memory.round_rng,
            "machines": {name: image() for name, image in self.machines.items()},
        }
        self.put(HistoryEvent("checkpoint", "", head))
        for holds, content in parts:
            self.put(HistoryEvent("checkpoint_part", holds, content))

    def configured(self) -> None:
        """The settings may be others than before."""
        before = self.settings_id
        settings = self._settings()
        if self.settings_id != before:
            self.put(HistoryEvent("configuration", self.settings_id, settings))

    def _settings(self) -> Mapping[str, str]:
        if self._live is None:
            return {}
        texts = values_as_text(self._live.current)
        texts = {key: text for key, text in texts.items() if key not in OF_THE_NODE}
        self.settings_id = hashlib.sha256(orjson.dumps(texts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        return texts

    def snapshot_taken(self, taken_at_s: float, grace_period_s: float) -> None:
        self.last_snapshot = self.put(HistoryEvent("snapshot", "", {"atS": taken_at_s, "gracePeriodS": grace_period_s}))

    def ask(self, kind: str) -> Asked:
        """A decision begins, on the snapshot that was taken last."""
        return Asked(kind, self.last_snapshot, self.settings_id, time.monotonic())

    def begin(self, kind: str) -> Asked:
        """As `ask`, of a decision beside which others are made: it goes by what is remembered now."""
        self.put(HistoryEvent("decision_began", kind, {"snapshot": self.last_snapshot}))
        return self.ask(kind)

    def decided(
        self,
        asked: Asked,
        steps: Sequence[Assign | Unload | Mapping[str, Any]],
        verdicts: Sequence[Verdict],
        state: State | None = None,
        rng: np.random.Generator | None = None,
        **detail: Any,  # noqa: ANN401 - whatever the decision was asked with
    ) -> None:
        """It was decided; `state` is what strategies remember from now on, and `rng`, its generator, stands where
        it was left.

        Without them the decision neither remembers anything nor leaves anything to chance.
        """
        if not self._is_recording:
            return
        is_round = asked.kind == "shed"
        self._cycle += is_round
        self.put(
            Decision(
                kind=asked.kind,
                cycle=self._cycle,
                settings_id=asked.settings_id,
                state_hash="" if state is None else _hash_later(state, always=is_round),
                duration_ms=(time.monotonic() - asked.at_s) * 1000,
                steps=steps,
                verdicts=verdicts,
                rng_state=None if rng is None else rng.bit_generator.state,
                detail={"snapshot": asked.snapshot, **detail},
            )
        )

    def failed(self, asked: Asked, error: Exception, rng: np.random.Generator) -> None:
        """The decision ended in an error, and may have drawn from the generator before."""
        self.decided(asked, (), (), None, rng, error=f"{type(error).__name__}: {error}")

    def restored(self, states: State, split_state: State, churn_state: State) -> None:
        """In the midst of a term: what is remembered from here on, as it was read late."""
        self.put(HistoryEvent("memory", "", {"states": states, "splitState": split_state, "churn": churn_state}))

    def remembered(self, states: State) -> None:
        """After a round: what strategies remember, where it is something else than after the last one."""
        if not self._is_recording:
            return
        for name, state in states.items():
            if self._states.get(name) != state and (name == churn.KEY or not _holds_columns(state)):
                self.put(StrategyState(name, state))
        self._states = states


def policies_later(laid_down: OperatorConfig) -> Any:  # noqa: ANN401 - a function of no arguments
    """The policies as they are now, in the form in which they are stored."""
    isolation, domains, groups = laid_down.isolation, laid_down.failure_domains, laid_down.anti_affinity
    return lambda: {
        "isolation": orjson.loads(encode_isolation(isolation)),
        "failureDomains": orjson.loads(encode_domains(domains)),
        "antiAffinity": orjson.loads(encode_groups(groups)),
    }


def controls_later(laid_down: OperatorConfig) -> Any:  # noqa: ANN401 - a function of no arguments
    """The controls as they are now, in the form in which they are stored."""
    controls = laid_down.controls
    return lambda: orjson.loads(encode_controls(controls))


def learned_later(laid_down: OperatorConfig) -> Any:  # noqa: ANN401 - a function of no arguments
    """What was learned, as it is now, in the form in which it is stored, but for what decides nothing."""
    learned = laid_down.learned
    return lambda: orjson.loads(encode_learned(learned and what_decides(learned)))


def _hash_later(state: State, *, always: bool) -> Any:  # noqa: ANN401 - a text, or one that is worked out when written
    """The hash of a state, unless it is a large one of which only rounds leave a hash."""
    if not always and (sum(map(_size, state.values())) > _MOST_HASHED or any(map(_holds_columns, state.values()))):
        return ""
    return Later(lambda: digest_of(state))


def _size(remembered: Mapping[str, Any]) -> int:
    return sum(len(part) for part in remembered.values() if isinstance(part, Mapping))


def _holds_columns(remembered: Mapping[str, Any]) -> bool:
    return any(isinstance(part, InColumns) for part in remembered.values())


def now_ms() -> int:
    return time.time_ns() // 1_000_000
