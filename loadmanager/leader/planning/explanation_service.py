"""Explanation service: explanations of decisions, with their inputs and the age of the inputs."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from loadmanager.core.diagnosis.explanation import (
    BundleExplained,
    DecisionInput,
    explain_broker,
    explain_bundle,
    why_not,
)
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.model.learned_loads import LearnedLoads
from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.errors import InvalidRecordError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.wire.explain_bodies import (
    BrokerExplanation,
    BundleExplanation,
    ExplainedLoad,
    ExplainedOwnership,
    ExplainInputs,
    LoadFigures,
    Obstacle,
    RoundMove,
    UsagePercentages,
    WhyNotExplanation,
)
from loadmanager.wire.http_bodies import DecisionEntry

_DECISIONS = 10
"""Last decisions about a subject that are included."""
_MS = 1000
_PERCENT = 100


class ExplanationService:
    """Explains decisions on the leader, in the queue of previews; changes nothing.

    Each explanation may also raise `TooManyPreviewsError`.
    """

    def __init__(self, mirror: ClusterMirror, planner: PlannerService, decision_log: DecisionLog) -> None:
        self._mirror = mirror
        self._planner = planner
        self._decision_log = decision_log

    async def bundle(self, name: BundleName) -> BundleExplanation:
        """Explain a bundle. Raises `NamespaceNotFoundError`, `BundleNotFoundError`, `InvalidRecordError`."""
        async with self._planner.previews.turn() as worker:
            situation = self._planner.look()
            ownership, inputs = self._about_bundle(name, situation)
            short_samples, long_samples = self._mirror.model.count_samples(str(name))
            explained = await worker.run(explain_bundle, situation, str(name))
        return BundleExplanation(
            bundle=str(name),
            inputs=inputs,
            ownership=ownership,
            load=_load(name, explained, short_samples, long_samples, situation.snapshot.learned),
            shedding=explained.shedding,
            placement=explained.placement,
            decisions=self._decisions(str(name)),
        )

    async def broker(self, broker: BrokerId) -> BrokerExplanation:
        """Explain a broker. Raises `BrokerNotFoundError`; `InvalidRecordError` when its record cannot be read."""
        async with self._planner.previews.turn() as worker:
            self._mirror.get_registration(broker)
            situation = self._planner.look()
            if situation.snapshot.brokers.find_row(broker) is None:
                raise InvalidRecordError(f"the record of broker {broker} cannot be read")
            explained = await worker.run(explain_broker, situation, broker)
        return BrokerExplanation(
            broker_id=broker,
            inputs=self._inputs(situation, broker),
            usage_percent=explained.usage * _PERCENT,
            resources=_resources(explained.usage_percent),
            standing=explained.standing,
            is_settled=explained.is_settled,
            shedding_strategy=explained.strategy,
            thresholds=dict(explained.thresholds),
            would_shed=[
                RoundMove(bundle=step.bundle, destination=step.destination.broker if step.destination else None)
                for step in explained.steps
            ],
            verdicts=explained.verdicts,
            certificate=explained.certificate,
            margin=explained.margin,
            takes_bundles=not explained.obstacles,
            is_overloaded=explained.is_overloaded,
            obstacles=explained.obstacles,
            bundles_wait_s=explained.waits_s,
            decisions=self._decisions(broker),
        )

    async def why_not(self, name: BundleName, broker: BrokerId) -> WhyNotExplanation:
        """Explain why a broker does not get a bundle. Raises as `bundle`, and `BrokerNotFoundError`."""
        async with self._planner.previews.turn() as worker:
            self._mirror.get_registration(broker)
            situation = self._planner.look()
            ownership, inputs = self._about_bundle(name, situation)
            explained = await worker.run(why_not, situation, str(name), broker)
        return WhyNotExplanation(
            bundle=str(name),
            broker_id=broker,
            inputs=inputs,
            ownership=ownership,
            answer=explained.verdict,
            obstacles=[
                Obstacle.model_validate(verdict).model_copy(update={"is_preference": is_preference})
                for verdict, is_preference in explained.obstacles
            ],
            placement=explained.placement,
            standings=explained.standings,
            shedding=explained.shedding,
            decisions=self._decisions(str(name)),
        )

    def _about_bundle(self, name: BundleName, situation: DecisionInput) -> tuple[ExplainedOwnership, ExplainInputs]:
        ownership = self._mirror.get_ownership(name)
        owner = ownership.owner.broker if ownership.owner else None
        inputs = self._inputs(situation, owner)
        if _is_reported(situation.snapshot, str(name)):
            inputs = inputs.model_copy(update={"sample_age_s": inputs.report_age_s})
        return _ownership(ownership, situation.snapshot.taken_at_s), inputs

    def _inputs(self, situation: DecisionInput, broker: BrokerId | None) -> ExplainInputs:
        snapshot = situation.snapshot
        row = None if broker is None else snapshot.brokers.find_row(broker)
        age_s = None if row is None else snapshot.taken_at_s - int(snapshot.brokers.last_update_ms[row]) / _MS
        return ExplainInputs(
            epoch=self._mirror.epoch,
            revision=snapshot.revision,
            taken_at=round(snapshot.taken_at_s * _MS),
            dry_run=snapshot.controls.dry_run,
            report_age_s=age_s,
        )

    def _decisions(self, subject: str) -> list[DecisionEntry]:
        return [DecisionEntry.model_validate(entry) for entry in self._decision_log.recent(_DECISIONS, subject)]


def _is_reported(snapshot: Snapshot, bundle: str) -> bool:
    row = snapshot.bundles.find_row(bundle)
    return row is not None and int(snapshot.bundles.broker[row]) >= 0


def _ownership(ownership: Ownership, now_s: float) -> ExplainedOwnership:
    return ExplainedOwnership(
        state=ownership.state.value,
        owner=ownership.owner.broker if ownership.owner else None,
        incarnation=ownership.owner.incarnation if ownership.owner else None,
        destination=ownership.destination.broker if ownership.destination else None,
        version=ownership.version,
        epoch=ownership.epoch,
        reason=ownership.reason,
        age_s=now_s - ownership.since_ms / _MS if ownership.since_ms else None,
    )


def _load(
    name: BundleName, explained: BundleExplained, short_samples: int, long_samples: int, learned: LearnedLoads
) -> ExplainedLoad:
    return ExplainedLoad(
        short_term=_figures(explained.short),
        long_term=_figures(explained.long),
        short_samples=short_samples,
        long_samples=long_samples,
        topics=explained.topics,
        share_of_broker_percent=explained.share_of_broker * _PERCENT,
        share_of_cluster_percent=explained.share_of_cluster * _PERCENT,
        taken_from=None if long_samples else _find_source(str(name.namespace), learned),
    )


def _find_source(namespace: str, learned: LearnedLoads) -> str | None:
    """Describe the source of the load assumed for a bundle without history; None for the default load."""
    if namespace not in learned.loads:
        return None
    day = datetime.fromtimestamp(learned.at_ms / _MS, UTC).date().isoformat()
    return f"load taken from what was learned of namespace {namespace} on {day}, run {learned.run}"


def _figures(load: FloatArray) -> LoadFigures:
    return LoadFigures(**dict(zip(LoadFigures.model_fields, load.tolist(), strict=True)))


def _resources(percent: FloatArray) -> UsagePercentages:
    known = [None if math.isnan(each) else each for each in percent.tolist()]
    return UsagePercentages(**dict(zip(UsagePercentages.model_fields, known, strict=True)))
