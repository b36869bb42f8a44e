"""Ports: everything that `http` knows of a node, one Protocol per purpose. A route class takes only the ports it needs.

| port | purpose | implementation |
|---|---|---|
| `LeadershipPort` | leadership of this node and of others | `node.Node` |
| `HealthPort` | liveness, readiness, metric samples | `node.Node` |
| `LookupPort` | owners of topics | `lookup_service.OwnerLookups` |
| `BundlePort`, `UnloadPort` | operator commands on namespaces and bundles | `operator_commands.BundleCommands` |
| `DeletionPort` | deletion of namespaces | `operator_commands.NamespaceDeletion` |
| `MirrorPort` | the cluster in memory, read-only | `mirror.cluster_mirror.ClusterMirror` |
| `SettingsPort` | the settings in force | `mirror.live_settings.LiveSettings` |
| `OperatorConfigPort` | updates of policies, controls and overrides | `election.config_writer.ConfigWriter` |
| `PlannerPort`, `BreakerPort` | the snapshot behind decisions; the thrash breaker | `planning` |
| `DecisionPort`, `ExplainPort` | decisions and their reasons | `audit.decision_log`, `planning.explanation_service` |
| `AuditPort` | the audit log | `audit.audit_log` |
| `LineagePort` | bundle lineage from the recorded history | `audit.history_queries` |
| `DrainPort`, `PlanPort` | drains, and plans of operators | `loops` |
| `FleetStatusPort` | the cluster for the page | `fleet_status` |
| `TimelinePort` | the last hours for the heat map | `timeline_memory` |

The ports contain no part of the leader, so a part can change behind its port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from loadmanager.config import Settings
from loadmanager.core.diagnosis.stuck_diagnosis import StuckDiagnosis
from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, NamespaceName, TopicName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, Registration
from loadmanager.core.domain.policies import Unplaceable
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.blocking_limits import BlockingLimit
from loadmanager.core.planning.certificate.plan_certificate import DecidedRound
from loadmanager.core.protocol.leadership import LeaderZnode, Term
from loadmanager.net.http_client import Caller
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.explain_bodies import BrokerExplanation, BundleExplanation, WhyNotExplanation
from loadmanager.wire.fleet_bodies import Briefing, Mark
from loadmanager.wire.http_bodies import OpenTopic
from loadmanager.wire.learned_records import LearnedData
from loadmanager.wire.lineage_bodies import AuditEntry, BundleLineage
from loadmanager.wire.plan_bodies import DrainProgress, ExecutionAnswer, PlanAnswer, PlanRequest, PlansAnswer
from loadmanager.wire.policy_records import FailureDomain, IsolationData

Sample = tuple[str, str, dict[str, str], float]
"""A metric's name and meaning, its labels, and its value."""


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """Metric samples of a node, copied on the event loop so that another thread can render them.

    `decisions` by kind, reason and whether something was done; `splits` by result and reason; `drains`: the bundles
    that a draining broker still owns; `strategy`: the figures of the shedding strategy under its own names.
    `last_round` is that of a node that leads; its figures take their time.
    """

    snapshot: Snapshot
    counters: Sequence[Sample]
    gauges: Sequence[Sample]
    decisions: Mapping[tuple[str, str, bool], int]
    strategy: Mapping[str, float]
    splits: Mapping[tuple[str, str], int]
    merges: Mapping[str, int]
    drains: Mapping[BrokerId, int]
    last_round: DecidedRound | None


@dataclass(frozen=True, slots=True)
class ChurnFigures:
    """Shares of all load that shedding moved: within the hour, again within two hours, back within four
    (`core.planning.repeated_moves`); and what the breaker has stopped. Times are seconds left.
    """

    moved_within_hour: float
    moved_again: float
    moved_back: float
    shedding_stopped_for_s: float
    frozen_for_s: dict[str, float]


