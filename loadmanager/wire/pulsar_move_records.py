"""Moves under way beside a Pulsar, in `/loadbalance/pulsar/moves`, for the next leader; our own JSON."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.protocol.pulsar_moves import MoveHistory, PendingMove
from loadmanager.wire.control_records import Broker, Bundle, Milliseconds
from loadmanager.wire.validation import MAX_COUNT, parse_json

_MS = 1000
_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class MoveData(TypedDict):
    """A move; without a destination Pulsar places the bundle. `own`: requested by shedding, not by an operator."""

    source: Broker
    destination: NotRequired[Broker]
    beganAt: Milliseconds
    own: bool


@with_config(_STRICT)
class ActsData(TypedDict, total=False):
    """See `core.protocol.pulsar_moves.Acts`; times in milliseconds since 1970."""

    underWay: dict[Bundle, MoveData]
    began: list[Milliseconds]
    touched: dict[Broker, Milliseconds]
    failures: Annotated[int, Field(ge=0, le=MAX_COUNT)]


_ADAPTER = TypeAdapter(ActsData)


def decode_acts(data: bytes, where: str) -> MoveHistory:
    """Decode the record; raises `InvalidRecordError`, which names `where` and the faulty field."""
    content = parse_json(_ADAPTER, data, where)
    return MoveHistory(
        {bundle: _move_of(move) for bundle, move in content.get("underWay", {}).items()},
        tuple(ms / _MS for ms in content.get("began", ())),
        {BrokerId(broker): ms / _MS for broker, ms in content.get("touched", {}).items()},
        content.get("failures", 0),
    )


def encode_acts(acts: MoveHistory) -> bytes:
    content = ActsData(
        underWay={bundle: _data_of(move) for bundle, move in sorted(acts.under_way.items())},
        began=[round(at_s * _MS) for at_s in acts.began_s],
        touched={broker: round(at_s * _MS) for broker, at_s in sorted(acts.touched_s.items())},
        failures=acts.failures,
    )
    return _ADAPTER.dump_json(content)


def _move_of(move: MoveData) -> PendingMove:
    destination = move.get("destination")
    return PendingMove(
        BrokerId(move["source"]),
        None if destination is None else BrokerId(destination),
        move["beganAt"] / _MS,
        move["own"],
    )


def _data_of(move: PendingMove) -> MoveData:
    data = MoveData(source=move.source, beganAt=round(move.began_s * _MS), own=move.is_own)
    if move.destination is not None:
        data["destination"] = move.destination
    return data
