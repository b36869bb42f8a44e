"""`/loadbalance/strategy-state`: what strategies remember between cycles, so that a new leader does not start blind."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from loadmanager.wire.validation import MAX_AMOUNT, WireModel

_EpochSeconds = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]


class StrategyStateRecord(WireModel):
    """`states` by strategy name, each in the strategy's own form. `recently_unloaded` maps bundles to when they moved,
    and `last_unloaded` brokers to when a bundle was last taken from them: seconds since 1970.
    """

    states: dict[str, dict[str, Any]] = Field(default_factory=dict)
    recently_unloaded: dict[str, _EpochSeconds] = Field(default_factory=dict)
    last_unloaded: dict[str, _EpochSeconds] = Field(default_factory=dict)
