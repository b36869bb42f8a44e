"""Poll of a Pulsar's brokers through their REST API, applied to the mirror.

request                                   to             when
-------                                   --             ----
brokers, leader, dynamic configuration    any broker     each poll
settings                                  each broker    its first poll, and after a change
owned bundles, load                       each broker    each poll; load of topics (extensible) every 30 s
namespaces, their bundles, policies       any broker     every 30 s; at once for an unknown bundle
lookup of a doubtful bundle               any broker     each poll, from a minute after its owner lost its topics

The requests depend on the load manager of each broker, so a cluster can migrate from one to the other. A broker that
does not answer keeps its last state, and the mirror is not fresh until it answers or leaves. An extensible broker does
not report its start time. It counts as restarted when it refused a connection or joined after the first poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import orjson
import structlog

from loadmanager.core.diagnosis.pulsar_comparison import Sighted
from loadmanager.core.domain.names import BrokerId, BundleName, namespace_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.errors import InvalidRecordError
from loadmanager.leader.mirror.broker_records import BrokerRecords
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.mirror_intake import ZnodeFaults
from loadmanager.pulsar.broker_settings import BrokerSettingsPoll
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_namespaces import PulsarNamespaces
from loadmanager.pulsar.report_dates import ReportDates, TopicLoads
from loadmanager.pulsar.rest_answers import Record, extensible_report, is_extensible, settle_owners
from loadmanager.pulsar.rest_call import FAULTS_OF_ITS_OWN, PulsarRefusedError, PulsarUnreachableError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode
from loadmanager.util import clock
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.policy_records import policies_of

log = structlog.get_logger(__name__)

_AT_A_TIME = 8
TOPICS_S = POLICIES_S = 30.0
_UNSERVED_AFTER_S = 60.0
_LOOKUP_TIMEOUT_S = 2.0
_NEVER = float("-inf")
_CLIENT_ERRORS = 400
_DYNAMIC = "/admin/v2/brokers/configuration/values"
_FIRST_INCARNATION = 1
"""Incarnation of the extensible brokers in a process's first poll. It is the same in all processes, so a failover does
not look like a restart of all brokers. Level gives no bundles to a broker that has just restarted, and drains watch for
restarts too.
"""
_FAILURES = (PulsarRefusedError, PulsarUnreachableError, InvalidRecordError)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answers of one broker to one poll."""

    owned: list[str]
    report: Record | None
    """None for an extensible broker: its report is composed from `metrics`."""
    metrics: bytes = b""


