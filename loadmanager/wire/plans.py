"""Bodies of `/loadbalance/v1/plans`, of drains, and of the limits on churn."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadmanager.wire.controls import Broker, Bundle
from loadmanager.wire.validation import WireModel

MOST_MOVES = 10_000


class PlannedMove(WireModel, extra="forbid"):
    """One move that an operator wants: of a bundle, whoever owns it, to a broker."""

    bundle: Bundle
    destination: Broker


class PlanRequest(WireModel, extra="forbid"):
    """What to plan: `shed` is what the next round of shedding would do, `drain` gives away all of a `broker`, and
    `moves` are the operator's own.
    """

    kind: Literal["shed", "drain", "moves"]
    broker: Broker | None = None
    moves: Annotated[list[PlannedMove], Field(min_length=1, max_length=MOST_MOVES)] | None = None

    @model_validator(mode="after")
    def _fields_fit_the_kind(self) -> Self:
        for name, given, wanted in (
            ("broker", self.broker is not None, self.kind == "drain"),
            ("moves", self.moves is not None, self.kind == "moves"),
        ):
            if given != wanted:
                raise ValueError(f"{name}: {'is needed for' if wanted else 'does not go with'} kind {self.kind}")
        named = [move.bundle for move in self.moves or ()]
        if len(set(named)) != len(named):
            raise ValueError("moves: a bundle is named twice")
        return self


class PlanStep(WireModel):
    """One step; `version` is the bundle's when the plan was made. `outcome` is planned, under_way, done, failed,
    not_begun, or unknown when it was begun, or may have been, and is for the leader to finish.
    """

    bundle: str
    version: int
    source: str
    destination: str
    reason: str
    outcome: str
    error: str | None = None


class PlanVerdict(WireModel):
    """Why something is in the plan, or is not."""

    subject: str
    reason: str
    acted: bool
    sentence: str


class PlanEffect(WireModel):
    """What is predicted. Load is bytes/s, in and out, by the short-term averages of the bundles that a broker owns; the
    imbalance is the busiest broker's load by the mean; no plan can bring it below `imbalance_lower_bound`.
    """

    imbalance_before: float
    imbalance_after: float
    imbalance_lower_bound: float
    load_moved_bytes_per_s: float
    load_moved_percent: float
    bundles_moved: int
    clients_disturbed: int


class PlanAnswer(WireModel):
    """A plan as it is kept. `state` is computed, executing, executed or stopped; `at` milliseconds since 1970."""

    hash: str
    kind: str
    state: str
    at: int
    epoch: int
    steps: list[PlanStep]
    verdicts: list[PlanVerdict]
    effect: PlanEffect


class ExecutionAnswer(WireModel):
    """What became of a plan that was executed; `reason` says why it was stopped, if it was."""

    hash: str
    executed: int
    steps: list[PlanStep]
    reason: str | None = None


class BlockedBundle(WireModel):
    """A bundle that does not leave its broker, and why."""

    bundle: str
    why: str


class DrainProgress(WireModel):
    """How far a drain is. `state` is draining, blocked (nothing that is left can leave) or done; `since` milliseconds
    since 1970. `moved`, `failed` and the rate, bundles/s of late, are counted since this leader leads; `eta_s` is null
    while nothing has moved. Of the `blocked` bundles only some are listed.
    """

    broker: str
    state: Literal["draining", "blocked", "done"]
    since: int
    bundles_left: int
    moved: int
    failed: int
    rate_per_s: float
    eta_s: int | None
    blocked: list[BlockedBundle]


class FrozenBundle(WireModel):
    """A bundle that is not shed for a time because it kept returning."""

    bundle: str
    seconds_left: int


class ChurnAnswer(WireModel):
    """The limits on churn: what shedding has moved within the hour, and returned within the window, in per cent of all
    load; and what the breaker has stopped.
    """

    thrash_percent: float
    moved_within_hour_percent: float
    shedding_stopped: bool
    shedding_stopped_seconds_left: int
    frozen_bundles: list[FrozenBundle]
