"""Driver of `loadmanager.agent.presence`: registers the broker in the metadata store.

`Registrar` drives the state machine. `StoreRollback` detects a store that has lost writes, and withdraws the
registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Grants, Leases
from loadmanager.agent.presence import (
    Action,
    BrokerProcess,
    CheckRegistration,
    CloseTopics,
    CreateRegistration,
    DeleteRegistration,
    Died,
    Event,
    Forget,
    Presence,
    PresencePhase,
    PresenceSignal,
    Read,
    Register,
    RegistrationCreator,
    Withdraw,
    Work,
    WorkFailed,
    Wrote,
    ZnodeRead,
)
from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import OwnershipState
from loadmanager.core.protocol.state_machine import Say, do_all
from loadmanager.errors import InvalidRecordError, StoreError, TransactionFailedError, ZnodeTooLargeError
from loadmanager.net.liveness import Life
from loadmanager.store import metadata_store, paths, znode_codec
from loadmanager.store.metadata_store import MetadataStore, SessionState, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.broker_data import AGENT_PROTOCOL, decode_local_broker_data
from loadmanager.wire.store_records import decode_namespace

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Registrar:
    """Maintains `/loadbalance/brokers/<broker>`. `first_record()` returns the content of a new znode."""

    store: MetadataStore
    broker_id: str
    life: Life
    grants: Grants
    leases: Leases
    metrics: AgentMetrics
    clock: Callable[[], float]
    first_record: Callable[[], Awaitable[bytes]]
    close_topics: Callable[[], None]
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _path: str = field(init=False)
    _presence: Presence = field(init=False)

    def __post_init__(self) -> None:
        self._path = paths.broker(self.broker_id)
        self._presence = Presence(self.life.name, self.leases)

    @property
    def phase(self) -> PresencePhase:
        return self._presence.phase

    @property
    def is_overwritten(self) -> bool:
        """Tell if another writer has replaced our record; it must be written again."""
        return self._presence.is_overwritten

    @property
    def incarnation(self) -> int | None:
        """The current incarnation; None unless the broker is registered in this session."""
        return self._presence.incarnation(self.store.session_id)

    @property
    def is_certain(self) -> bool:
        """Tell if the broker is certainly registered now."""
        return self.incarnation is not None and self.clock() < self.store.lease_valid_until_s

    def grant_lease(self, holder: BrokerProcess | None = None) -> int:
        """Return the lease in milliseconds, counted from when the broker asked; 0: none.

        `holder` is the process that asked, if that is certain; see `Leases`.
        """
        return self._presence.grant(self.clock(), self.store.session_id, self.store.lease_valid_until_s, holder)

    def wake(self) -> None:
        """Check the registration now instead of at the next interval."""
        self._wake.set()

    def end(self) -> None:
        """Grant nothing from now on: the agent is about to stop."""
        self._tell(PresenceSignal.END)

    def withdraw(self, reason: str) -> bool:
        """Grant nothing more; delete the znode once no lease is valid. False if there was nothing to withdraw."""
        is_registered = self.phase is PresencePhase.REGISTERED
        self._tell(Withdraw(reason))
        return is_registered

    def died(self, process: BrokerProcess) -> None:
        """Note that this broker process has certainly exited: do not wait for its leases."""
        self._tell(Died(process))
        self.wake()

    def broker_closed_everything(self) -> None:
        """Note that the broker serves nothing: do not wait for its lease."""
        self._tell(PresenceSignal.CLOSED_EVERYTHING)
        self.wake()

    async def leave(self) -> None:
        """Delete the registration, or try until the session may be closed anyway."""
        self._tell(PresenceSignal.LEAVE)
        while not self._presence.may_go(self.clock()):
            await self.step_and_wait(lambda: None)

    async def run(self, wanted: Callable[[], BrokerProcess | None]) -> None:
        """Keep the registration as `wanted()` says, for ever."""
        unsubscribe = (
            self.store.watch(self._path, lambda _path: self.wake()),
            self.store.on_session(lambda _state: self.wake()),
        )
        try:
            while True:
                await self.step_and_wait(wanted)
        finally:
            for end in unsubscribe:
                end()

    async def step_and_wait(self, wanted: Callable[[], BrokerProcess | None]) -> None:
        """Do one step, then wait until the next one is due or `wake` is called."""
        self._wake.clear()
        wait_s = await self.step(wanted())
        await wait_at_most(self._wake, wait_s)

    async def step(self, wanted: BrokerProcess | None) -> float:
        """Do the pending work; return the seconds until the next check at the latest."""
        is_connected = self.store.state is SessionState.CONNECTED
        work = self._tell(CheckRegistration(wanted, self.store.session_id, is_connected))
        while work is not None:
            work = self._tell(await self._outcome_of(work))
        return max(0.0, self._presence.wake_s - self.clock())

    async def publish(self, record: bytes) -> None:
        """Replace the znode's content; `StoreError` if that failed or its outcome is unknown."""
        held = self._presence.registered
        if held is None:
            raise StoreError("the broker is not registered")
        put = metadata_store.Put(self._path, record, held.version)
        try:
            (version,) = await self.store.commit([put], session_id=held.session_id)
        except ZnodeTooLargeError:
            raise
        except StoreError:
            # The write may have changed the version; the next check reads it again.
            self.wake()
            raise
        self._tell(Wrote(held.incarnation, version))

    # The driver

    def _tell(self, event: Event) -> Work | None:
        """Step the state machine, do its immediate actions, and return the one that needs the store, if any."""
        actions = self._presence.step(event, self.clock())
        do_all(actions, self._do_at_once)
        return next((each for each in actions if isinstance(each, Work)), None)

    def _do_at_once(self, action: Action) -> None:
        match action:
            case Say(event, fields, is_warning):
                (log.warning if is_warning else log.info)(event, path=self._path, **fields)
            case Register(incarnation):
                self.grants.register(incarnation)
                self.metrics.registrations.inc()
            case CloseTopics():
                self.close_topics()
            case Forget(reason):
                self.grants.forget()
                self.metrics.withdrawals.labels(reason).inc()

    async def _outcome_of(self, work: Work) -> Event:
        try:
            return await self._do(work)
        except TransactionFailedError as error:
            return (
                PresenceSignal.DELETED
                if isinstance(work, DeleteRegistration) and error.cause == "no_node"
                else WorkFailed(error)
            )
        except StoreError as error:
            return WorkFailed(error)

    async def _do(self, work: Work) -> Event:
        match work:
            case Read():
                znode = await self.store.get(self._path)
                session_id = self.store.session_id
                if znode is None or znode.ephemeral_owner == session_id:
                    return ZnodeRead(znode, session_id)
                return ZnodeRead(znode, session_id, self._find_creator(znode))
            case CreateRegistration(session_id):
                await self.store.ensure_path(paths.BROKERS)  # missing in a store that was wiped
                create = metadata_store.Create(self._path, await self.first_record(), ephemeral=True)
                await self.store.commit([create], session_id=session_id)
                return await self._do(Read())
            case DeleteRegistration(version, session_id):
                await self.store.commit([metadata_store.Delete(self._path, version)], session_id=session_id)
                return PresenceSignal.DELETED

    def _find_creator(self, znode: Znode) -> RegistrationCreator | None:
        try:
            record = decode_local_broker_data(znode_codec.decode(znode.data, self._path), self._path)
        except InvalidRecordError as error:
            self.metrics.garbage.labels("registration").inc()
            log.warning("leftover_znode_unreadable", error=str(error))
            return None
        life = record.get("agentLife", "")
        url = (record.get("protocols") or {}).get(AGENT_PROTOCOL)
        return RegistrationCreator(life, self.life.is_over(life), record.get("brokerLeaseMs"), url)


