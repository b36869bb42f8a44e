"""The broker's znode: created, given up and created again, so that it never says more than is true.

    state          event                                    then
    -----          -----                                    ----
    ABSENT         broker serves, session lives             a left-over znode is dealt with, then create -> REGISTERED
    REGISTERED     session lost, or znode vanished          everything is forgotten -> ABSENT (a new incarnation later)
    REGISTERED     broker gone, another process, or stop    no lease from here on -> WITHDRAWING
    WITHDRAWING    the last lease has lapsed, or the        znode deleted -> ABSENT
                   broker has closed everything
    WITHDRAWING    session lost                             the znode goes with it -> ABSENT

The incarnation is the znode's `czxid`. The znode is deleted only when no lease can be valid any more, because its
absence tells the leader that this broker serves nothing.

A znode left over from a former life of this agent is deleted as soon as no lease of that life can be valid. Any other
is left to the session that holds it: an agent that lives may stand behind it, wherever its address leads from here.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from loadmanager.agent.broker_watch import BrokerProcess
from loadmanager.agent.grants import Grants
from loadmanager.agent.lease import Leases
from loadmanager.agent.life import Life
from loadmanager.agent.metrics import AgentMetrics
from loadmanager.errors import InvalidRecordError, StoreError, TransactionFailedError, ZnodeTooLargeError
from loadmanager.store import codec, paths
from loadmanager.store.base import Create, Delete, MetadataStore, Put, SessionState, Znode
from loadmanager.wire.broker_data import AGENT_PROTOCOL, decode_local_broker_data

log = structlog.get_logger(__name__)

_RETRY_S = 0.5
_LOOK_AGAIN_S = 5.0


class Phase(enum.StrEnum):
    ABSENT = "absent"
    REGISTERED = "registered"
    WITHDRAWING = "withdrawing"


@dataclass(slots=True)
class _Held:
    """The znode of one registration, and for which broker process and in which session it was created."""

    process: BrokerProcess
    session_id: int
    czxid: int
    version: int
    withdrawn: bool = False


class Registration:
    """Keeps `/loadbalance/brokers/<broker>` as it should be. `first_record()` is what a new znode says."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: str,
        life: Life,
        grants: Grants,
        leases: Leases,
        metrics: AgentMetrics,
        clock: Callable[[], float],
        first_record: Callable[[], bytes],
    ) -> None:
        self._store = store
        self._path = paths.broker(broker_id)
        self._life = life
        self._grants = grants
        self._leases = leases
        self._metrics = metrics
        self._clock = clock
        self._first_record = first_record
        self._held: _Held | None = None
        self._leftover_czxid: int | None = None
        self._foreign_czxid: int | None = None
        self._nothing_open = False
        self._delayed = False
        self._ending = False
        self.overwritten = False
        """Whether another has written our record, so that it has to be written again."""
        self._wake = asyncio.Event()

    @property
    def phase(self) -> Phase:
        if self._held is None:
            return Phase.ABSENT
        return Phase.WITHDRAWING if self._held.withdrawn else Phase.REGISTERED

    @property
    def incarnation(self) -> int | None:
        """The incarnation under which the broker may be told anything: None unless registered in this very session."""
        held = self._held
        if held is None or held.withdrawn or self._ending or not self._is_ours(held):
            return None
        return held.czxid

    @property
    def is_certain(self) -> bool:
        """Whether the broker is registered beyond doubt, at this moment."""
        return self.incarnation is not None and self._clock() < self._store.lease_valid_until_s

    def grant_lease(self) -> int:
        """Milliseconds for which the broker may serve, counted from when it asked; 0: not at all."""
        valid_until_s = self._store.lease_valid_until_s
        return self._leases.grant(valid_until_s) if self.incarnation is not None else 0

    def wake(self) -> None:
        """Something that may bear on the registration has changed."""
        self._wake.set()

    def end(self) -> None:
        """Grant nothing from here on: the agent is about to end."""
        self._ending = True

    def withdraw(self, reason: str) -> bool:
        """Grant nothing more; the znode goes once no lease is valid. False when there was nothing to withdraw."""
        if self._held is None or self._held.withdrawn:
            return False
        log.warning("withdrawing", reason=reason, incarnation=self._held.czxid)
        self._held.withdrawn = True
        self._nothing_open = False
        self._grants.forget()
        self._metrics.withdrawals.labels(reason).inc()
        return True

    def broker_closed_everything(self) -> None:
        """The broker said that it serves nothing: its lease need not be waited for."""
        self._nothing_open = True
        self.wake()

    async def run(self, wanted: Callable[[], BrokerProcess | None]) -> None:
        """Keep the registration as `wanted()` says, for ever."""
        unsubscribe = (
            self._store.watch(self._path, lambda _path: self.wake()),
            self._store.on_session(lambda _state: self.wake()),
        )
        try:
            while True:
                await self.step_and_wait(wanted)
        finally:
            for end in unsubscribe:
                end()

    async def step_and_wait(self, wanted: Callable[[], BrokerProcess | None]) -> None:
        """One step, and the time until there may be another one to do."""
        self._wake.clear()
        wait_s = await self.step(wanted())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):  # wait_for may swallow a cancellation that meets the wake-up
                await self._wake.wait()

    async def step(self, wanted: BrokerProcess | None) -> float:
        """Do what there is to do now; the seconds after which to look again at the latest."""
        try:
            wait_s = await self._step(wanted)
        except StoreError as error:
            if not self._delayed:
                log.warning("registration_delayed", phase=self.phase, error=str(error))
            self._delayed = True
            return _RETRY_S
        self._delayed = False
        return wait_s

    async def publish(self, record: bytes) -> None:
        """Replace what the znode says; `StoreError` when that did not happen, or is not known to."""
        held = self._held
        if held is None or held.withdrawn:
            raise StoreError("the broker is not registered")
        try:
            (held.version,) = await self._store.commit(
                [Put(self._path, record, held.version)], session_id=held.session_id
            )
            self.overwritten = False
        except ZnodeTooLargeError:
            raise
        except StoreError:
            # The version may have moved on without our knowing; the next look reads it again.
            self.wake()
            raise

    async def _step(self, wanted: BrokerProcess | None) -> float:
        if self._held is not None and not self._is_ours(self._held):
            self._forget("session_lost")
        if self._held is not None:
            await self._compare_with_store(self._held)
        held = self._held
        if held is not None and not held.withdrawn and held.process != wanted:
            self.withdraw("broker_gone" if wanted is None else "broker_restarted")
        if held is not None and held.withdrawn:
            return await self._delete_when_lapsed(held)
        if held is None and wanted is not None and self._store.state is SessionState.CONNECTED:
            return await self._register(wanted)
        return _LOOK_AGAIN_S

    async def _compare_with_store(self, held: _Held) -> None:
        znode = await self._store.get(self._path)
        if self._held is not held or not self._is_ours(held):
            return
        if znode is not None and znode.czxid == held.czxid:
            if znode.version > held.version:
                log.warning("record_written_by_another", path=self._path, version=znode.version)
                self.overwritten = True
            held.version = znode.version
        elif held.withdrawn:
            self._deregistered(held)  # by a delete whose outcome was not known
        else:
            self._forget("znode_vanished")

    async def _delete_when_lapsed(self, held: _Held) -> float:
        remaining_s = self._leases.lapsed_at_s - self._clock()
        if remaining_s > 0 and not self._nothing_open:
            return remaining_s
        try:
            await self._store.commit([Delete(self._path)], session_id=held.session_id)
        except TransactionFailedError as error:
            if error.cause != "no_node":
                raise
        self._deregistered(held)
        return 0.0

    async def _register(self, process: BrokerProcess) -> float:
        session_id = self._store.session_id
        znode = await self._store.get(self._path)
        if znode is not None and znode.ephemeral_owner != session_id:
            return await self._deal_with_leftover(znode)
        if znode is None:
            await self._store.ensure_path(paths.BROKERS)  # a store that was wiped has lost it
            # A refusal because it exists meanwhile, or an unknown outcome, is looked at again in the next step.
            await self._store.commit([Create(self._path, self._first_record(), ephemeral=True)], session_id=session_id)
            znode = await self._store.get(self._path)
        if znode is None or znode.ephemeral_owner != session_id or self._store.session_id != session_id:
            return 0.0
        self._held = _Held(process, session_id, znode.czxid, znode.version)
        self._leftover_czxid = None
        self._grants.register(znode.czxid)
        self._metrics.registrations.inc()
        log.info("registered", path=self._path, incarnation=znode.czxid, pid=process[0])
        return _LOOK_AGAIN_S

    async def _deal_with_leftover(self, znode: Znode) -> float:
        if znode.czxid != self._leftover_czxid:
            lease_ms = self._longest_lease_of_former_life(znode)
            if lease_ms is None:
                return _RETRY_S
            log.info("leftover_znode", path=self._path, incarnation=znode.czxid, longest_lease_ms=lease_ms)
            self._leftover_czxid = znode.czxid
            self._leases.assume_granted_by_predecessor(lease_ms)
        remaining_s = self._leases.lapsed_at_s - self._clock()
        if remaining_s > 0:
            return remaining_s
        await self._store.commit([Delete(self._path, znode.version)], session_id=self._store.session_id)
        return 0.0

    def _longest_lease_of_former_life(self, znode: Znode) -> int | None:
        """Milliseconds; None unless the agent that made the znode was this one before, and has ended for certain."""
        try:
            record = decode_local_broker_data(codec.decode(znode.data, self._path), self._path)
        except InvalidRecordError as error:
            self._metrics.garbage.labels("registration").inc()
            log.warning("leftover_znode_unreadable", error=str(error))
            return None
        life, lease_ms = record.get("agentLife", ""), record.get("brokerLeaseMs")
        if life == self._life.name or self._life.is_over(life):
            return lease_ms
        if znode.czxid != self._foreign_czxid:
            self._foreign_czxid = znode.czxid
            url = (record.get("protocols") or {}).get(AGENT_PROTOCOL)
            log.warning("broker_id_in_use", path=self._path, agent_url=url, life=life, incarnation=znode.czxid)
        return None

    def _deregistered(self, held: _Held) -> None:
        self._held = None
        log.info("deregistered", incarnation=held.czxid)

    def _forget(self, reason: str) -> None:
        """The registration has ended without our doing."""
        log.warning("registration_lost", reason=reason, incarnation=self._held.czxid if self._held else None)
        self._metrics.withdrawals.labels(reason).inc()
        self._held = None
        self._grants.forget()

    def _is_ours(self, held: _Held) -> bool:
        return self._store.session_id == held.session_id and self._store.state is not SessionState.LOST