class PulsarIntake:
    """Mirrors a Pulsar into a `ClusterMirror`. `on_change` is called after each poll.

    `owners` has the owner of each bundle according to Pulsar, also during our own moves.
    """

    def __init__(
        self,
        admin: PulsarAdmin,
        brokers: BrokerSettingsPoll,
        mirror: ClusterMirror,
        live: LiveSettings,
        interval_s: float,
        on_change: Callable[[], None],
        on_moved: Callable[[Sighted], None],
    ) -> None:
        self._admin = admin
        self._brokers = brokers
        self._mirror = mirror
        self._live = live
        self._interval_s = interval_s
        self._on_change = on_change
        self._faults = ZnodeFaults(mirror.faults)
        self._records = BrokerRecords(mirror, live, BundleName.parse_any)
        self._namespaces = PulsarNamespaces(mirror, on_moved)
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._wake = asyncio.Event()
        self._polled = asyncio.Condition()
        self._begun = self._done = 0
        self._owners: dict[str, BrokerId] = {}
        self._owner_read: set[str] = set()
        self._with_clients: set[str] = set()
        self._ownerless_s: dict[str, float] = {}
        self._topicless_s: dict[str, float] = {}
        self._refused: set[str] = set()
        self._loads = TopicLoads()
        self._topics_s: dict[BrokerId, float] = {}
        self._policies_s = _NEVER
        self._policies: object = None
        self._unreachable: set[BrokerId] = set()
        self._dates = ReportDates()
        self._znodes: dict[str, Znode] = {}
        self.owners: Mapping[str, Registration | None] = self._namespaces.owners
        self.pulsars_leader: BrokerId | None = None
        self.dynamic: Mapping[str, str] = {}
        self.policies_fault: str | None = None
        """Reason why the cluster's policies are unknown; None if they are known."""
        self.fault = "Pulsar's brokers have not been polled yet"
        """Reason why the last poll is incomplete; empty if it is complete."""
        self.changed_s = _NEVER
        """Monotonic time at which the last broker joined or left; minus infinity if none has since the first poll."""

    @property
    def reports_applied(self) -> int:
        """Number of applied reports."""
        return self._records.applied

    @property
    def records_rejected(self) -> int:
        """Number of unusable answers."""
        return self._faults.counted

    def load_manager(self, broker: BrokerId) -> str:
        """Return the class of a broker's load manager, empty while it is unknown."""
        return self._brokers.load_manager(broker) or ""

    def reports_at_s(self, broker: BrokerId) -> float | None:
        """Return the time of a broker's last report, in seconds since 1970; None without one."""
        return self._dates.last_s(broker)

    async def find_report(self, path: str) -> Znode | None:
        """Return the last report of a broker, by its znode path."""
        return self._znodes.get(path)

    async def run(self) -> None:
        """Poll until the process stops."""
        while True:
            self._wake.clear()
            self._begun += 1
            number = self._begun
            try:
                await self._poll()
            except _FAILURES as error:
                self._mirror.is_fresh = False
                if self.fault != str(error):
                    log.warning("pulsar_not_polled", error=str(error))
                self.fault = str(error)
            else:
                async with self._polled:
                    self._done = number
                    self._polled.notify_all()
            self._on_change()
            await wait_at_most(self._wake, self._interval_s)

    async def settled(self) -> None:
        """Wait until a poll that starts after the call has been applied."""
        wanted = self._begun + 1
        self._wake.set()
        async with self._polled:
            await self._polled.wait_for(lambda: self._done >= wanted)

    async def read_owner(self, bundle: BundleName, *near: BrokerId | None) -> Registration | None:
        """Return the owner of a bundle; asks its last known owner and the brokers `near`.

        Raises `PulsarRefusedError` or `PulsarUnreachableError` if one of them did not answer and none has it.
        """
        name = str(bundle)
        asked = {self._owners.get(name), *near} & set(self._mirror.registrations)
        found = await asyncio.gather(*(self._read_owned(broker) for broker in asked if broker), return_exceptions=True)
        owners = [
            broker for broker, owned in zip(asked, found, strict=True) if isinstance(owned, list) and name in owned
        ]
        errors = [each for each in found if isinstance(each, BaseException)]
        if not owners and errors:
            raise errors[0]
        self._owner_read.add(name)
        self._put_owner(name, owners[0] if owners else None)
        self._namespaces.update_mirror(str(bundle.namespace))
        self._on_change()
        return self._namespaces.find_owner(name)

    async def read_bundles(self, namespace: str) -> None:
        """Read the bundles of a namespace now."""
        await self._read_namespace(namespace)
        self._namespaces.update_mirror(namespace)

    # Reads

    async def _poll(self) -> None:
        ids = await self._admin.brokers()
        self.pulsars_leader, dynamic = await self._admin.leader(), await self._admin.dynamic()
        self._apply_configuration(dynamic)
        self._admin.trust(ids)
        await self._brokers.ask(ids, dynamic)
        self._owner_read.clear()
        answers = dict(zip(ids, await asyncio.gather(*map(self._ask, ids)), strict=True))
        answered = {broker: answer for broker, answer in answers.items() if answer is not None}
        owners = await self._settle({broker: answer.owned for broker, answer in answered.items()}, ids)
        await self._read_policies({namespace_of(bundle) for bundle in owners})
        self._register(ids, answered)
        for bundle in self._owners.keys() | owners.keys():
            if bundle not in self._owner_read:
                self._put_owner(bundle, owners.get(bundle))
        await self._read_new_bundles()
        for namespace in self._namespaces.take_touched():
            self._namespaces.update_mirror(namespace)
        self._apply_policies()
        for broker, answer in answered.items():
            await self._apply_report(broker, answer)
        silent = [broker for broker in ids if broker not in answered]
        self.fault = f"no complete answer from {', '.join(silent[:3])}" if silent else ""
        self._mirror.is_fresh = not silent
        await self._look_up_doubtful()
        unserved = {*self._refused, *_older(self._ownerless_s)}
        self._mirror.ownerless = sorted(unserved & self.owners.keys())

    async def _ask(self, broker: BrokerId) -> _Answer | None:
        load_manager = self._brokers.load_manager(broker)
        path = paths.broker(broker)
        try:
            if load_manager is None:
                raise InvalidRecordError(f"settings of {broker} are unknown: {self._brokers.faults[broker]}")
            owned = await self._read_owned(broker)
            async with self._turns:
                if not is_extensible(load_manager):
                    return _Answer(owned, await self._admin.load_report(broker))
                if time.monotonic() - self._topics_s.get(broker, _NEVER) >= TOPICS_S:
                    self._loads.put(broker, owned, await self._admin.bundle_loads(broker))
                    self._topics_s[broker] = time.monotonic()
                return _Answer(owned, None, await self._admin.usage(broker))
        except _FAILURES as error:
            self._faults.reject(path, error)
            if isinstance(error, PulsarUnreachableError) and error.was_not_heard:
                self._unreachable.add(broker)
            return None

    async def _read_owned(self, broker: BrokerId) -> list[str]:
        async with self._turns:
            return await self._admin.owned(self._live.current.cluster_name, broker)

    async def _settle(self, listed: dict[BrokerId, list[str]], ids: Iterable[BrokerId]) -> dict[str, BrokerId]:
        """Return the owners. Ask brokers again if two of them claim a bundle, or if a bundle lost its owner."""
        before = {bundle: broker for bundle, broker in self._owners.items() if broker in ids}
        owners, disputed = settle_owners(before, listed)
        if disputed:
            with contextlib.suppress(*_FAILURES):
                again = await asyncio.gather(*map(self._read_owned, sorted(disputed)))
                owners, _ = settle_owners(before, {**listed, **dict(zip(sorted(disputed), again, strict=True))})
        return owners

    async def _look_up_doubtful(self) -> None:
        """Look up bundles that had clients but have no topics at their owner. Remember which lookups were refused.

        Such a bundle is in a transitional state: its recorded owner does not serve its clients.
        """
        self._topicless_s = {name: at_s for name, at_s in self._topicless_s.items() if name in self._owners}
        self._refused &= self._topicless_s.keys()
        await asyncio.gather(*map(self._look_up, _older(self._topicless_s)[:_AT_A_TIME]))

    async def _look_up(self, bundle: str) -> None:
        """Look up a bundle. An answer ends the doubt; an error of the server or a timeout counts as a refusal.

        An unreachable broker or an unusable answer changes nothing: the next poll asks again.
        """
        try:
            await self._admin.look_up(BundleName.parse_any(bundle), _LOOKUP_TIMEOUT_S)
        except PulsarUnreachableError as error:
            if not error.was_not_heard:
                self._refused.add(bundle)
        except PulsarRefusedError as error:
            if error.status >= FAULTS_OF_ITS_OWN:
                self._refused.add(bundle)
            elif error.status >= _CLIENT_ERRORS:
                self._end_doubt(bundle)
        else:
            self._end_doubt(bundle)

    def _end_doubt(self, bundle: str) -> None:
        self._topicless_s.pop(bundle, None)
        self._refused.discard(bundle)
        self._with_clients.discard(bundle)

    async def _read_policies(self, namespaces: set[str]) -> None:
        """Read the namespaces and policies of the cluster, every `POLICIES_S`."""
        if time.monotonic() - self._policies_s < POLICIES_S:
            return
        known = [name for name in await self._admin.namespaces() if name.count("/") == 1]
        for gone in set(self._namespaces.with_bundles) - {*known, *namespaces}:
            self._namespaces.drop_bundles(gone)
        await asyncio.gather(*map(self._read_namespace, known))
        cluster, operator_config = self._live.current.cluster_name, self._mirror.operator_config
        try:
            operator_config.isolation = await self._admin.isolation(cluster)
            operator_config.failure_domains = await self._admin.domains(cluster)
        except InvalidRecordError as error:
            self.policies_fault = str(error)
        else:
            self.policies_fault = None
        self._policies_s = time.monotonic()

    async def _read_namespace(self, namespace: str) -> None:
        async with self._turns:
            bundles = await self._admin.bundles(namespace)
            if bundles is None:
                self._namespaces.drop_bundles(namespace)
            else:
                self._namespaces.put_bundles(namespace, bundles, await self._admin.group(namespace))

    async def _read_new_bundles(self) -> None:
        """Read the bundles of new namespaces, and of those in which a bundle was split."""
        await asyncio.gather(*map(self._read_namespace, sorted(self._namespaces.find_unknown())))

    # Updates of the mirror

    def _register(self, ids: Iterable[BrokerId], answered: Mapping[BrokerId, _Answer]) -> None:
        registrations, changed = self._mirror.registrations, set()
        for gone in registrations.keys() - set(ids):
            self._mirror.drop_broker(gone)
            self._dates.drop(gone)
            self._topics_s.pop(gone, None)
            for kept in (self._znodes, self._mirror.faults):
                kept.pop(paths.broker(gone), None)
            changed.add(gone)
        for broker, answer in answered.items():
            before = registrations.get(broker)
            started = (answer.report or {}).get("startTimestamp")
            known = None if before is None or broker in self._unreachable else before.incarnation
            life = started or known or (clock.now_ms() if self._done else _FIRST_INCARNATION)
            self._unreachable.discard(broker)
            self._records.register(broker, Znode(paths.broker(broker), b"", 0, life, 0, 0))
            if registrations[broker] != before:
                self._dates.drop(broker)
                changed.add(broker)
        if changed:
            self._namespaces.registrations_changed(changed)
            if self._done:
                self.changed_s = time.monotonic()

    def _put_owner(self, bundle: str, broker: BrokerId | None) -> None:
        self._namespaces.put_owner(bundle, broker)
        if broker is not None:
            self._owners[bundle] = broker
            self._ownerless_s.pop(bundle, None)
        elif self._owners.pop(bundle, None) is not None and bundle in self._with_clients:
            self._ownerless_s[bundle] = time.monotonic()

    async def _apply_report(self, broker: BrokerId, answer: _Answer) -> None:
        path = paths.broker(broker)
        with self._faults.of(path):
            record = answer.report
            if record is None:
                url, load_manager = self._admin.address(broker), self.load_manager(broker)
                record = extensible_report(answer.metrics, answer.owned, self._loads.by_bundle, load_manager, url)
            self._note_clients(answer.owned, record["lastStats"])
            at_ms = self._dates.date(broker, record, answer.owned, clock.now_ms())
            if at_ms is not None:
                version = self._znodes[path].version + 1 if path in self._znodes else 0
                life = self._mirror.registrations[broker].incarnation
                body = orjson.dumps({**record, "lastUpdate": at_ms})
                self._znodes[path] = Znode(path, body, version, life, 0, 0)
            known = self._znodes[path]
            await self._records.decode_long(path, known)
            self._records.apply(broker, known)

    def _note_clients(self, owned: Iterable[str], stats: Mapping[str, Record]) -> None:
        for bundle in owned:
            found = stats.get(bundle)
            if found is None and bundle in self._with_clients:
                self._topicless_s.setdefault(bundle, time.monotonic())
            elif found is not None:
                self._end_doubt(bundle)
                if found["producerCount"] + found["consumerCount"] > 0:
                    self._with_clients.add(bundle)

    def _apply_configuration(self, dynamic: dict[str, str]) -> None:
        """Apply Pulsar's dynamic configuration and record its unusable values."""
        self.dynamic = dynamic
        faults = self._live.apply(dynamic)
        self._mirror.model.set_settings(self._live.planner)
        with self._faults.of(_DYNAMIC):
            if faults:
                raise InvalidRecordError(f"{_DYNAMIC}: {'; '.join(faults)}")

    def _apply_policies(self) -> None:
        operator_config = self._mirror.operator_config
        operator_config.anti_affinity = self._namespaces.groups()
        policies = operator_config.isolation, operator_config.failure_domains, operator_config.anti_affinity
        if policies != self._policies:
            self._policies = policies
            self._mirror.model.set_policies(policies_of(*policies))


def _older(since_s: Mapping[str, float]) -> list[str]:
    """Return the names whose time is at least a minute ago, the oldest first."""
    until_s = time.monotonic() - _UNSERVED_AFTER_S
    return [name for name, at_s in sorted(since_s.items(), key=lambda each: each[1]) if at_s <= until_s]