class LeadershipPort(Protocol):
    """Leadership of a node. `leader_changed` is done when the leader changes or this node begins to lead; then a new
    future replaces it.
    """

    @property
    def node_id(self) -> str: ...
    @property
    def service_url(self) -> str: ...
    @property
    def leader_url(self) -> str | None: ...
    @property
    def leader_changed(self) -> asyncio.Future[None]: ...
    @property
    def caller(self) -> Caller:
        """Identity that this node presents to others."""

    def get_term(self) -> Term:
        """Return the term of this node; raises `NotLeaderError` when it does not lead."""

    async def prove_term(self) -> Term:
        """Return the term once the store has confirmed its epoch; raises also a `StoreError`."""

    def must_lead(self) -> None:
        """Raise `NotLeaderError` on a node that does not lead, `NoLeaderError` on one that is about to."""

    def must_be_current(self) -> None:
        """Raise `OutdatedMirrorError` when the session in which the mirror was read may be over."""


class StuckPort(Protocol):
    @property
    def found(self) -> Sequence[StuckDiagnosis]:
        """Last stuck diagnosis of the leader: why nothing can be moved; empty on a node that does not lead."""

    @property
    def limits(self) -> Sequence[BlockingLimit]:
        """Limits that keep bundles where they are at this moment; none on a node that does not lead."""


class HealthPort(Protocol):
    """Health of a node. `failure` is done when a task has ended that must not."""

    @property
    def node_id(self) -> str: ...
    @property
    def failure(self) -> asyncio.Future[None]: ...
    @property
    def stuck_monitor(self) -> StuckPort: ...
    @property
    def is_leading(self) -> bool: ...

    @property
    def denied(self) -> Mapping[str, str]:
        """Access that the store's ACLs deny to this node, by znode."""

    def why_not_ready(self) -> str | None:
        """Return why this node's answers cannot be relied on now; None when they can."""

    def scrape(self) -> MetricSamples:
        """Collect the metric samples; called on the event loop."""


class BrokerPort(Protocol):
    """A registered broker: its record without its bundles, and the encoded answer to a lookup."""

    @property
    def registration(self) -> Registration: ...
    @property
    def record(self) -> LocalBrokerData: ...
    @property
    def lookup_body(self) -> bytes: ...

    def find_answer(self, listener: str) -> bytes | None:
        """Return the answer to a lookup by an advertised listener; None when the broker has none of that name."""


class ReportPort(Protocol):
    async def read(self, broker_id: BrokerId) -> LocalBrokerData:
        """Return the last complete report of a registered broker.

        Raises `BrokerNotFoundError`, `InvalidRecordError` and `StoreError`.
        """


class LookupPort(Protocol):
    def find_owner(self, topic: TopicName) -> BrokerPort | None:
        """Return the owner of a topic's bundle from memory; None when it has none at the moment."""

    async def have_assigned(self, topics: Iterable[TopicName]) -> float:
        """Assign owners to all of these topics that have none; return the deadline for `lookup`."""

    async def lookup(self, topic: TopicName, deadline_s: float | None = None) -> BrokerPort:
        """Return the owner of a topic's bundle, assigned now if it had none; leader only."""


class UnloadPort(Protocol):
    async def cancel_unload(self, name: BundleName) -> None:
        """Cancel an unload: the owner keeps the bundle; leader only."""


class BundlePort(UnloadPort, Protocol):
    """Commands on bundles; all but `get_topics` are leader only. Errors: see `operator_commands`."""

    async def create_namespace(self, name: NamespaceName, bundles: NamespaceBundles) -> None: ...
    async def unload_namespace(self, name: NamespaceName) -> None: ...
    async def unload(self, name: BundleName, destination: Registration | None, reason: Reason) -> None: ...
    async def split(
        self, name: BundleName, *, algorithm: str, positions: Sequence[int], unload: bool
    ) -> list[BundleName]: ...
    async def merge(self, name: BundleName, with_: BundleRange | None) -> BundleName: ...

    def find(self, namespace: NamespaceName, which: str) -> BundleName | None:
        """Return the bundle that `LARGEST` or `HOT` stands for; None when no bundle of the namespace carries
        anything.
        """

    async def get_topics(self, name: BundleName) -> list[OpenTopic] | None:
        """Return the topics of a bundle that its owner may have open; None when nobody owns it."""