@dataclass(frozen=True, slots=True)
class StoreRollback:
    """Detects a metadata store that has lost writes, by comparing it with the unloads that the agent has received.

    `withdraw` removes the registration. A leader is elected before it sends an unload, and it writes a bundle's release
    before its unload. So unless writes were lost, the store after a `sync` is never behind a received unload:

        in the unload                   in the store                                  then
        -------------                   ------------                                  ----
        its leader's epoch              an older epoch                                writes were lost
        the version of the release      the bundle is Owned by this very              writes were lost
                                        registration, at that version or an older one
        anything                        anything else, or the store is unavailable    no loss is proven

    After a loss, the old fences and epochs would block the restored store for ever: the agent would grant no bundle
    that the store assigns, and refuse every leader's unloads. A new registration starts without fences and epochs.
    """

    store: MetadataStore
    grants: Grants
    withdraw: Callable[[str], object]

    async def look(self, bundle: BundleName) -> None:
        """Compare the fence of the bundle and the highest epoch with the store; withdraw if writes were lost."""
        registration, epoch = self.grants.registration, self.grants.highest_epoch
        fence = self.grants.highest_fence(bundle)
        try:
            were_lost = await self.read_epoch() < epoch or await self._is_owned_up_to(fence, bundle)
        except (StoreError, InvalidRecordError) as error:
            log.warning("store_not_compared", error=str(error))
            return
        if were_lost and registration == self.grants.registration:
            log.warning("store_rolled_back", bundle=str(bundle), version=fence, epoch=epoch)
            self.withdraw("store_rolled_back")

    async def read_epoch(self) -> int:
        """Return the current epoch; `StoreError` if it cannot be read."""
        await self.store.sync()
        znode = await self.store.get(paths.EPOCH)
        return znode.version if znode else 0

    async def _is_owned_up_to(self, version: int, bundle: BundleName) -> bool:
        path = paths.namespace(str(bundle.namespace))
        znode = await self.store.get(path)
        if znode is None:
            return False
        state = decode_namespace(bundle.namespace, decode(znode.data, path), path)
        index = state.bundles.find_index(bundle.range)
        if index is None:
            return False
        ownership = state.ownerships[index]
        is_ours = ownership.state is OwnershipState.OWNED and ownership.owner == self.grants.registration
        return is_ours and ownership.version <= version
