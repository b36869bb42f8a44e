"""Recorder of the leader's history: a checkpoint, then every input in the order of its application, and every decision
with its inputs. Queries read it: a bounded queue with a thread of its own, and bundle lineage.

A replay applies the inputs to a model and repeats each decision: see `lab.replay.replayer`. Recording only queues
references to immutable values; the writer thread encodes them. A node that does not lead, or has no history, records
nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
import structlog

from loadmanager.config.dynamic_settings import OF_THE_NODE, values_as_text
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.model.report_validation import ReportFaults
from loadmanager.core.model.snapshot_builder import ModelCheckpoint
from loadmanager.core.planning.planner import State
from loadmanager.errors import HistoryError, HistoryFileError, NotFoundError
from loadmanager.history.bundle_lineage import read_lineage
from loadmanager.history.entry_rows import Decision, Entry, HistoryEvent
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.writer import NOT_RECORDED, HistoryWriter, WriterFigures
from loadmanager.leader.mirror.cluster_mirror import OperatorConfig
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.util import clock
from loadmanager.wire.checkpoint_codec import Later, Record, faults_as_json, head_of, parts_of
from loadmanager.wire.control_records import encode_controls
from loadmanager.wire.learned_records import encode_learned, without_unproved_profiles
from loadmanager.wire.lineage_bodies import BundleLineage
from loadmanager.wire.policy_records import encode_domains, encode_groups, encode_isolation

log = structlog.get_logger(__name__)

_CLOSE_S = 5.0
"""Shutdown timeout for writing the last rows, and a second time for the exit of the thread."""


class Model(Protocol):
    """The cluster model, as a checkpoint reads it."""

    def checkpoint(self) -> ModelCheckpoint: ...

    def records(self) -> dict[str, Record]: ...

    def faults(self) -> ReportFaults: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Unfinished decision: its snapshot, its settings, and its start on the monotonic clock."""

    kind: str
    snapshot: int
    settings_id: str
    at_s: float