class DeletionPort(Protocol):
    async def delete(self, name: NamespaceName, *, force: bool) -> None:
        """Delete a namespace; leader only. Errors: see `NamespaceDeletion`."""


class RecordPort(Protocol):
    """A namespace's record; `version` is its znode's."""

    @property
    def state(self) -> NamespaceState: ...
    @property
    def version(self) -> int: ...


class PoliciesPort(Protocol):
    """Operator config: each kind by the name of its subject."""

    @property
    def isolation(self) -> Mapping[str, IsolationData]: ...
    @property
    def failure_domains(self) -> Mapping[str, FailureDomain]: ...
    @property
    def anti_affinity(self) -> Mapping[str, str]: ...
    @property
    def controls(self) -> Controls: ...
    @property
    def learned(self) -> LearnedData | None: ...


class RegisteredNodePort(Protocol):
    """A registered node."""

    @property
    def service_url(self) -> str: ...


class MirrorPort(Protocol):
    """Mirror of the cluster. Members and errors: see `mirror.cluster_mirror.ClusterMirror`."""

    @property
    def registrations(self) -> Mapping[BrokerId, Registration]: ...
    @property
    def brokers(self) -> Mapping[BrokerId, BrokerPort]: ...
    @property
    def namespaces(self) -> Mapping[str, RecordPort]: ...
    @property
    def nodes(self) -> Mapping[str, RegisteredNodePort]: ...
    @property
    def operator_config(self) -> PoliciesPort: ...
    @property
    def leader(self) -> LeaderZnode | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def faults(self) -> dict[str, str]: ...
    @property
    def is_fresh(self) -> bool: ...
    @property
    def on_namespace(self) -> list[Callable[[str], None]]: ...
    @property
    def on_address(self) -> list[Callable[[BrokerId], None]]: ...
    def get_namespace(self, name: str) -> RecordPort: ...
    def get_registration(self, broker_id: BrokerId) -> Registration: ...
    def get_broker(self, broker_id: BrokerId) -> BrokerPort: ...
    def bundle(self, name: BundleName) -> tuple[RecordPort, int]: ...
    def bundle_of_topic(self, topic: TopicName) -> tuple[RecordPort, int]: ...
    def ownerships(self) -> Iterator[tuple[RecordPort, int, Ownership]]: ...
    def unplaceable(self) -> list[Unplaceable]: ...


class SettingsPort(Protocol):
    """Live settings: `current` under the dynamic `overrides`, by key."""

    @property
    def current(self) -> Settings: ...
    @property
    def overrides(self) -> Mapping[str, str]: ...

    def check(self, overrides: Mapping[str, str]) -> Settings:
        """Return the settings under these overrides; raises as `settings_under` does."""


class OperatorConfigPort(Protocol):
    """Compare-and-set updates of operator config. Errors: see `election.config_writer.ConfigWriter`."""

    async def update_controls(self, change: Callable[[Controls], Controls]) -> Controls: ...
    async def update_isolation(
        self, change: Callable[[Mapping[str, IsolationData]], Mapping[str, IsolationData]]
    ) -> Mapping[str, IsolationData]: ...
    async def update_failure_domains(
        self, change: Callable[[Mapping[str, FailureDomain]], Mapping[str, FailureDomain]]
    ) -> Mapping[str, FailureDomain]: ...
    async def update_anti_affinity(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]: ...
    async def update_configuration(
        self, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]: ...
    async def update_learned(self, learned: LearnedData | None) -> LearnedData | None: ...


class BreakerPort(Protocol):
    def figures(self) -> ChurnFigures: ...

    def lift(self, bundle: str | None) -> None:
        """Reset the breaker, of one bundle or of everything."""


class PlannerPort(Protocol):
    @property
    def churn(self) -> BreakerPort: ...

    def snapshot(self) -> Snapshot:
        """Return the cluster now, as decisions see it."""

    async def standing(self) -> tuple[DecidedRound, DecidedRound | None]:
        """Return the cluster as it is, and the last round; raises `TooManyPreviewsError`."""


