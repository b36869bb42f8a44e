"""Stuck monitor of the leader: diagnoses why nothing can be moved, logs each change, and sizes the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from loadmanager.core.diagnosis.stuck_diagnosis import StuckDiagnosis, find_stuck_causes
from loadmanager.core.planning.blocking_limits import BlockingLimit
from loadmanager.core.planning.headroom import FleetSize, SizeMemory, size_fleet
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import MINUTE_S, PlannerService

log = structlog.get_logger(__name__)


class StuckMonitor:
    """Periodic stuck diagnosis; `found` is the last one of this term. `more_limits` returns limits outside the planner
    service. `size` is the fleet size, None while unknown.
    """

    def __init__(
        self,
        planner: PlannerService,
        live: LiveSettings,
        more_limits: Callable[[], Sequence[BlockingLimit]] = lambda: (),
    ) -> None:
        self._more_limits = more_limits
        self._planner = planner
        self._live = live
        self.found: tuple[StuckDiagnosis, ...] = ()
        self.size: FleetSize | None = None
        self._size_memory: SizeMemory | None = None
        self._is_running = False
        self._logged: list[str] = []

    @property
    def limits(self) -> list[BlockingLimit]:
        """Limits that currently keep bundles from moving; none outside a term."""
        return [*self._more_limits(), *self._planner.blocking_limits()] if self._is_running else []

    async def run(self) -> None:
        """Diagnose as often as shedding runs, until the term ends."""
        self._is_running = True
        try:
            while True:
                await self._live.pause(lambda settings: settings.load_balancer_shedding_interval_minutes * MINUTE_S)
                await self._try_to_look()
        finally:
            self.found, self._logged, self._is_running = (), [], False
            self.size = self._size_memory = None

    async def _try_to_look(self) -> None:
        try:
            await self.look()
        except Exception:
            log.exception("stuck_check_failed")

    async def look(self) -> None:
        snapshot = self._planner.snapshot()
        sized = await asyncio.to_thread(size_fleet, snapshot, self._live.planner, self._size_memory)
        self.size, self._size_memory = sized or (None, self._size_memory)
        found = await asyncio.to_thread(find_stuck_causes, snapshot, self._live.planner)
        keys, before = [each.key for each in found], [each.key for each in self.found]
        self.found = found
        if keys == before and keys != self._logged:  # logged only if two checks in a row agree
            self._logged = keys
            self._log_change(keys)

    def _log_change(self, keys: list[str]) -> None:
        if keys:
            log.warning("nothing_can_move", keys=keys, why=[each.sentence for each in self.found])
        else:
            log.info("moves_possible_again")
