"""Driver of `loadmanager.core.protocol.leadership`: campaigns, answers a suspicion, steps down."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

import structlog

from loadmanager.core.protocol.leadership import (
    Action,
    Campaign,
    Knowledge,
    LeaderZnode,
    Reassure,
    StepDown,
    StepDownReason,
    Term,
    Vacate,
    Wait,
    choose_action,
    find_end,
    open_since,
)
from loadmanager.errors import NotLeaderError, StoreError, TransactionFailedError
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.store import paths
from loadmanager.store.metadata_store import Check, Create, Delete, MetadataStore, Op, Put
from loadmanager.util import clock
from loadmanager.util.timed_wait import wait_at_most
from loadmanager.wire.store_records import LeaderRecord, SuspicionRecord

log = structlog.get_logger(__name__)

_RETRY_S = 0.1
_LONG_RETRY_S = 5.0
_LONG_WITHOUT_LEADER_TIMEOUTS = 3
"""Report a missing leader after this many session timeouts; a failover takes less."""

_OTHERS_TURN_S = 1.0
"""Delay of a campaign by a node whose connection broke recently, so that other nodes win; a campaign is far faster."""

_OBSTACLES = {
    (paths.EPOCH, "no_node"): f"{paths.EPOCH} is missing: stop nodes and agents, start the agents once a node leads",
    (paths.LEADER, "not_empty"): f"{paths.LEADER} is persistent and has children: delete it with all that is below it",
}
"""Obstacles that only an operator can remove, by the path and the cause of a refused campaign."""


class Election:
    """Leader election, as one node takes part in it.

    `on_elected(term)` is called after a win, `on_deposed(reason)` as soon as the term is over.
    """

    def __init__(
        self,
        store: MetadataStore,
        mirror: ClusterMirror,
        node: LeaderRecord,
        on_elected: Callable[[Term], None],
        on_deposed: Callable[[StepDownReason], None],
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._node = node
        self._on_elected = on_elected
        self._on_deposed = on_deposed
        self._wake = asyncio.Event()
        self._term: Term | None = None
        self._ended_czxid: int | None = None
        self._silent_czxid: int | None = None
        self._reassured_czxid: int | None = None
        self._open_since_s: float | None = None
        self._unsound_until_s = -math.inf
        self._obstacle: str | None = None
        self._resigned = False
        self.terms_won = 0

    @property
    def term(self) -> Term | None:
        """The term of this node, if it leads right now: the lease is checked at every call."""
        term, mirror = self._term, self._mirror
        if term is not None:
            over = find_end(
                term,
                self._store.session_id,
                mirror.leader,
                mirror.epoch,
                lease_is_valid=clock.now_s() < self._store.lease_valid_until_s,
                mirror_is_fresh=mirror.is_fresh,
            )
            if over is not None:
                self._step_down(over)
        return self._term

    def get_term(self) -> Term:
        """The current term; `NotLeaderError` when this node does not lead."""
        term = self.term
        if term is None:
            raise NotLeaderError("this node does not lead")
        return term

    def why_nobody_leads(self) -> str | None:
        """Return why there is no leader; None when there is one, or a failover is within its usual time."""
        if self._open_since_s is None:
            return None
        if self._obstacle is not None:
            return f"nobody can lead: {self._obstacle}"
        since_s = clock.now_s() - self._open_since_s
        if since_s <= _LONG_WITHOUT_LEADER_TIMEOUTS * self._store.session_timeout_s:
            return None
        return f"nobody has led for {since_s:.0f} s"

    def wake(self) -> None:
        """Step the leadership machine after a change that may affect it."""
        self._wake.set()

    def link_changed(self) -> None:
        """Record a lost or restored connection: it counts as unstable for one session timeout."""
        self._unsound_until_s = clock.now_s() + self._store.session_timeout_s
        self.wake()

    def find_other_leader(self) -> LeaderZnode | None:
        """Return the leader if it is another node, also when it is silent and about to be replaced.

        None when there is no such leader, or the mirror is not fresh.
        """
        known = replace(self._knowledge(), silent_czxid=None)
        if known.term is not None or not known.mirror_is_fresh or open_since(known) is not None:
            return None
        return known.leader

    async def suspect(self, leader: LeaderZnode) -> bool:
        """Write a suspicion of the leader into the store; return False when it no longer leads."""
        record = SuspicionRecord(node_id=self._node.broker_id, epoch=leader.epoch)
        suspicion = Create(paths.SUSPICION, record.to_json(), ephemeral=True)
        try:
            await self._store.commit([Check(paths.EPOCH, leader.epoch), suspicion])
        except TransactionFailedError as error:
            return error.index != 0
        except StoreError as error:
            log.info("suspicion_not_written", error=str(error))
        return True

    def found_silent(self, czxid: int | None) -> None:
        """Record that the leader with this znode is suspected and silent; None: it has answered after all."""
        self._silent_czxid = czxid
        self.wake()

    def found_ended(self, czxid: int) -> None:
        """Record that the process of the leader with this znode has exited."""
        self._ended_czxid = czxid
        self.wake()

    def deposed(self) -> None:
        """Step down: the store refused a fenced write, so another leader has taken over."""
        if self._term is not None:
            self._step_down(StepDownReason.EPOCH_MOVED_ON)

    def violated(self) -> None:
        """Step down: this leader was about to write a record that violates an invariant."""
        if self._term is not None:
            self._step_down(StepDownReason.INVARIANT_VIOLATED)

    async def run(self) -> None:
        """Take part in elections until `resign`."""
        while not self._resigned:
            self._wake.clear()
            self._open_since_s = open_since(self._knowledge())
            if self._open_since_s is None:
                self._obstacle = None
            wait_until_s = await self._act(choose_action(self._knowledge()))
            if wait_until_s is None or wait_until_s > clock.now_s():
                await self._sleep_until(wait_until_s)

    async def resign(self) -> None:
        """Step down at once: delete the leader znode, and take no further part."""
        self._resigned = True
        self.wake()
        term = self._term
        if term is None:
            return
        self._step_down(None)
        await self._take_znode_away(term.epoch, term.session_id)

    def _knowledge(self) -> Knowledge:
        return Knowledge(
            now_s=clock.now_s(),
            node_id=self._node.broker_id,
            session_id=self._store.session_id,
            lease_valid_until_s=self._store.lease_valid_until_s,
            mirror_is_fresh=self._mirror.is_fresh,
            epoch_version=self._mirror.epoch,
            leader=self._mirror.leader,
            term=self._term,
            ended_czxid=self._ended_czxid,
            silent_czxid=self._silent_czxid,
            is_suspected=self._mirror.suspicion_czxid not in {None, self._reassured_czxid},
            open_since_s=self._open_since_s,
            unsound_until_s=self._unsound_until_s,
            turn_s=_OTHERS_TURN_S if self._mirror.nodes.keys() - {self._node.broker_id} else 0.0,
        )

    async def _act(self, action: Action) -> float | None:
        match action:
            case Wait(until_s):
                return until_s
            case Campaign():
                await self._campaign(action)
            case Vacate(epoch_version):
                log.info("candidacy_delayed", epoch=epoch_version)
                await self._take_znode_away(epoch_version, self._store.session_id)
                await self._sleep_until(clock.now_s() + _RETRY_S)
            case Reassure(epoch):
                await self._reassure(epoch)
            case StepDown(reason):
                self._step_down(reason)
        return 0.0

    async def _sleep_until(self, until_s: float | None) -> None:
        timeout_s = None if until_s is None else max(0.0, until_s - clock.now_s())
        await wait_at_most(self._wake, timeout_s)

    async def _campaign(self, campaign: Campaign) -> None:
        session_id = self._store.session_id
        epoch = campaign.epoch_version + 1
        record = self._node.model_copy(update={"epoch": epoch})
        ops: list[Op] = [Put(paths.EPOCH, self._node.broker_id.encode(), campaign.epoch_version)]
        if campaign.replaces_leader:
            ops.append(Delete(paths.LEADER))
        if campaign.on_suspicion:
            ops.append(Delete(paths.SUSPICION))
            self._silent_czxid = None  # one attempt: if it fails, the leader has answered or changed
        ops.append(Create(paths.LEADER, record.to_json(), ephemeral=True))
        try:
            await self._store.commit(ops, session_id=session_id)
        except TransactionFailedError as error:
            denied = self._store.denied.get(error.path) if error.cause == "no_access" else None
            obstacle = denied or _OBSTACLES.get((error.path, error.cause))
            if obstacle is None:
                log.info("campaign_lost", epoch=epoch, cause=error.cause)
            elif obstacle != self._obstacle:
                log.error("nobody_can_lead", why=obstacle)  # noqa: TRY400 - a state of the store, not of the code
            self._obstacle = obstacle
            await self._sleep_until(clock.now_s() + (_RETRY_S if obstacle is None else _LONG_RETRY_S))
            return
        except StoreError as error:
            log.info("campaign_failed", epoch=epoch, error=str(error))
            await self._sleep_until(clock.now_s() + _RETRY_S)
            return
        self._term = Term(epoch, session_id)
        self.terms_won += 1
        log.info("elected", epoch=epoch, replaced_leader=campaign.replaces_leader, on_suspicion=campaign.on_suspicion)
        self._on_elected(self._term)

    async def _take_znode_away(self, epoch: int, session_id: int) -> None:
        """Delete our leader znode, unless another leader was elected since that epoch."""
        try:
            await self._store.commit([Check(paths.EPOCH, epoch), Delete(paths.LEADER)], session_id=session_id)
        except StoreError as error:
            log.info("leader_znode_left_to_expire", error=str(error))

    async def _reassure(self, epoch: int) -> None:
        """Delete the suspicion of a standby that does not hear this node."""
        suspicion = self._mirror.suspicion_czxid
        try:
            await self._store.commit([Check(paths.EPOCH, epoch), Delete(paths.SUSPICION)])
        except TransactionFailedError as error:
            if error.index == 0:
                self.deposed()
                return
        except StoreError as error:
            log.info("suspicion_not_deleted", error=str(error))
            await self._sleep_until(clock.now_s() + _RETRY_S)
            return
        self._reassured_czxid = suspicion
        log.debug("suspicion_deleted", epoch=epoch)

    def _step_down(self, reason: StepDownReason | None) -> None:
        """End the term; without a reason it ends because this node resigns."""
        term, self._term = self._term, None
        self._wake.set()
        if term is not None and reason is not None:
            log.warning("stepped_down", epoch=term.epoch, reason=reason)
            self._on_deposed(reason)
