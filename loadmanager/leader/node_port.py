"""All that `http` knows of a node: what it may be asked and told, by purpose. Each of its classes gets what it needs.

| port | what for | who keeps it |
|---|---|---|
| `LeadershipPort` | who leads; whether this node does | `service.Node` |
| `HealthPort` | is it alive, can it be relied on, what does it count | `service.Node` |
| `LookupPort` | which broker owns a topic | `lookups.OwnerLookups` |
| `BundlePort`, `UnloadPort` | an operator's word on namespaces and bundles | `commands.BundleCommands` |
| `DeletionPort` | that a namespace shall be no more | `deleting.NamespaceDeletion` |
| `MirrorPort` | the cluster as this node knows it, to be read | `picture.view.ClusterView` |
| `SettingsPort` | the settings as they are now | `picture.live_settings.LiveSettings` |
| `OperatorConfigPort` | policies, controls, overrides of settings: to be changed | `term.operators.Operators` |
| `PlannerPort`, `BreakerPort` | the snapshot that decisions go by; what the limits on churn have stopped | `deciding` |
| `DecisionPort`, `ExplainPort` | what was decided, and why | `recording.journal`, `deciding.explaining` |
| `AuditPort` | who changed what | `recording.audit` |
| `LifePort` | what became of a bundle, by the history | `recording.lives` |
| `DrainPort`, `PlanPort` | brokers that are drained, plans that are executed | `balancing` |
| `FleetStatusPort` | the cluster as it is shown, again and again | `showing` |
| `TimelinePort` | the last hours, as a heat map shows them | `chronicle` |

Nothing here is a part of the leader: only the forms of what it hands out, so that a part can change behind its port.
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
from loadmanager.core.planning.certificate.round_certificates import DecidedRound
from loadmanager.core.protocol.leadership import Sighting, Term
from loadmanager.net.http_client import Caller
from loadmanager.wire.audit_entry import AuditEntry
from loadmanager.wire.broker_data import LocalBrokerData
from loadmanager.wire.explain_bodies import BrokerExplanation, BundleExplanation, WhyNotExplanation
from loadmanager.wire.fleet_bodies import Briefing, Mark
from loadmanager.wire.http_bodies import OpenTopic
from loadmanager.wire.learned_records import LearnedData
from loadmanager.wire.lineage_bodies import BundleLife
from loadmanager.wire.plan_bodies import DrainProgress, ExecutionAnswer, PlanAnswer, PlanRequest, PlansAnswer
from loadmanager.wire.policy_records import FailureDomain, IsolationData

Sample = tuple[str, str, dict[str, str], float]
"""A metric's name and meaning, its labels, and its value."""


@dataclass(frozen=True, slots=True)
class MetricSamples:
    """What a node counts, copied on the event loop so that another thread can render it.

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
    """Fractions of all load that shedding moved: back within the breaker's window, within the hour, again within two
    hours, back within four (`core.planning.repeated_moves`); and what is stopped. Times are seconds that are left.
    """

    thrash: float
    moved_within_hour: float
    moved_again: float
    moved_back: float
    shedding_stopped_for_s: float
    frozen_for_s: dict[str, float]


class LeadershipPort(Protocol):
    """Who leads. `leader_changed` is done when that changes, or this node begins to; then there is another one."""

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
        """What this node shows of itself to others."""

    def get_term(self) -> Term:
        """The term that this node has won; `NotLeaderError` when it has not."""

    async def prove_term(self) -> Term:
        """The same, once the store has said that its epoch is still the last one; also a `StoreError`."""

    def must_lead(self) -> None:
        """Raise `NotLeaderError` on a node that does not lead, `NoLeaderError` on one that is about to."""

    def must_be_current(self) -> None:
        """Raise `OutdatedViewError` where the session that the node's view was read in may be over."""


class StuckPort(Protocol):
    @property
    def found(self) -> Sequence[StuckDiagnosis]:
        """Why nothing can be moved, as the leader saw it last; nothing on a node that does not lead."""

    @property
    def limits(self) -> Sequence[BlockingLimit]:
        """Limits that keep bundles where they are at this moment; none on a node that does not lead."""


