"""Effects of moves, for the decision log and the recorded history: predicted imbalance, outcome, measured imbalance.

    began ──▶ done ──▶ measured, once both brokers have reported again
          └─▶ kept: the unload failed, or an operator cancelled the move

The prediction is for the move alone, on the last snapshot. The measurement is the imbalance of the brokers' reported
bytes/s, at the start of the move and afterwards. It includes all other load changes in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.model.fleet_load import carried_load
from loadmanager.core.model.load import THROUGHPUT_IN, THROUGHPUT_OUT, BrokerReport
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.plan_effect import MoveEffect, imbalance_of_move
from loadmanager.history.entry_rows import MoveRow
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.util import clock


@dataclass(slots=True)
class _Begun:
    """Move that is not measured yet: its row in the history, and the throughput before it."""

    row: int
    version: int
    started_ms: int
    imbalance: float
    throughput: dict[BrokerId, float]
    effect: MoveEffect


@dataclass(slots=True)
class _Awaited:
    begun: _Begun
    bundle: str
    source: BrokerId
    destination: BrokerId
    reason: str
    ended_ms: int
    silent: set[BrokerId]


class MoveRecorder:
    """Measures the effect of moves and records them. It holds the last throughput of each broker; `on_measured` is
    called with each measured effect.
    """

    def __init__(self, recorder: HistoryRecorder) -> None:
        self._recorder = recorder
        self.on_measured: Callable[[MoveEffect], None] = lambda _: None
        self._throughput: dict[BrokerId, float] = {}
        self._begun: dict[str, _Begun] = {}
        self._awaited: list[_Awaited] = []

    def forget(self) -> None:
        """Drop the unmeasured moves of the last term."""
        self._begun.clear()
        self._awaited.clear()

    def began(self, bundle: str, released: Ownership, snapshot: Snapshot) -> MoveEffect:
        """Record the start of a move and return its predicted effect; the measured effect is filled in later."""
        source, destination = (each.broker if each else None for each in (released.owner, released.destination))
        before, after = imbalance_of_move(snapshot, bundle, source, destination)
        row = snapshot.bundles.find_row(bundle)
        started_ms = clock.now_ms()
        sequence = self._recorder.put(
            MoveRow(
                kind="began",
                bundle=bundle,
                source=source,
                destination=destination,
                reason=released.reason,
                load=None if row is None else snapshot.bundles.short[row],
                imbalance_before=before,
                imbalance_after=after,
                started_ms=started_ms,
            )
        )
        concerned = [each.broker for each in (released.owner, released.destination) if each is not None]
        throughput = {broker: self._throughput.get(broker, 0.0) for broker in concerned}
        effect = MoveEffect((before, after), 0.0 if row is None else float(carried_load(snapshot)[row]))
        self._begun[bundle] = _Begun(sequence, released.version, started_ms, self._imbalance(), throughput, effect)
        return effect

    def done(self, bundle: str, released: Ownership, done: Ownership, noted: dict[str, Any]) -> MoveEffect | None:
        """Record the end of a move; `noted` holds the inputs and verdicts of the churn memory.

        Returns its effect, as far as it is known; None for a move that another leader began.
        """
        begun = self._find(bundle, released)
        ended_ms = clock.now_ms()
        source, destination = released.owner, done.owner
        ends = {"source": _encode_registration(source), "destination": _encode_registration(destination)}
        self._put_end("done", bundle, released, destination, begun, str(done.state), ended_ms, {**noted, **ends})
        if begun is not None and source is not None and destination is not None:
            brokers = {source.broker, destination.broker}
            self._awaited.append(
                _Awaited(begun, bundle, source.broker, destination.broker, released.reason, ended_ms, brokers)
            )
        return None if begun is None else begun.effect

    def kept(self, bundle: str, released: Ownership, outcome: str, error: str) -> None:
        """Record that the owner keeps the bundle."""
        begun, detail = self._find(bundle, released), {"error": error}
        self._put_end("kept", bundle, released, released.destination, begun, outcome, clock.now_ms(), detail)

    def _put_end(
        self,
        kind: str,
        bundle: str,
        released: Ownership,
        destination: Registration | None,
        begun: _Begun | None,
        outcome: str,
        ended_ms: int,
        detail: dict[str, Any],
    ) -> None:
        self._recorder.put(
            MoveRow(
                kind=kind,
                bundle=bundle,
                source=released.owner.broker if released.owner else None,
                destination=destination.broker if destination else None,
                reason=released.reason,
                started_ms=None if begun is None else begun.started_ms,
                ended_ms=ended_ms,
                outcome=outcome,
                move=None if begun is None else begun.row,
                detail=detail,
            )
        )

    def reported(self, registration: Registration, report: BrokerReport) -> None:
        """Store the throughput of a report, and measure the moves that waited only for this broker."""
        self._throughput[registration.broker] = float(report.load[THROUGHPUT_IN] + report.load[THROUGHPUT_OUT])
        if not self._awaited:
            return
        for awaited in self._awaited:
            awaited.silent.discard(registration.broker)
        measured = [awaited for awaited in self._awaited if not awaited.silent]
        if measured:
            self._awaited = [awaited for awaited in self._awaited if awaited.silent]
            imbalance = self._imbalance()
            for awaited in measured:
                self._record_effect(awaited, imbalance)

    def broker_gone(self, broker: BrokerId) -> None:
        """Drop the moves from or to a broker that has left: they can no longer be measured."""
        self._throughput.pop(broker, None)
        self._awaited = [each for each in self._awaited if broker not in (each.source, each.destination)]

    def _record_effect(self, awaited: _Awaited, imbalance: float) -> None:
        begun = awaited.begun
        throughput = {
            broker: (before, self._throughput.get(broker, 0.0)) for broker, before in begun.throughput.items()
        }
        begun.effect.measured, begun.effect.measured_at_ms = (begun.imbalance, imbalance), clock.now_ms()
        begun.effect.source = throughput.get(awaited.source)
        begun.effect.destination = throughput.get(awaited.destination)
        self.on_measured(begun.effect)
        self._recorder.put(
            MoveRow(
                kind="measured",
                bundle=awaited.bundle,
                source=awaited.source,
                destination=awaited.destination,
                reason=awaited.reason,
                imbalance_before=begun.imbalance,
                imbalance_after=imbalance,
                started_ms=begun.started_ms,
                ended_ms=awaited.ended_ms,
                move=begun.row,
                detail={"throughput": throughput},
            )
        )

    def _find(self, bundle: str, released: Ownership) -> _Begun | None:
        """Return the start of this move; None if another leader began it."""
        begun = self._begun.pop(bundle, None)
        return begun if begun is not None and begun.version == released.version else None

    def _imbalance(self) -> float:
        total = sum(self._throughput.values())
        return max(self._throughput.values()) * len(self._throughput) / total if total > 0 else 1.0


def _encode_registration(registration: Registration | None) -> list[Any] | None:
    return None if registration is None else [registration.broker, registration.incarnation]
