"""State of strategies in `/loadbalance/strategy-state`, so that a new leader continues where the last one stopped."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import orjson
from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    with_config,
)
from pydantic_core import InitErrorDetails, from_json, to_json
from typing_extensions import TypedDict

from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.dump_line import Name, StrategyStates
from loadmanager.wire.validation import STRICT, Amount, WireModel, describe

_EpochSeconds = Amount
_Move = Annotated[
    tuple[_EpochSeconds, Name, Name, int, Amount, bool, _EpochSeconds | None, _EpochSeconds | None],
    Strict(strict=False),
]


@with_config(STRICT)
class ChurnMemory(TypedDict, total=False):
    """See `core.planning.churn.MoveMemory`."""

    moves: list[_Move]
    frozenUntilS: dict[Name, _EpochSeconds]
    stoppedUntilS: _EpochSeconds


@with_config(STRICT)
class ChurnState(TypedDict, total=False):
    memory: ChurnMemory


@with_config(STRICT)
class RememberedStates(StrategyStates, total=False):
    """Memory of strategies, of the split rule, and of the churn limits."""

    churn: ChurnState


_REMEMBERED: TypeAdapter[RememberedStates] = TypeAdapter(RememberedStates)

_STORED = object()
"""Validation context of a state that was read from a znode, in contrast to the memory of this process."""

_Where = tuple[str | int, ...]


def _validate_stored(states: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
    """Validate states from a znode: each must have its strategy's form, with finite numbers only."""
    if info.context is _STORED:
        wrong = [
            InitErrorDetails(type="finite_number", loc=where, input=figure)
            for where, figure in _not_finite(_REMEMBERED.validate_python(states), ())
        ]
        if wrong:
            raise ValidationError.from_exception_data("states", wrong)
    return states


def _not_finite(value: object, where: _Where) -> Iterator[tuple[_Where, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield where, value
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        yield from _not_finite(part, (*where, key))


class StrategyStateRecord(WireModel):
    """State by strategy name, each in the strategy's own form. `recently_unloaded` maps bundles to the time of their
    move, and `last_unloaded` brokers to the time of the last move from them: seconds since 1970.
    """

    states: Annotated[dict[str, dict[str, Any]], AfterValidator(_validate_stored), PlainSerializer(as_json)] = Field(
        default_factory=dict
    )
    recently_unloaded: dict[str, _EpochSeconds] = Field(default_factory=dict)
    last_unloaded: dict[str, _EpochSeconds] = Field(default_factory=dict)


def parse_strategy_state(data: bytes, where: str) -> tuple[StrategyStateRecord, InvalidRecordError | None]:
    """Parse the record without its faulty parts, and return the fault. A strategy with a faulty state starts without
    one; the memory of others, above all of the breaker, is kept.

    Raises `InvalidRecordError` if it is not a record of this kind.
    """
    faults: list[str] = []
    while True:
        try:
            record = StrategyStateRecord.model_validate_json(data, context=_STORED)
        except ValidationError as error:
            faults.append(describe(error))
            rest = _without_faults(data, error)
            if rest is None:
                raise InvalidRecordError(f"{where}: {faults[-1]}") from None
            data = rest
        else:
            return record, InvalidRecordError(f"{where}: {'; '.join(faults)}") if faults else None


def _without_faults(data: bytes, error: ValidationError) -> bytes | None:
    """Return the record without faulty states and timestamps; None if something else is faulty."""
    faulty = {fault["loc"][:2] for fault in error.errors(include_url=False)}
    if any(len(where) < 2 for where in faulty):  # noqa: PLR2004 - a field, and a name in it
        return None
    content = from_json(data)
    for field, name in faulty:
        del content[field][name]
    return to_json(content)


def digest_of(state: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a digest of states by strategy name. Equal states have equal digests, in columns or in JSON."""
    content = orjson.dumps(as_json(state), option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    return hashlib.blake2b(content, digest_size=16).hexdigest()
