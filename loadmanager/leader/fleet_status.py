"""Fleet status: the cluster in this node's mirror, and the briefing, which only the leader has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import structlog

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.model.load import RESOURCES, Float32Array, FloatArray, weighted_max_usage
from loadmanager.core.model.snapshot_builder import ClusterSummary
from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.errors import TooManyPreviewsError
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.mirror.cluster_mirror import stuck_brokers, unserved_bundles
from loadmanager.net.auth.gate import is_open_to_anyone
from loadmanager.wire.fleet_bodies import Briefing, BrokerState, Mark, MarkedDecision, MarkedOperation
from loadmanager.wire.http_bodies import ShownLimit, UnplaceableNamespaces

log = structlog.get_logger(__name__)

_CAPACITY = 100.0
_DECIMALS = 2
_HIGHEST = 1e15
_MOST_MOVING = 100
_MOST = 500
_RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")


class FleetStatus:
    """Builds the fleet status. A node with `only_shows` never moves bundles by itself, whatever the controls say."""

    def __init__(self, node: Candidate, *, only_shows: bool = False) -> None:
        self._node = node
        self._only_shows = only_shows
        self._bounded: DecidedRound | None = None
        self._bound: float | None = None
        self._task: asyncio.Task[None] | None = None

    def fleet(self, briefing: Briefing | None) -> dict[str, Any]:
        """Return the current `wire.fleet_bodies.FleetBody`, without `at`."""
        node, mirror = self._node, self._node.mirror
        summary, controls = mirror.model.summary(), mirror.operator_config.controls
        leader = None if node.may_be_outdated else mirror.leader
        highest = _round_figures(100 * weighted_max_usage(summary.usage_percent, node.live.current.resource_weights))
        return {
            "node": node.node_id,
            "leader": leader and {"id": leader.node_id, "url": leader.service_url, "epoch": mirror.epoch},
            "nodes": sorted(mirror.nodes),
            "openToAnyone": is_open_to_anyone(node.settings, node.settings.bind_address),
            "availableNamespaces": sorted(node.live.current.available_namespaces),
            "isWhole": briefing is not None,
            "balancing": {
                "frozen": controls.frozen,
                "dryRun": controls.dry_run or self._only_shows,
                "breaker": briefing and briefing.breaker and briefing.breaker.model_dump(by_alias=True),
                "cannotMove": [each.model_dump(by_alias=True) for each in (briefing.cannot_move if briefing else ())],
                "limits": [each.model_dump(by_alias=True) for each in (briefing.limits if briefing else ())],
            },
            "drains": [each.model_dump(by_alias=True) for each in (briefing.drains if briefing else ())],
            "brokers": self._columns(summary, highest.tolist(), controls, briefing),
            "mean": round(float(highest.mean()), _DECIMALS) if len(highest) else None,
            "lowerBound": briefing and briefing.lower_bound,
            "size": briefing and briefing.size and briefing.size.model_dump(by_alias=True),
            "capacity": _CAPACITY,
            "bundles": summary.bundles,
            "unowned": summary.unowned,
            "unserved": unserved_bundles(mirror),
            "moving": [self._moving(bundle) for bundle in summary.releasing[:_MOST_MOVING]],
            "movingInAll": len(summary.releasing),
            "faults": mirror.faults,
            "unplaceable": [UnplaceableNamespaces.of(each).model_dump(by_alias=True) for each in mirror.unplaceable()],
        }

    def briefing(self, after: Mark | None) -> Briefing:
        """Return the leader's briefing, with the decisions and operations after the mark.

        Raises `NotLeaderError` or `NoLeaderError` on other nodes.
        """
        node = self._node
        node.must_lead()
        controls = node.mirror.operator_config.controls
        epoch, figures, faults = node.get_term().epoch, node.planner.churn.figures(), node.mirror.model.faults()
        mark = Mark(epoch, node.decision_log.place, node.audit.noted)
        if after is not None and after.epoch != epoch:  # another leader counts its decisions and operations separately
            after = Mark(epoch, 0, node.audit.noted_before_term)
        size = node.stuck_monitor.size
        stopped_s, frozen = figures.shedding_stopped_for_s, figures.frozen_for_s
        return Briefing.model_validate(
            {
                "mark": str(mark),
                "breaker": {"stoppedS": round(stopped_s), "bundles": len(frozen)} if stopped_s or frozen else None,
                "cannotMove": [{"key": each.key, "sentence": each.sentence} for each in node.stuck_monitor.found],
                "limits": [ShownLimit.of(each).model_dump(by_alias=True) for each in node.stuck_monitor.limits],
                "drains": [
                    node.drains.progress(broker) for broker in sorted({*controls.draining, *controls.returning})
                ],
                "sick": sorted(faults.unwell),
                "rejected": sorted(faults.rejected),
                "lowerBound": self._lower_bound(),
                "size": size and {"needed": size.needed, "sentence": size.sentence},
                "decisions": [] if after is None else self._decisions(after),
                "operations": [] if after is None else self._operations(mark, after),
            }
        )

    def _decisions(self, after: Mark) -> list[MarkedDecision]:
        """Return the decisions after the mark, of this term only."""
        later = self._node.decision_log.later_than(after.place, _MOST)
        return [
            MarkedDecision(mark=str(after._replace(place=place)), decision=entry)
            for place, entry in later
            if entry["epoch"] == after.epoch
        ]

    def _operations(self, mark: Mark, after: Mark) -> list[MarkedOperation]:
        """Return the operations after the mark. Their marks follow those of all decisions, which are sent first."""
        later = self._node.audit.later_than(after.operations, _MOST)
        first = mark.operations - len(later) + 1
        return [
            MarkedOperation(mark=str(mark._replace(operations=number)), operation=entry)
            for number, entry in enumerate(later, first)
        ]

    def _columns(
        self, summary: ClusterSummary, highest: list[float], controls: Controls, briefing: Briefing | None
    ) -> dict[str, list[Any]]:
        usage, rates = _round_figures(summary.usage_percent).astype(object), _round_figures(summary.load)
        usage[np.isnan(summary.usage_percent)] = None
        states = _States(controls, briefing, stuck_brokers(self._node.mirror))
        silent = sorted(self._node.mirror.registrations.keys() - set(summary.brokers))
        nothing, no_bundles = [0.0] * len(silent), [0] * len(silent)
        columns: dict[str, list[Any]] = {"id": [*summary.brokers, *silent]}
        columns |= {name: usage[:, at].tolist() + nothing for at, name in enumerate(_RESOURCES)}
        return columns | {
            "highest": highest + nothing,
            "msgRate": (rates[:, 0] + rates[:, 1]).tolist() + nothing,
            "throughput": (rates[:, 2] + rates[:, 3]).tolist() + nothing,
            "bundles": summary.owned.tolist() + no_bundles,
            "state": [states.of(broker) for broker in summary.brokers] + ["unreadable"] * len(silent),
            "reportedAt": summary.reported_ms.tolist() + [None] * len(silent),
        }

    def _moving(self, bundle: str) -> dict[str, Any]:
        current = self._node.mirror.find_ownership(bundle)
        source, destination = (current.owner, current.destination) if current else (None, None)
        return {
            "bundle": bundle,
            "source": source and source.broker,
            "destination": destination and destination.broker,
            "reason": current.reason if current else "",
            "since": current.since_ms if current else 0,
        }

    def _lower_bound(self) -> float | None:
        """Return the last computed lower bound, in per cent; that of a newer round is computed in the background."""
        last = self._node.planner.last_round
        if last is None:
            self._bounded = self._bound = None
        elif last is not self._bounded and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._compute_bound(last), name="bound of the last round")
        return self._bound

    async def _compute_bound(self, last: DecidedRound) -> None:
        self._bounded = last
        try:
            async with self._node.planner.previews.turn() as worker:
                figures = (await worker.run(last.certified)).figures
        except TooManyPreviewsError:
            self._bounded = None  # tried again at the next request
        except Exception:
            log.exception("bound_not_found")
        else:
            self._bound = round(_CAPACITY * figures.level * figures.bound, _DECIMALS)


class _States:
    """State of each broker for the page: the most urgent one."""

    def __init__(self, controls: Controls, briefing: Briefing | None, stuck: Collection[BrokerId]) -> None:
        held_off = controls.holds(time.time())
        by_state: Sequence[tuple[BrokerState, Any]] = (
            ("rejected", briefing.rejected if briefing else ()),
            ("sick", briefing.sick if briefing else ()),
            ("broker_stuck", stuck),
            ("excluded", controls.excluded),
            ("held_off", held_off),
            ("draining", controls.draining),
        )
        self._states: dict[str, BrokerState] = {broker: state for state, brokers in by_state for broker in brokers}

    def of(self, broker: BrokerId) -> BrokerState:
        return self._states.get(broker, "active")


def _round_figures(figures: FloatArray | Float32Array) -> FloatArray:
    finite = np.nan_to_num(figures.astype(np.float64), posinf=_HIGHEST, neginf=0.0)
    return np.asarray(np.round(finite, _DECIMALS), dtype=np.float64)


assert len(_RESOURCES) == RESOURCES
