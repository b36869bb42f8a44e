"""First verdict on a Pulsar: its imbalance, its own rounds, the moves of Level, and the next commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadmanager.config.node_settings import Settings
from loadmanager.core.diagnosis.pulsar_comparison import ComparedRounds, ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import PeriodTotals, UsageLevel
from loadmanager.core.domain.plan import Plan, Unload, Verdict
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.plan_effect import Effect, compute_effect
from loadmanager.core.planning.planner import plan_shedding
from loadmanager.pulsar.activity_log import as_record, format_level, round_figure

CONFIGURATION = "overrides: {loadBalancerLoadSheddingStrategy: Level, loadBalancerLoadPlacementStrategy: Level}"
_STRATEGIES = ("load_balancer_load_shedding_strategy", "load_balancer_load_placement_strategy")


@dataclass(frozen=True, slots=True)
class LevelBenefit:
    """Effect of a round of Level. `idle` are brokers that own no bundle. `reason` is the verdict on the broker with the
    most traffic.
    """

    effect: Effect
    idle: tuple[str, ...]
    reason: str

    @property
    def pays(self) -> bool:
        return self.effect.bundles_moved > 0 and self.effect.imbalance_after < self.effect.imbalance_before


def find_benefit(snapshot: Snapshot, settings: Settings) -> LevelBenefit:
    """Plan a round of Level, whatever strategy is configured."""
    level = settings.model_copy(update=dict.fromkeys(_STRATEGIES, "Level"))
    plan, _ = plan_shedding(snapshot, level.planner_settings(), {}, np.random.default_rng(0))
    effect = compute_effect(snapshot, plan.steps)
    owners = set(snapshot.bundles.broker.tolist())
    idle = tuple(broker for row, broker in enumerate(snapshot.brokers.ids) if row not in owners)
    busiest = max(effect.by_broker, key=lambda broker: effect.by_broker[broker][0], default="")
    return LevelBenefit(effect, idle, find_reason(plan, busiest))


def find_reason(plan: Plan, busiest: str) -> str:
    """Return the first verdict on a broker, else on the cluster, as a sentence. The first one decides."""
    verdicts = [verdict for subject in (busiest, "cluster") for verdict in plan.verdicts if verdict.subject == subject]
    return f"Of {verdicts[0].subject}: {verdicts[0].sentence()}." if verdicts else ""


LEVEL_ENOUGH = 1.25
"""Highest / mean up to which a cluster counts as level."""
_SHOWN = 5
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServiceLocation:
    """Folder of this process, and the URL at which it answers."""

    folder: Path
    url: str


@dataclass(frozen=True, slots=True, eq=False)
class VerdictFacts:
    """Facts for the verdict."""

    rounds: ComparedRounds
    benefit: LevelBenefit
    level: UsageLevel | None
    measured: PeriodTotals
    stalled: ComparisonEntry | None
    is_acting: bool


def first_verdict(facts: VerdictFacts, where: ServiceLocation) -> list[str]:
    """Return a line for each answer."""
    steps = facts.rounds.ours.unloads
    level = facts.level
    return [
        f"FIRST VERDICT after {_minutes(facts.measured)} min. {format_level(level)} {_remark(facts)}",
        _level(facts.benefit),
        *_pulsar(facts),
        *_ours(facts, steps),
        "What to do next:",
        *(f"  {line}" for line in _next(facts, steps, where)),
    ]


def _minutes(measured: PeriodTotals) -> int:
    return max(1, round((measured.to_ms - measured.from_ms) / 60_000))


def _remark(facts: VerdictFacts) -> str:
    level, benefit = facts.level, facts.benefit
    if level is None:
        return "Nothing can be said until brokers report."
    if benefit.idle:
        return f"That is not level: {len(benefit.idle)} brokers own no bundle, {benefit.idle[0]} among them."
    return (
        "That is level."
        if max(level.max_over_mean, benefit.effect.imbalance_before) <= LEVEL_ENOUGH
        else "That is not level."
    )


def _level(benefit: LevelBenefit) -> str:
    """State the benefit of Level, with the configuration line that selects it."""
    effect = benefit.effect
    traffic = f"traffic highest/mean {effect.imbalance_before:.2f}"
    if not benefit.pays:
        return f"Level would move nothing: {traffic}. {benefit.reason}".rstrip()
    return (
        f"Level would move {effect.bundles_moved} bundles, {round_figure(effect.load_moved / _MIB)} MiB/s;"
        f" {traffic} -> {effect.imbalance_after:.2f}. To have it: {CONFIGURATION}"
    )


def _pulsar(facts: VerdictFacts) -> list[str]:
    """State Pulsar's own reaction to the imbalance."""
    measured, pulsars = facts.measured, facts.rounds.pulsars
    if facts.stalled is not None:
        record = as_record(facts.stalled)
        help_text = f" What would help: {record['remedy']}." if record["remedy"] else ""
        return [f"{record['sentence']}.{help_text}"]
    refusal = _of_cluster(pulsars)
    if refusal is not None and not refusal.acted:
        return [f"Pulsar sheds nothing: {refusal.sentence()}."]
    if measured.moves:
        return [
            f"Pulsar moved bundles in that time: {measured.moves}, {round_figure(measured.moved_load / _MIB)} MiB/s."
        ]
    selected = [verdict for verdict in pulsars.verdicts if "/" in verdict.subject] or pulsars.steps
    if selected:
        return [f"Pulsar has moved nothing yet; its strategy selects bundles, as computed here: {len(selected)}."]
    return ["Pulsar moves nothing: its strategy selects no bundle, as computed here."]