class HealthPort(Protocol):
    """`failure` is done when a task of the node has ended that must not."""

    @property
    def node_id(self) -> str: ...
    @property
    def failure(self) -> asyncio.Future[None]: ...
    @property
    def standstill(self) -> StuckPort: ...
    @property
    def is_leading(self) -> bool: ...

    @property
    def denied(self) -> Mapping[str, str]:
        """What access lists in the store keep from it, by znode."""

    def why_not_ready(self) -> str | None:
        """Why this node's answers cannot be relied on at the moment; None when they can."""

    def scrape(self) -> MetricSamples:
        """What the node counts at this moment; called on the event loop."""


class BrokerPort(Protocol):
    """A registered broker, what it published but for its bundles, and the ready-made answer to a lookup."""

    @property
    def registration(self) -> Registration: ...
    @property
    def record(self) -> LocalBrokerData: ...
    @property
    def lookup_body(self) -> bytes: ...

    def find_answer(self, listener: str) -> bytes | None:
        """The answer to a lookup by an advertised listener; None when the broker has none of that name."""


class ReportPort(Protocol):
    async def read(self, broker_id: BrokerId) -> LocalBrokerData:
        """What a registered broker wrote last, with what it says of its bundles.

        Raises `BrokerNotFoundError`, `InvalidRecordError` and `StoreError`.
        """


class LookupPort(Protocol):
    def find_owner(self, topic: TopicName) -> BrokerPort | None:
        """The owner of a topic's bundle from memory; None when it has none at the moment."""

    async def have_assigned(self, topics: Iterable[TopicName]) -> float:
        """Have owners found for all of these together that have none; until when `lookup` has time to say who."""

    async def lookup(self, topic: TopicName, deadline_s: float | None = None) -> BrokerPort:
        """The owner of a topic's bundle, assigned now if it had none; only the leader may."""


class UnloadPort(Protocol):
    async def cancel_unload(self, name: BundleName) -> None:
        """Have the owner keep a bundle that it is asked to let go of; only the leader may."""


class BundlePort(UnloadPort, Protocol):
    """All but `get_topics` only the leader may; what each raises is said in `commands`."""

    async def create_namespace(self, name: NamespaceName, bundles: NamespaceBundles) -> None: ...
    async def unload_namespace(self, name: NamespaceName) -> None: ...
    async def unload(self, name: BundleName, destination: Registration | None, reason: Reason) -> None: ...
    async def split(
        self, name: BundleName, *, algorithm: str, positions: Sequence[int], unload: bool
    ) -> list[BundleName]: ...
    async def merge(self, name: BundleName, with_: BundleRange | None) -> BundleName: ...

    def find(self, namespace: NamespaceName, which: str) -> BundleName | None:
        """The bundle that `LARGEST` or `HOT` stands for; None when no bundle of the namespace carries anything."""

    async def get_topics(self, name: BundleName) -> list[OpenTopic] | None:
        """The topics of a bundle that its owner may have open; None when nobody owns it."""


class DeletionPort(Protocol):
    async def delete(self, name: NamespaceName, *, force: bool) -> None:
        """Delete a namespace; only the leader may. What it raises is said in `deleting`."""


class RecordPort(Protocol):
    """A namespace's record; `version` is its znode's."""

    @property
    def state(self) -> NamespaceState: ...
    @property
    def version(self) -> int: ...


class PoliciesPort(Protocol):
    """What operators laid down: each kind by the name of what it is about."""

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


class NodePlacePort(Protocol):
    """A registered node."""

    @property
    def service_url(self) -> str: ...


class MirrorPort(Protocol):
    """What each part means, and what is raised for what is not there, is said in `picture.view.ClusterView`."""

    @property
    def registrations(self) -> Mapping[BrokerId, Registration]: ...
    @property
    def brokers(self) -> Mapping[BrokerId, BrokerPort]: ...
    @property
    def namespaces(self) -> Mapping[str, RecordPort]: ...
    @property
    def nodes(self) -> Mapping[str, NodePlacePort]: ...
    @property
    def laid_down(self) -> PoliciesPort: ...
    @property
    def leader(self) -> Sighting | None: ...
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
    """`current`: the node's settings under what operators have changed since; `overrides`: that, by key."""

    @property
    def current(self) -> Settings: ...
    @property
    def overrides(self) -> Mapping[str, str]: ...

    def check(self, overrides: Mapping[str, str]) -> Settings:
        """The settings under these overrides; raises as `settings_under` does."""


