"""Keeps the vigil of a standby over the leader (`loadmanager.core.leading.vigil`): asks it, and asks the store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any

import structlog

from loadmanager.calling import Caller, HttpClient
from loadmanager.core.leadership import Sighting
from loadmanager.core.leading.vigil import (
    Ask,
    Doubt,
    Doubted,
    Event,
    Heard,
    Instruction,
    Leads,
    Look,
    Missed,
    Probe,
    Seen,
    Spare,
    TakeOver,
    Vigil,
    VigilPhase,
)
from loadmanager.core.saying import Say
from loadmanager.errors import LoadManagerError, StoreError
from loadmanager.leader.carrying_out.driving import Driver
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.term.election import Election
from loadmanager.store import paths
from loadmanager.store.base import MetadataStore
from loadmanager.wire.http import LONGEST_HOLD_MS, TermAnswer
from loadmanager.wire.validation import parse_model

log = structlog.get_logger(__name__)

_MS_PER_S = 1000
_MOST_BYTES = 1024


class VigilKeeper:
    """`look` is to be called when what was read, or the own session or term, is another. `run` keeps the vigil."""

    def __init__(
        self, store: MetadataStore, view: ClusterView, election: Election, caller: Caller, patience_s: float
    ) -> None:
        self._store = store
        self._view = view
        self._election = election
        self._caller = caller
        self._vigil = Vigil(patience_s)
        self._driver = Driver[Event, Instruction](self._vigil, self._do)
        self._http: HttpClient
        self._is_kept = False

    @property
    def found_silent(self) -> int:
        """How many leaders were found silent, and were to be replaced."""
        return self._vigil.found_silent

    @property
    def hears(self) -> bool:
        """Whether the leader, another node, has answered lately."""
        return self._vigil.phase is VigilPhase.HEARD

    async def run(self) -> None:
        """Watch whoever leads, for as long as the node lives."""
        async with HttpClient(caller=self._caller) as self._http, asyncio.TaskGroup() as group:
            group.create_task(self._driver.run())
            await asyncio.sleep(0)  # it is running then
            self._is_kept = True
            self.look()

    def look(self) -> None:
        """See whom to watch: nobody while this node leads, or does not know who does."""
        if self._is_kept:
            self._driver.step(Leads(self._election.find_other_leader(), self._store.session_timeout_s))

    def _do(self, instruction: Instruction) -> Coroutine[Any, Any, Event] | None:
        match instruction:
            case Ask():
                return self._ask(instruction)
            case Doubt(leader):
                return self._doubt(leader)
            case Look():
                return self._see(instruction)
            case Probe():
                self._election.probe_soon()
            case TakeOver(czxid):
                self._election.found_silent(czxid)
            case Spare():
                self._election.found_silent(None)
            case Say(said, fields):
                log.warning(said, **fields)
        return None

    async def _ask(self, ask: Ask) -> Event:
        leader, hold_ms = ask.leader, min(round(ask.hold_s * _MS_PER_S), LONGEST_HOLD_MS)
        url = f"{leader.service_url}/loadbalance/v1/term?holdMs={hold_ms}"
        try:
            answer = await self._http.call(
                "GET", url, ask.hold_s + ask.patience_s, connect_timeout_s=ask.patience_s, most_bytes=_MOST_BYTES
            )
            if answer.status == HTTPStatus.OK and parse_model(TermAnswer, answer.body, url).epoch == leader.epoch:
                return Heard(leader.czxid)
        except LoadManagerError as error:
            log.debug("leader_not_heard", leader=leader.service_url, error=str(error))
        return Missed(leader.czxid)

    async def _doubt(self, leader: Sighting) -> Event:
        return Doubted(leader.czxid, await self._election.doubt(leader))

    async def _see(self, look: Look) -> Event:
        try:
            return Seen(look, await self._store.get(paths.DOUBT) is not None)
        except StoreError as error:
            log.debug("doubt_not_read", error=str(error))
            return Seen(look, None)
