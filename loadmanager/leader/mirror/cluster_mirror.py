"""Mirror: a node's copy of the metadata store in memory.

Only `mirror_intake` feeds it from the store, and `loadmanager.leader.election.ownership_ledger` with its own commits.
All methods are look-ups: no I/O, no decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from loadmanager.core.domain.controls import NO_CONTROLS, Controls
from loadmanager.core.domain.names import BrokerId, BundleName, TopicName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.core.domain.policies import Unplaceable, find_unplaceable
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.report_validation import ReportValidator
from loadmanager.core.protocol.leadership import LeaderZnode
from loadmanager.errors import (
    BrokerNotFoundError,
    BundleNotFoundError,
    InvalidRecordError,
    LoadManagerError,
    NamespaceNotFoundError,
)
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode
from loadmanager.wire.broker_data import AGENT_PROTOCOL, OF_BUNDLES, LocalBrokerData
from loadmanager.wire.http_bodies import LookupData
from loadmanager.wire.learned_records import LearnedData
from loadmanager.wire.policy_records import FailureDomain, IsolationData
from loadmanager.wire.store_records import NodeRecord

_SHOWN_BROKERS = 10
_What = TypeVar("_What")


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """A registered broker: its registration, the URL of its agent, and the encoded answer to a lookup.

    `record` is its own record without its bundles, which are in the model if the report is valid.
    """

    registration: Registration
    znode_version: int
    record: LocalBrokerData
    lookup_body: bytes

    @property
    def command_url(self) -> str | None:
        """URL of the broker's agent, None when it published none.

        Never the broker's own URL: a Pulsar broker has the same paths and would execute the command.
        """
        return (self.record.get("protocols") or {}).get(AGENT_PROTOCOL)

    def answers_as(self, other: BrokerEntry) -> bool:
        """Return True if lookups get the same answer from both entries."""
        listeners = (self.record.get("advertisedListeners"), other.record.get("advertisedListeners"))
        mine, others = (self.registration, self.lookup_body), (other.registration, other.lookup_body)
        return mine == others and listeners[0] == listeners[1]

    def find_answer(self, listener: str) -> bytes | None:
        """Return the answer to a lookup for an advertised listener; None when the broker has no such listener."""
        answer = lookup_answer(self.registration.broker, self.record, listener)
        return None if answer is None else answer.to_json()


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """A namespace's record, as read or committed.

    `version` and `czxid` are its znode's, `digest` the hash of the znode's data. `commit` is the number of this node's
    commit that wrote it, 0 if it was read. `unreadable` is the fault of a newer record that could not be read. `state`
    is then the last good one: it answers lookups, but decisions must not use it.
    """

    state: NamespaceState
    version: int
    czxid: int
    digest: int
    commit: int = 0
    unreadable: str | None = None

    def is_record(self, znode: Znode) -> bool:
        """Return True if the znode holds this record. Compares data too: ids can repeat after a store rollback."""
        return (self.czxid, self.version, self.digest) == (znode.czxid, znode.version, hash(znode.data))


@dataclass(slots=True)
class OperatorConfig:
    """Operator config as stored: the last good value of each znode.

    `isolation` and `failure_domains` by name, `anti_affinity` by namespace; `learned` is None while nothing is
    published.
    """

    isolation: Mapping[str, IsolationData] = field(default_factory=dict)
    failure_domains: Mapping[str, FailureDomain] = field(default_factory=dict)
    anti_affinity: Mapping[str, str] = field(default_factory=dict)
    controls: Controls = NO_CONTROLS
    learned: LearnedData | None = None


@dataclass(slots=True)
class ClusterMirror:
    """The mirror. `is_fresh`: everything was read again after the last (re)connection."""

    model: ClusterModel = field(default_factory=ClusterModel)
    gate: ReportValidator = field(default_factory=ReportValidator)
    registrations: dict[BrokerId, Registration] = field(default_factory=dict)
    """All registered brokers, also those with an unreadable record: they are alive, so their bundles are not free."""
    brokers: dict[BrokerId, BrokerEntry] = field(default_factory=dict)
    namespaces: dict[str, NamespaceEntry] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    node_sessions: dict[str, int] = field(default_factory=dict)
    """The session that holds the registration of each node."""
    operator_config: OperatorConfig = field(default_factory=OperatorConfig)
    leader: LeaderZnode | None = None
    suspicion_czxid: int | None = None
    """Creation id of the suspicion of a standby against the leader, while there is one."""
    epoch: int = 0
    commits: int = 0
    """Number of records that this node has committed."""
    is_fresh: bool = False
    is_of_former_session: bool = False
    """True from the end of the session of the last read until everything is read again in a new session."""
    unsettled: int = 0
    """Counter of changes after which the reconciler may have work: a registration that ended, one that began while
    bundles waited for it, or a record that another process wrote."""
    faults: dict[str, str] = field(default_factory=dict)
    """Faults of znodes by path, while they last."""
    ownerless: list[str] = field(default_factory=list)
    """Bundles of a Pulsar that have clients, but no owner for a minute, or an owner that refuses lookups."""
    on_record: Callable[[NamespaceEntry, NamespaceEntry], None] = lambda *_: None
    """Called with the old and the new record when one replaces another."""
    on_namespace: list[Callable[[str], None]] = field(default_factory=list)
    """Called with each namespace whose record was replaced or deleted."""
    on_address: list[Callable[[BrokerId], None]] = field(default_factory=list)
    """Called with each broker whose lookup answer has appeared, changed or gone."""

    def unplaceable(self) -> list[Unplaceable]:
        """Return the namespaces that no registered broker may own, grouped by the reason."""
        return find_unplaceable(self.model.policies, self.registrations, self.namespaces)

    def get_namespace(self, name: str) -> NamespaceEntry:
        entry = self.namespaces.get(name)
        if entry is None:
            fault = self.faults.get(paths.namespace(name))
            if fault is not None:
                raise InvalidRecordError(f"the record of namespace {name} cannot be read: {fault}")
            raise NamespaceNotFoundError(f"namespace {name} not found")
        return entry

    def bundle_of_topic(self, topic: TopicName) -> tuple[NamespaceEntry, int]:
        """Return the namespace of a topic, and the index of the topic's bundle in it."""
        entry = self.get_namespace(str(topic.namespace))
        return entry, entry.state.bundles.index_of_topic(str(topic))

    def bundle(self, name: BundleName) -> tuple[NamespaceEntry, int]:
        """Return the namespace of a bundle and its index there; raises `BundleNotFoundError` unless it is a current
        bundle.
        """
        entry = self.get_namespace(str(name.namespace))
        index = entry.state.bundles.find_index(name.range)
        if index is None:
            raise BundleNotFoundError(f"{name.range} is not a current bundle of namespace {name.namespace}")
        return entry, index

    def get_registration(self, broker_id: BrokerId) -> Registration:
        """Return the broker's registration; raises `BrokerNotFoundError` when it has none."""
        registration = self.registrations.get(broker_id)
        if registration is None:
            known = ", ".join(sorted(self.registrations)[:_SHOWN_BROKERS]) or "none"
            raise BrokerNotFoundError(f"broker {broker_id!r} is not registered; known: {known}")
        return registration

    def process_of(self, broker_id: BrokerId) -> int:
        """Return the `startTimestamp` of the registered process, 0 if its record is unknown.

        Where a broker publishes none, each registration counts as another process.
        """
        entry = self.brokers.get(broker_id)
        return 0 if entry is None else entry.record.get("startTimestamp") or entry.registration.incarnation

    def get_broker(self, broker_id: BrokerId) -> BrokerEntry:
        """Return a registered broker; raises `BrokerNotFoundError` when it is not, `InvalidRecordError` when its record
        cannot be read.
        """
        self.get_registration(broker_id)
        entry = self.brokers.get(broker_id)
        if entry is None:
            path = paths.broker(broker_id)
            raise InvalidRecordError(f"the report of {broker_id} cannot be read: {self.faults.get(path, path)}")
        return entry

    def is_registered(self, registration: Registration | None) -> bool:
        """Return True if the broker is registered with this incarnation."""
        return registration is not None and self.registrations.get(registration.broker) == registration

    def find_owner(self, ownership: Ownership) -> BrokerEntry | None:
        """Return the broker that serves a bundle; None when it is free, being released, or its owner is gone."""
        owner = ownership.owner
        if ownership.state is not OwnershipState.OWNED or owner is None:
            return None
        entry = self.brokers.get(owner.broker)
        return entry if entry is not None and entry.registration.incarnation == owner.incarnation else None

    def ownerships(self) -> Iterator[tuple[NamespaceEntry, int, Ownership]]:
        for entry in list(self.namespaces.values()):
            for index, ownership in enumerate(entry.state.ownerships):
                yield entry, index, ownership

    def get_ownership(self, name: BundleName) -> Ownership:
        """Return the ownership of a bundle; raises as `bundle` does."""
        entry, index = self.bundle(name)
        return entry.state.ownerships[index]

    def find_ownership(self, bundle: str) -> Ownership | None:
        """Return the ownership of a bundle by its name; None unless it is a current bundle of a known namespace."""
        try:
            return self.get_ownership(BundleName.parse_any(bundle))
        except LoadManagerError:
            return None

    def holds(self) -> dict[BrokerId, float]:
        """Return the brokers that are held off, with the seconds until their bundles stop waiting for them."""
        return self.operator_config.controls.holds(time.time())

    def put_namespace(self, entry: NamespaceEntry) -> None:
        name = str(entry.state.name)
        before = self.namespaces.get(name)
        if before is not None:
            self.on_record(before, entry)
        self.namespaces[name] = entry
        if before is not None and before.state.bundles == entry.state.bundles:
            self.model.set_owners(entry.state.owners_changed_since(before.state))
        else:
            self.model.set_namespace(name, entry.state.bundle_names(), entry.state.ownerships)
        _tell(self.on_namespace, name)

    def commit_namespace(self, entry: NamespaceEntry) -> None:
        """Apply a record that this node has just committed."""
        self.commits += 1
        self.put_namespace(replace(entry, commit=self.commits))

    def drop_namespace(self, name: str) -> None:
        if self.namespaces.pop(name, None) is not None:
            self.model.remove_namespace(name)
            _tell(self.on_namespace, name)

    def put_broker(self, registration: Registration, znode_version: int, record: LocalBrokerData) -> None:
        """Apply a broker's record."""
        self.registrations[registration.broker] = registration
        answer = lookup_answer(registration.broker, record)
        assert answer is not None, "only an advertised listener can be missing"
        itself = cast("LocalBrokerData", {name: value for name, value in record.items() if name not in OF_BUNDLES})
        entry = BrokerEntry(registration, znode_version, itself, answer.to_json())
        before, self.brokers[registration.broker] = self.brokers.get(registration.broker), entry
        if before is None or not entry.answers_as(before):
            _tell(self.on_address, registration.broker)

    def drop_broker(self, broker_id: BrokerId) -> None:
        if self.registrations.pop(broker_id, None) is not None:
            self.unsettled += 1
        if self.brokers.pop(broker_id, None) is not None:
            self.model.remove_broker(broker_id)
            self.gate.forget(broker_id)
            _tell(self.on_address, broker_id)