def _ours(facts: VerdictFacts, steps: Sequence[Unload]) -> list[str]:
    """State the moves that the configured strategy would make, and the reason."""
    if not steps:
        busiest = "" if facts.level is None else facts.level.busiest
        return [f"The configured strategy would move nothing. {find_reason(facts.rounds.ours, busiest)}".rstrip()]
    load = sum(facts.rounds.loads.get(step.bundle, 0.0) for step in steps)
    lines = [f"We would move bundles now: {len(steps)}, {round_figure(load / _MIB)} MiB/s."]
    lines += [
        f"  {step.bundle} from {step.source.broker} to"
        f" {'another broker' if step.destination is None else step.destination.broker}"
        for step in steps[:_SHOWN]
    ]
    return [*lines, *([f"  ... and {len(steps) - _SHOWN} more"] if len(steps) > _SHOWN else [])]


def _next(facts: VerdictFacts, steps: Sequence[Unload], where: ServiceLocation) -> list[str]:
    """Return commands, each after its purpose."""
    found = [f"read on: tail -f {where.folder}/diary.txt"]
    if steps:
        found.append(f"why a bundle would move: loadmanager admin explain bundle {steps[0].bundle} --url {where.url}")
    if facts.level is not None:
        found.append(
            f"why a broker sheds or not: loadmanager admin explain broker {facts.level.busiest} --url {where.url}"
        )
    found.append(
        f"how even it could be, and what would have to move: loadmanager admin balancer balance --url {where.url}"
    )
    found.append(f"scores, after each hour: curl {where.url}/loadbalance/v1/pulsar/scores/table")
    replay = f"loadmanager replay --history {where.folder}/history --strategy AvgShedder"
    found.append(f"what another strategy would have made of it: {replay}")
    if (steps or facts.benefit.pays) and not facts.is_acting:
        found.append(
            "have it moved: set stateStoreUrl in the file that `loadmanager config pulsar` prints, then run"
            " loadmanager pulsar act --config FILE"
        )
    return found


def _of_cluster(plan: Plan) -> Verdict | None:
    return next((verdict for verdict in plan.verdicts if verdict.subject == "cluster"), None)
