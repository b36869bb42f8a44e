"""Driver of the failure detector (`loadmanager.core.protocol.failure_detector`): asks the leader, the kernel and the
store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

import structlog

from loadmanager.core.protocol.failure_detector import (
    Action,
    AskLeader,
    CancelTakeOver,
    CheckSuspicion,
    EarlyTakeOver,
    Event,
    FailureDetector,
    FailureDetectorPhase,
    LeaderAnswered,
    LeaderMissed,
    LeaderProcessEnded,
    NodeLeads,
    RaiseSuspicion,
    SuspicionChecked,
    SuspicionRaised,
)
from loadmanager.core.protocol.leadership import LeaderZnode
from loadmanager.core.protocol.state_machine import Say
from loadmanager.errors import LoadManagerError, StoreError
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.election.machine_driver import MachineDriver
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.net.http_client import Caller, HttpClient
from loadmanager.net.liveness import Life, is_refused
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.wire.http_bodies import LONGEST_HOLD_MS, TermAnswer
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)

_MS_PER_S = 1000
_MOST_BYTES = 1024


class LeaderWatch:
    """Failure detector for the leader, on a standby. Call `look` when the mirror, the session or the term has
    changed.
    """

    def __init__(
        self,
        store: MetadataStore,
        mirror: ClusterMirror,
        election: Election,
        caller: Caller,
        silence_s: float,
        life: Life,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._election = election
        self._caller = caller
        self._life = life
        self._detector = FailureDetector(silence_s)
        self._driver = MachineDriver[Event, Action](self._detector, self._do)
        self._http: HttpClient
        self._is_kept = False

    @property
    def found_silent(self) -> int:
        """Number of leaders that this node has found silent."""
        return self._detector.found_silent

    @property
    def hears(self) -> bool:
        """True while the leader is another node that answers."""
        return self._detector.phase is FailureDetectorPhase.HEARD

    async def run(self) -> None:
        """Watch the current leader, for as long as the node lives."""
        async with HttpClient(caller=self._caller) as self._http, asyncio.TaskGroup() as group:
            group.create_task(self._driver.run())
            await asyncio.sleep(0)  # it is running then
            self._is_kept = True
            self.look()

    def look(self) -> None:
        """Select the leader to watch; none while this node leads or the leader is unknown."""
        if self._is_kept:
            sessions = frozenset(self._mirror.node_sessions.values()) if self._mirror.is_fresh else None
            leader, session_s = self._election.find_other_leader(), self._store.session_timeout_s
            self._driver.step(NodeLeads(leader, session_s, sessions))

    def _do(self, action: Action) -> Coroutine[Any, Any, Event] | None:
        match action:
            case AskLeader():
                return self._ask(action)
            case RaiseSuspicion(leader):
                return self._suspect(leader)
            case CheckSuspicion():
                return self._see(action)
            case EarlyTakeOver(czxid, has_ended):
                (self._election.found_ended if has_ended else self._election.found_silent)(czxid)
            case CancelTakeOver():
                self._election.found_silent(None)
            case Say(event, fields, is_warning):
                (log.warning if is_warning else log.info)(event, **fields)
        return None

    async def _ask(self, ask: AskLeader) -> Event:
        leader, hold_ms = ask.leader, min(round(ask.hold_s * _MS_PER_S), LONGEST_HOLD_MS)
        url = f"{leader.service_url}/loadbalance/v1/term?holdMs={hold_ms}"
        try:
            answer = await self._http.call(
                "GET", url, ask.hold_s + ask.timeout_s, connect_timeout_s=ask.timeout_s, most_bytes=_MOST_BYTES
            )
            if answer.status == HTTPStatus.OK and parse_model(TermAnswer, answer.body, url).epoch == leader.epoch:
                return LeaderAnswered(leader.czxid)
        except LoadManagerError as error:
            log.debug("leader_not_heard", leader=leader.service_url, error=str(error))
        if self._life.is_over(leader.life) and await is_refused(leader.service_url):
            return LeaderProcessEnded(leader.czxid)
        return LeaderMissed(leader.czxid)

    async def _suspect(self, leader: LeaderZnode) -> Event:
        log.debug("leader_suspected", leader=leader.service_url, epoch=leader.epoch)
        return SuspicionRaised(leader.czxid, await self._election.suspect(leader))

    async def _see(self, look: CheckSuspicion) -> Event:
        try:
            return SuspicionChecked(look, await self._store.get(paths.SUSPICION) is not None)
        except StoreError as error:
            log.debug("suspicion_not_read", error=str(error))
            return SuspicionChecked(look, None)