def _tell(those: Iterable[Callable[[_What], None]], what: _What) -> None:
    for each in those:
        each(what)


def lookup_answer(broker_id: BrokerId, record: LocalBrokerData, listener: str | None = None) -> LookupData | None:
    """Return Pulsar's LookupData for a broker, from its own record.

    With `listener` the addresses are those of that advertised listener; None when the broker has no such listener.
    """
    if listener is not None:
        advertised = (record.get("advertisedListeners") or {}).get(listener)
        if advertised is None:
            return None
        record = {
            "pulsarServiceUrl": advertised.get("brokerServiceUrl", ""),
            "pulsarServiceUrlTls": advertised.get("brokerServiceUrlTls", ""),
            "webServiceUrl": advertised.get("brokerHttpUrl", ""),
            "webServiceUrlTls": advertised.get("brokerHttpsUrl", ""),
        }
    broker_url = record.get("pulsarServiceUrl") or None
    return LookupData(
        broker_id=broker_id,
        broker_url=broker_url,
        broker_url_tls=record.get("pulsarServiceUrlTls") or None,
        http_url=record.get("webServiceUrl") or None,
        http_url_tls=record.get("webServiceUrlTls") or None,
        native_url=broker_url,
    )


def stuck_brokers(mirror: ClusterMirror) -> dict[BrokerId, str]:
    """Return the brokers that serve none of their bundles or refuse to close one, each with its agent's reason."""
    found = {broker: known.record.get("stuck", "") for broker, known in sorted(mirror.brokers.items())}
    return {broker: why for broker, why in found.items() if why}


def unserved_bundles(mirror: ClusterMirror) -> list[dict[str, Any]]:
    """Return the number of bundles of each stuck broker: a list of `wire.fleet_bodies.Unserved`."""
    stuck = stuck_brokers(mirror)
    if not stuck:
        return []
    summary = mirror.model.summary()
    owned = dict(zip(summary.brokers, summary.owned.tolist(), strict=True))
    return [
        {
            "broker": broker,
            "bundles": owned.get(broker, 0),
            "why": why,
            "remedy": f"restart {broker}, or drain it: loadmanager admin brokers drain {broker}",
        }
        for broker, why in stuck.items()
    ]
