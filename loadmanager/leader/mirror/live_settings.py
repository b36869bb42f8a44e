"""Live settings: the node's start settings under the dynamic overrides of operators.

A control loop reads `current` once per round, so a change takes effect with the next round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from loadmanager.config.dynamic_settings import settings_under, usable_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.util.timed_wait import wait_at_most

log = structlog.get_logger(__name__)


class LiveSettings:
    """Settings that change at run time: `current` is replaced as a whole; `overrides` are the active ones, by key."""

    def __init__(self, base: Settings) -> None:
        self.base = base
        self.current = base
        self.planner: PlannerSettings = base.planner_settings()
        self.overrides: Mapping[str, str] = {}
        self._applied: Mapping[str, str] = {}
        self._faults: list[str] = []
        self._changed = asyncio.Event()

    def check(self, overrides: Mapping[str, str]) -> Settings:
        """Return the settings under these overrides; raises as `settings_under` does."""
        return settings_under(self.base, overrides)

    def apply(self, overrides: Mapping[str, str]) -> list[str]:
        """Apply these overrides, except invalid ones; return the errors of those."""
        if overrides == self._applied:  # read again more often than changed
            return self._faults
        settings, usable, self._faults = usable_overrides(self.base, overrides)
        self._applied = overrides
        if usable != self.overrides:
            log.info("dynamic_configuration", overrides=usable)
            self.overrides = usable
            self.current, self.planner = settings, settings.planner_settings()
            self._changed.set()
            self._changed = asyncio.Event()
        return self._faults

    async def pause(self, interval_s: Callable[[Settings], float]) -> None:
        """Sleep for an interval that may change meanwhile; a changed one counts from the start of the sleep."""
        started_s = time.monotonic()
        while (left_s := started_s + interval_s(self.current) - time.monotonic()) > 0:
            await wait_at_most(self._changed, left_s)