class HistoryRecorder:
    """Records inputs and decisions of this node while it leads; without a `writer` it records nothing.

    Call `begin_term` after the take-over, before the first decision.
    """

    def __init__(
        self, live: LiveSettings, operator_config: OperatorConfig, writer: HistoryWriter | None = None
    ) -> None:
        self._live = live
        self._operator_config = operator_config
        self._writer = writer
        self._is_recording = False
        self._cycle = 0
        self.last_snapshot = NOT_RECORDED
        """Sequence number of the last snapshot in the history."""
        self.settings_id = ""

    @property
    def is_on(self) -> bool:
        """True if the node has a history to record in."""
        return self._writer is not None

    @property
    def is_recording(self) -> bool:
        return self._is_recording

    @property
    def figures(self) -> WriterFigures:
        return WriterFigures() if self._writer is None else self._writer.figures

    def start(self) -> None:
        """Start the writer thread."""
        if self._writer is not None:
            self._writer.start()

    def flush(self, timeout_s: float) -> bool:
        """Write everything recorded so far; blocks, and returns False if that took longer than `timeout_s`."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write the remaining rows, within seconds; blocks."""
        if self._writer is not None:
            self._writer.close(timeout_s=_CLOSE_S)

    def put(self, entry: Entry, at_ms: int | None = None) -> int:
        """Record an entry, at `at_ms` or now, and return its sequence number; -1 on a node that does not record."""
        if not self._is_recording or self._writer is None:
            return NOT_RECORDED
        return self._writer.put(clock.now_ms() if at_ms is None else at_ms, entry)

    def begin_term(self, epoch: int, node_id: str, model: Model, memory: Mapping[str, Any]) -> None:
        """Begin to record, with a checkpoint of the model and `PlannerService.memory_now`."""
        if self._writer is None:
            return
        self._writer.begin_term(epoch, clock.now_ms())
        self._is_recording = True
        self._cycle = 0
        self.put(HistoryEvent("leader_elected", node_id, {"epoch": epoch}))
        self.checkpoint(model, memory)

    def end_term(self, reason: str) -> None:
        if self._writer is None or not self._is_recording:
            return
        self.put(HistoryEvent("leader_lost", reason))
        self._is_recording = False
        self._writer.end_term(clock.now_ms())

    def checkpoint(self, model: Model, memory: Mapping[str, Any]) -> None:
        """Record everything that decisions depend on. The last snapshot is not part of it."""
        if not self._is_recording:
            return
        self.last_snapshot = NOT_RECORDED
        settings = self._settings()
        checkpoint = model.checkpoint()
        parts = list(parts_of(checkpoint, model.records()))
        head = {
            **head_of(checkpoint),
            "parts": len(parts),
            "settingsId": self.settings_id,
            "settings": settings,
            **{kind: self._config_later(kind) for kind in _CONFIG},
            "faults": faults_as_json(model.faults()),
            **memory,
        }
        self.put(HistoryEvent("checkpoint", "", head))
        for holds, content in parts:
            self.put(HistoryEvent("checkpoint_part", holds, content))

    def config_changed(self, kind: str) -> None:
        """Record the current `policies`, `controls` or `learned` loads of operators."""
        self.put(HistoryEvent(kind, "", self._config_later(kind)))

    def _config_later(self, kind: str) -> Later:
        config = replace(self._operator_config)
        return Later(lambda: _CONFIG[kind](config))

    def configured(self) -> None:
        """Record the settings if they have changed."""
        before = self.settings_id
        settings = self._settings()
        if self.settings_id != before:
            self.put(HistoryEvent("configuration", self.settings_id, settings))

    def _settings(self) -> Mapping[str, str]:
        texts = values_as_text(self._live.current)
        texts = {key: text for key, text in texts.items() if key not in OF_THE_NODE}
        self.settings_id = hashlib.sha256(orjson.dumps(texts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
        return texts

    def record_snapshot(self, taken_at_s: float, grace_period_s: float) -> None:
        self.last_snapshot = self.put(HistoryEvent("snapshot", "", {"atS": taken_at_s, "gracePeriodS": grace_period_s}))

    def ask(self, kind: str) -> Asked:
        """Begin a decision on the last snapshot."""
        return Asked(kind, self.last_snapshot, self.settings_id, time.monotonic())

    def begin(self, kind: str) -> Asked:
        """Begin a decision that runs concurrently with others, and record that it starts from the current memory."""
        self.put(HistoryEvent("decision_began", kind, {"snapshot": self.last_snapshot}))
        return self.ask(kind)

    def decided(
        self,
        asked: Asked,
        steps: Sequence[Assign | Unload | Mapping[str, Any]],
        verdicts: Sequence[Verdict],
        rng: np.random.Generator | None = None,
        **detail: Any,  # noqa: ANN401 - the arguments of the decision
    ) -> None:
        """Record a decision; `rng` is the generator after it, for decisions that may draw random numbers."""
        if not self._is_recording:
            return
        self._cycle += asked.kind == "shed"
        self.put(
            Decision(
                kind=asked.kind,
                cycle=self._cycle,
                settings_id=asked.settings_id,
                duration_ms=(time.monotonic() - asked.at_s) * 1000,
                steps=steps,
                verdicts=verdicts,
                rng_state=None if rng is None else rng.bit_generator.state,
                detail={"snapshot": asked.snapshot, **detail},
            )
        )

    def failed(self, asked: Asked, error: Exception, rng: np.random.Generator) -> None:
        """Record a decision that raised an error, possibly after it had drawn from `rng`."""
        self.decided(asked, (), (), rng, error=f"{type(error).__name__}: {error}")

    def restored(self, states: State, split_state: State, churn_state: State) -> None:
        """Record memory that was read after the term had begun."""
        self.put(HistoryEvent("memory", "", {"states": states, "splitState": split_state, "churn": churn_state}))


def _policies_as_json(operator_config: OperatorConfig) -> dict[str, Any]:
    return {
        "isolation": orjson.loads(encode_isolation(operator_config.isolation)),
        "failureDomains": orjson.loads(encode_domains(operator_config.failure_domains)),
        "antiAffinity": orjson.loads(encode_groups(operator_config.anti_affinity)),
    }


def _controls_as_json(operator_config: OperatorConfig) -> Any:  # noqa: ANN401 - JSON
    return orjson.loads(encode_controls(operator_config.controls))


def _learned_as_json(operator_config: OperatorConfig) -> Any:  # noqa: ANN401 - JSON
    """Encode the learned loads without the fields that no decision uses."""
    learned = operator_config.learned
    return orjson.loads(encode_learned(learned and without_unproved_profiles(learned)))


_CONFIG = {"policies": _policies_as_json, "controls": _controls_as_json, "learned": _learned_as_json}
"""Encoders of operator config, by the kind of the event that records it."""


_Found = TypeVar("_Found")

MOST_WAITING = 32


class HistoryQueries:
    """Runs reads of the recorded history in a thread of its own, with a bounded queue.

    A read may cover hours of files. Repeated reads must not occupy the default executor, which resolves host names.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "history")
        self._asked = 0

    async def run(self, read: Callable[..., _Found], *given: object) -> _Found:
        """Return what `read` returns, or raise what it raises; `HistoryError` when too many callers wait already."""
        if self._asked > MOST_WAITING:
            raise HistoryError(f"{MOST_WAITING} reads of the history are waiting already; try again later")
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, read, *given)
        finally:
            self._asked -= 1


_FLUSH_S = 2.0
"""Timeout for writing rows that still wait for the recorder, before a read."""


class LineageReader:
    """Reads bundle lineage."""

    def __init__(self, history_url: str, recorder: HistoryRecorder) -> None:
        self._history_url = history_url
        self._recorder = recorder
        self._readings = HistoryQueries()

    async def of(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        """Return the newest entries of a bundle's lineage in a time range.

        Raises `NotFoundError` on a node without a history, `HistoryError` if it cannot be read.
        """
        if not self._recorder.is_on:
            raise NotFoundError(
                "nothing is recorded: set historyUrl; recent decisions are in"
                f" `loadmanager admin decisions --bundle {name}`"
            )
        return await self._readings.run(self._tell, name, since_ms, until_ms, limit)

    def _tell(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        self._recorder.flush(_FLUSH_S)
        history = History(Directory.of(self._history_url))
        return read_lineage(history, name, since_ms, until_ms, limit, _note)


def _note(fault: HistoryFileError) -> None:
    log.warning("history_file_left_out", error=str(fault))