class DecisionPort(Protocol):
    def recent(
        self,
        limit: int,
        subject: str | None = None,
        *,
        kinds: Collection[str] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> list[dict[str, Any]]:
        """Return the newest decisions and non-decisions, newest first; with `subject` only those about it."""


class AuditPort(Protocol):
    @property
    def node_id(self) -> str: ...

    def note(self, entry: AuditEntry) -> None: ...

    async def recent(self, since_ms: int, until_ms: int, limit: int) -> list[AuditEntry]:
        """Return the newest entries with `since_ms` <= `at` < `until_ms`, newest first; raises `HistoryError`."""


class LineagePort(Protocol):
    async def of(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLineage:
        """Return the newest of a bundle's lineage within these times; raises `NotFoundError` without a history,
        `HistoryError` from reading it.
        """


class ExplainPort(Protocol):
    async def bundle(self, name: BundleName) -> BundleExplanation: ...
    async def broker(self, broker: BrokerId) -> BrokerExplanation: ...
    async def why_not(self, name: BundleName, broker: BrokerId) -> WhyNotExplanation: ...


class DrainPort(Protocol):
    async def start(self, broker: BrokerId, *, and_return: bool = False) -> DrainProgress: ...
    async def stop(self, broker: BrokerId) -> None: ...
    def progress(self, broker: BrokerId) -> DrainProgress: ...


class PlanPort(Protocol):
    async def compute(self, request: PlanRequest) -> PlanAnswer: ...
    def all(self) -> PlansAnswer: ...
    def get(self, plan_hash: str) -> PlanAnswer: ...
    async def execute(self, plan_hash: str, *, even_if_frozen: bool) -> ExecutionAnswer: ...


class FleetStatusPort(Protocol):
    def fleet(self, briefing: Briefing | None) -> dict[str, Any]:
        """Return a `wire.fleet_bodies.FleetBody` of this moment, without `at`, with the leader's briefing."""

    def briefing(self, after: Mark | None) -> Briefing:
        """Return what only the leader knows, with the decisions after the mark; raises as
        `LeadershipPort.must_lead`.
        """


@dataclass(frozen=True, slots=True)
class Window:
    """Time window of a timeline, in ms since 1970, and its maximum number of columns and rows."""

    from_ms: int
    until_ms: int
    columns: int
    rows: int


class TimelinePort(Protocol):
    """Timeline of the last hours; `span_ms` is how far back the node remembers."""

    @property
    def span_ms(self) -> int: ...

    async def draw(self, of: Literal["brokers", "bundles"], window: Window) -> dict[str, Any]:
        """Return a `wire.fleet_bodies.Timeline`."""


class BalancingPort(LeadershipPort, HealthPort, Protocol):
    """Any process that plans moves, as the HTTP application sees it."""

    @property
    def mirror(self) -> MirrorPort: ...
    @property
    def live(self) -> SettingsPort: ...
    @property
    def operators(self) -> OperatorConfigPort: ...
    @property
    def planner(self) -> PlannerPort: ...
    @property
    def decision_log(self) -> DecisionPort: ...
    @property
    def explainer(self) -> ExplainPort: ...
    @property
    def audit(self) -> AuditPort: ...
    @property
    def lineage(self) -> LineagePort: ...
    @property
    def reports(self) -> ReportPort: ...
    @property
    def fleet_status(self) -> FleetStatusPort: ...
    @property
    def timeline_memory(self) -> TimelinePort: ...


class NodePort(BalancingPort, Protocol):
    """A load-manager node, with lookups and bundle commands."""

    @property
    def settings(self) -> Settings: ...
    @property
    def lookups(self) -> LookupPort: ...
    @property
    def bundles(self) -> BundlePort: ...
    @property
    def deletion(self) -> DeletionPort: ...
    @property
    def drains(self) -> DrainPort: ...
    @property
    def plans(self) -> PlanPort: ...
