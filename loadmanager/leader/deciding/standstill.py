"""Tells, while this node leads, why nothing can be moved: in the log when it begins, changes or ends."""

from __future__ import annotations

import asyncio

import structlog

from loadmanager.core.standstill import Standstill, find_standstill
from loadmanager.leader.deciding.desk import MINUTE_S, Desk
from loadmanager.leader.picture.live_settings import LiveSettings

log = structlog.get_logger(__name__)


class StandstillWatch:
    """`found` is what was found last, in this term."""

    def __init__(self, desk: Desk, live: LiveSettings) -> None:
        self._desk = desk
        self._live = live
        self.found: tuple[Standstill, ...] = ()

    async def run(self) -> None:
        """Look as often as shedding does, until the term ends."""
        try:
            while True:
                await self._live.pause(lambda settings: settings.load_balancer_shedding_interval_minutes * MINUTE_S)
                await self._try_to_look()
        finally:
            self.found = ()

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except Exception:
            log.exception("standstill_not_looked_for")

    async def look(self) -> None:
        found = await asyncio.to_thread(find_standstill, self._desk.snapshot(), self._live.planner)
        if [each.key for each in found] != [each.key for each in self.found]:
            self._tell(found)
        self.found = found

    def _tell(self, found: tuple[Standstill, ...]) -> None:
        if found:
            log.warning("nothing_can_move", keys=[each.key for each in found], why=[each.sentence for each in found])
        else:
            log.info("moves_possible_again")