class OperatorConfigPort(Protocol):
    """Each stores what `change` makes of what is stored; what they raise is said in `term.operators.Operators`."""

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
        """Set the breaker back, of one bundle or of everything."""


class PlannerPort(Protocol):
    @property
    def churn(self) -> BreakerPort: ...

    def snapshot(self) -> Snapshot:
        """The cluster now, as decisions see it."""

    async def standing(self) -> tuple[DecidedRound, DecidedRound | None]:
        """How it stands now, and what the last round came to; raises `TooManyPreviewsError`."""


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
        """The newest decisions and non-decisions, newest first; with `subject` only those about it, and so on."""


class AuditPort(Protocol):
    @property
    def node_id(self) -> str: ...

    def note(self, entry: AuditEntry) -> None: ...

    async def recent(self, since_ms: int, until_ms: int, limit: int) -> list[AuditEntry]:
        """The newest with `since_ms` <= `at` < `until_ms`, newest first; raises `HistoryError`."""


class LifePort(Protocol):
    async def of(self, name: BundleName, since_ms: int, until_ms: int, limit: int) -> BundleLife:
        """The newest of it within these times; `NotFoundError` without a history, `HistoryError` from reading it."""


class ExplainPort(Protocol):
    async def bundle(self, name: BundleName) -> BundleExplanation: ...
    async def broker(self, broker: BrokerId) -> BrokerExplanation: ...
    async def why_not(self, name: BundleName, broker: BrokerId) -> WhyNotExplanation: ...


class DrainPort(Protocol):
    async def start(self, broker: BrokerId) -> DrainProgress: ...
    async def stop(self, broker: BrokerId) -> None: ...
    def progress(self, broker: BrokerId) -> DrainProgress: ...


class PlanPort(Protocol):
    async def compute(self, request: PlanRequest) -> PlanAnswer: ...
    def all(self) -> PlansAnswer: ...
    def get(self, plan_hash: str) -> PlanAnswer: ...
    async def file(self, plan_hash: str) -> bytes: ...
    async def execute(self, plan_hash: str, *, even_if_frozen: bool) -> ExecutionAnswer: ...


class FleetStatusPort(Protocol):
    def fleet(self, briefing: Briefing | None) -> dict[str, Any]:
        """A `wire.fleet_bodies.Fleet` of this moment, but for `at`, as this node sees it, with what the leader said."""

    def briefing(self, after: Mark | None) -> Briefing:
        """What only the leader knows, with what was decided after that mark; raises as `LeadershipPort.must_lead`."""


@dataclass(frozen=True, slots=True)
class Window:
    """From when until when, in ms since 1970, and in how many columns and rows at the most."""

    from_ms: int
    until_ms: int
    columns: int
    rows: int


class TimelinePort(Protocol):
    """`span_ms` is how far back the node remembers."""

    @property
    def span_ms(self) -> int: ...

    async def draw(self, of: Literal["brokers", "bundles"], window: Window) -> dict[str, Any]:
        """A `wire.timeline_bodies.Timeline`."""


class BalancingPort(LeadershipPort, HealthPort, Protocol):
    """Whatever plans, as the one who puts an application together sees it."""

    @property
    def view(self) -> MirrorPort: ...
    @property
    def live(self) -> SettingsPort: ...
    @property
    def operators(self) -> OperatorConfigPort: ...
    @property
    def desk(self) -> PlannerPort: ...
    @property
    def journal(self) -> DecisionPort: ...
    @property
    def explainer(self) -> ExplainPort: ...
    @property
    def audit(self) -> AuditPort: ...
    @property
    def lives(self) -> LifePort: ...
    @property
    def reports(self) -> ReportPort: ...
    @property
    def showing(self) -> FleetStatusPort: ...
    @property
    def chronicle(self) -> TimelinePort: ...


class NodePort(BalancingPort, Protocol):
    """A node, which says besides who owns what."""

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
