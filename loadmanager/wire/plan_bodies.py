"""Bodies of `/loadbalance/v1/plans`, of drains, and of the churn limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from loadmanager.core.domain.plan import Verdict
from loadmanager.core.planning.certificate.plan_certificate import CertificateSummary, DecidedRound
from loadmanager.core.planning.headroom import Loss
from loadmanager.core.planning.plan_effect import Effect
from loadmanager.core.protocol.plan_machine import KeptPlan, TrackedStep
from loadmanager.wire.control_records import Broker, Bundle
from loadmanager.wire.validation import WireModel

MOST_MOVES = 10_000


class PlannedMove(WireModel, extra="forbid"):
    """A move that an operator requests: of a bundle, whoever owns it, to a broker."""

    bundle: Bundle
    destination: Broker


class PlanRequest(WireModel, extra="forbid"):
    """Request for a plan: `shed` is the next shedding round, `drain` empties a `broker`, and `moves` are given by the
    operator.
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
    """A step; `version` is that of the bundle when the plan was made. `outcome` is planned, in_progress, done, failed
    or not_begun; unknown if it has or may have begun, and is left to the leader. A computed plan also has the bundle's
    load, producers and consumers.
    """

    bundle: str
    version: int
    source: str
    destination: str
    reason: str
    outcome: str
    error: str | None = None
    load_bytes_per_s: float | None = None
    clients: int | None = None

    @classmethod
    def of(cls, step: TrackedStep, effect: Effect | None = None) -> PlanStep:
        load, clients = (None, None) if effect is None else effect.by_bundle.get(step.bundle, (None, None))
        return cls(
            bundle=step.bundle,
            version=step.version,
            source=step.source.broker,
            destination=step.destination.broker,
            reason=step.reason.value,
            outcome=step.state,
            error=step.error,
            load_bytes_per_s=load,
            clients=clients,
        )


class PlanVerdict(WireModel):
    """Reason why a step is in the plan, or is not."""

    subject: str
    reason: str
    acted: bool
    sentence: str

    @classmethod
    def of(cls, verdict: Verdict) -> PlanVerdict:
        return cls(
            subject=verdict.subject, reason=verdict.verdict.value, acted=verdict.acted, sentence=verdict.sentence()
        )


class PlanBrokers(WireModel):
    """Columns: the load of each broker before the plan and after it, in bytes/s."""

    id: list[str]
    before: list[float]
    after: list[float]

    @classmethod
    def of(cls, effect: Effect) -> PlanBrokers:
        loads = effect.by_broker.values()
        return cls(
            id=list(effect.by_broker), before=[before for before, _ in loads], after=[after for _, after in loads]
        )


class PlanEffect(WireModel):
    """Predicted effect. Load is bytes/s, in and out, by the short-term averages of a broker's bundles; the imbalance is
    the highest over the mean.
    """

    imbalance_before: float
    imbalance_after: float
    load_moved_bytes_per_s: float
    load_moved_percent: float
    bundles_moved: int
    clients_disturbed: int

    @classmethod
    def of(cls, effect: Effect) -> PlanEffect:
        return cls(
            imbalance_before=effect.imbalance_before,
            imbalance_after=effect.imbalance_after,
            load_moved_bytes_per_s=effect.load_moved,
            load_moved_percent=100 * effect.share_moved,
            bundles_moved=effect.bundles_moved,
            clients_disturbed=effect.clients_disturbed,
        )


class PlanCertificate(WireModel):
    """Distance of the plan from the best possible one. Heats are the usage of the most used broker over `level`, the
    usage of all if load were divisible. `bound` is the lower bound of any assignment, caused by `bound_by`;
    `bound_in_budget` that of plans that move no more load; `noise_floor` the heat of a perfect assignment with noise.
    `gap` is heat over bound, `load_gap` the moved load over the least load for that heat, null if that is 0.
    """

    level: float
    heat_before: float
    heat_after: float
    bound: float
    bound_by: str
    bound_in_budget: float
    noise_floor: float
    gap: float
    load_moved_percent: float
    least_load_percent: float
    load_gap: float | None
    bundles_moved: int
    least_bundles: int
    sentence: str

    @classmethod
    def of(cls, certificate: CertificateSummary) -> PlanCertificate:
        figures = certificate.figures
        return cls(
            **asdict(figures),
            bound_by=certificate.bound_by,
            gap=figures.gap,
            load_moved_percent=100 * figures.load_moved,
            least_load_percent=100 * figures.least_load,
            load_gap=figures.load_gap,
            sentence=certificate.verdict.sentence(),
        )


