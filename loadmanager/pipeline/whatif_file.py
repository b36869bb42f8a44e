"""Scenario file of a what-if analysis: strategies, settings, fleets and seeds to try on a range of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from loadmanager.core.planning.plan_effect import UNEVEN
from loadmanager.lab.simulate.run_rules import Broker, CostModel, Count, Duration, Factor, Part, Positive, Rules
from loadmanager.lab.simulate.scenario import ScenarioBrokers
from loadmanager.wire.validation import Namespace

FEWEST_STEPS = 10
"""Minimum length of a stretch; a shorter one is left out."""

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Variant(Part):
    """Named settings."""

    name: str = Field(pattern=_NAME, description="Name in the league.")
    settings: Mapping[str, Any] = Field(default_factory=dict, description="Keys beside those of all variants.")


class FleetChanges(Part):
    """Changes to the recorded brokers and loads."""

    name: str = Field(pattern=_NAME, description="Name in the league.")
    removed: tuple[Broker, ...] = Field((), description="Brokers to remove.")
    removed_count: Count = Field(
        0, description="Number of further brokers to remove, the last ones by name; one is always kept."
    )
    added: tuple[ScenarioBrokers, ...] = Field(
        (), description="Brokers to add; without a capacity, like the first one by name."
    )
    speeds: Mapping[Broker, Positive] = Field(
        default_factory=dict, description="0.5: that broker's CPU is half as fast."
    )
    loads: Mapping[Namespace, Factor] = Field(default_factory=dict, description="2: that namespace's load is doubled.")


class WhatIf(Part):
    """Content of a scenario file."""

    name: str = Field(pattern=_NAME, description="Name.")
    about: str = Field("", max_length=2_000, description="Description, in a sentence or two.")
    begin: datetime | None = Field(None, alias="from", description="Start of the range; default: that of the history.")
    end: datetime | None = Field(None, alias="to", description="End of the range; default: that of the history.")
    stretch_s: Duration = Field(86_400, description="Length of the stretches into which the range is divided.")
    step_s: Duration = Field(60, description="Step length: loads change, and brokers measure, once per step.")
    band: float = Field(UNEVEN, ge=1, le=1000, allow_inf_nan=False, description="Imbalance above which time counts.")
    seeds: tuple[Count, ...] = Field((0,), min_length=1, max_length=1_000, description="Random seeds.")
    strategies: tuple[str, ...] = Field(
        (), description="Shedding, placement, or both as A+B; without any, by settings."
    )
    settings: Mapping[str, Any] = Field(
        default_factory=dict, description="Keys of the configuration, for all variants."
    )
    variants: tuple[Variant, ...] = Field((), description="Settings that are tried with each strategy.")
    fleets: tuple[FleetChanges, ...] = Field(
        (FleetChanges(name="as-recorded"),), min_length=1, description="Brokers and loads."
    )
    recommend_for: str = Field("", description="The fleet for which a configuration is recommended; else the first.")
    rules: Rules = Field(Rules(), description="Timing.")
    costs: CostModel | None = Field(
        None, description="Cost of load; default: the fitted cost, else that of a simulation."
    )

    @field_validator("begin", "end")
    @classmethod
    def _in_utc(cls, at: datetime | None) -> datetime | None:
        return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        for key in ("variants", "fleets"):
            _once(key, [each.name for each in getattr(self, key)])
        _once("seeds", self.seeds)
        _once("strategies", self.strategies)
        if self.begin and self.end and self.begin >= self.end:
            raise ValueError(f"from {self.begin.isoformat()}: expected a time before {self.end.isoformat()}")
        if FEWEST_STEPS * self.step_s > self.stretch_s:
            raise ValueError(f"stretchS: expected at least {FEWEST_STEPS} steps of stepS")
        if self.recommend_for and self.recommend_for not in {each.name for each in self.fleets}:
            names = ", ".join(each.name for each in self.fleets)
            raise ValueError(f"recommendFor: there is no fleet {self.recommend_for!r}; there are {names}")
        return self


def _once(key: str, given: Sequence[object]) -> None:
    twice = next((each for number, each in enumerate(given) if each in given[:number]), None)
    if twice is not None:
        raise ValueError(f"{key}: {twice!r} is there twice")
