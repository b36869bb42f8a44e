"""`/loadbalance/strategy-state`: what strategies remember between cycles, so that a new leader does not start blind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import Field, PlainSerializer

from loadmanager.core.state import as_json
from loadmanager.wire.validation import MAX_AMOUNT, WireModel

_EpochSeconds = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class StrategyStateRecord(WireModel):
    """`states` by strategy name, each in the strategy's own form. `recently_unloaded` maps bundles to when they moved,
    and `last_unloaded` brokers to when a bundle was last taken from them: seconds since 1970.
    """

    states: Annotated[dict[str, dict[str, Any]], PlainSerializer(as_json)] = Field(default_factory=dict)
    recently_unloaded: dict[str, _EpochSeconds] = Field(default_factory=dict)
    last_unloaded: dict[str, _EpochSeconds] = Field(default_factory=dict)


def digest_of(state: Mapping[str, Mapping[str, Any]]) -> str:
    """The same for two states, by strategy name, if they are the same to the last bit, in columns or in JSON."""
    content = orjson.dumps(as_json(state), option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    return hashlib.blake2b(content, digest_size=16).hexdigest()