class LossAnswer(WireModel):
    """Loss of this broker or failure domain: the highest usage of the others, as a lower bound (`bound_percent`) and
    after placement (`placed_percent`), and the number of bundles that no broker could own.
    """

    lost: str
    bound_percent: float
    placed_percent: float
    stranded: int
    is_borne: bool

    @classmethod
    def of(cls, loss: Loss | None) -> LossAnswer | None:
        if loss is None:
            return None
        return cls(
            lost=loss.lost,
            bound_percent=100 * loss.bound,
            placed_percent=100 * loss.placed,
            stranded=loss.stranded,
            is_borne=loss.is_borne,
        )


class BalanceAnswer(WireModel):
    """Balance of the cluster now, and after the last shedding round of this term, if any; and the worst loss of a
    broker, and of a failure domain, if other brokers would remain.
    """

    now: PlanCertificate
    last_round: PlanCertificate | None
    worst_broker_loss: LossAnswer | None
    worst_domain_loss: LossAnswer | None

    @classmethod
    def of(cls, now: DecidedRound, last: DecidedRound | None) -> BalanceAnswer:
        reserve = now.reserve()
        return cls(
            now=PlanCertificate.of(now.certified()),
            last_round=None if last is None else PlanCertificate.of(last.certified()),
            worst_broker_loss=LossAnswer.of(reserve.broker),
            worst_domain_loss=LossAnswer.of(reserve.domain),
        )


class PlanAnswer(WireModel):
    """A kept plan. `state` is computed, executing, executed or stopped; `at` is in milliseconds since 1970."""

    hash: str
    kind: str
    state: str
    at: int
    epoch: int
    steps: list[PlanStep]
    verdicts: list[PlanVerdict]
    effect: PlanEffect
    brokers: PlanBrokers
    certificate: PlanCertificate

    @classmethod
    def of(cls, plan: KeptPlan) -> PlanAnswer:
        return cls(
            hash=plan.hash,
            kind=plan.kind,
            state=plan.state,
            at=plan.at_ms,
            epoch=plan.epoch,
            steps=[PlanStep.of(step, plan.effect) for step in plan.steps],
            verdicts=[PlanVerdict.of(verdict) for verdict in plan.verdicts],
            effect=PlanEffect.of(plan.effect),
            brokers=PlanBrokers.of(plan.effect),
            certificate=PlanCertificate.of(plan.certificate),
        )


class ListedPlan(WireModel):
    """A plan in a list: the number of moved bundles and of steps `done`, the predicted imbalance before and after, and
    the reason if it was stopped.
    """

    hash: str
    kind: str
    state: str
    at: int
    bundles_moved: int
    done: int
    imbalance_before: float
    imbalance_after: float
    reason: str | None

    @classmethod
    def of(cls, plan: KeptPlan) -> ListedPlan:
        return cls(
            hash=plan.hash,
            kind=plan.kind,
            state=plan.state,
            at=plan.at_ms,
            bundles_moved=plan.effect.bundles_moved,
            done=plan.done,
            imbalance_before=plan.effect.imbalance_before,
            imbalance_after=plan.effect.imbalance_after,
            reason=plan.stopped_by,
        )


class PlansAnswer(WireModel):
    """`GET /loadbalance/v1/plans`: the plans that the leader keeps, newest first."""

    plans: list[ListedPlan]


class ExecutionAnswer(WireModel):
    """Outcome of an executed plan; `reason` is set if it was stopped."""

    hash: str
    executed: int
    steps: list[PlanStep]
    reason: str | None = None

    @classmethod
    def of(cls, plan: KeptPlan) -> ExecutionAnswer:
        steps = [PlanStep.of(step) for step in plan.steps]
        return cls(hash=plan.hash, executed=plan.done, steps=steps, reason=plan.stopped_by)


class BlockedBundle(WireModel):
    """A bundle that cannot leave its broker, with the reason."""

    bundle: str
    why: str


class DrainProgress(WireModel):
    """Progress of a drain. `state` is draining, blocked (no remaining bundle can leave), done, or returning:
    `bundles_left` are not back at the restarted broker yet. `since` is in milliseconds since 1970. `moved`, `failed`
    and the recent rate in bundles/s count from the start of this leader's term; `eta_s` is null while nothing has
    moved. `blocked` lists only some bundles.
    """

    broker: str
    state: Literal["draining", "blocked", "done", "returning"]
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
    """Churn in per cent of all load: moved by shedding within the hour, moved again within two hours, and moved back
    within four; and what the breaker has stopped.
    """

    moved_within_hour_percent: float
    moved_again_percent: float
    moved_back_percent: float
    shedding_stopped: bool
    shedding_stopped_seconds_left: int
    frozen_bundles: list[FrozenBundle]
