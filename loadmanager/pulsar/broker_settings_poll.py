"""What each broker says that it goes by: asked of each life of it, and again when dynamic configuration has changed.

A broker's settings are those of its file under what dynamic configuration overrides; both are in its answer. So nobody
needs to ask a thousand brokers before each round. But a broker hears of a change when it does, perhaps after we have
asked: what it says within half a minute of one is asked again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Protocol

import structlog

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.lab.decide.broker_settings import BrokerSettings
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.planning.planner_service import MINUTE_S
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError
from loadmanager.pulsar.take_over import SHEDS, SPLITS, SWITCHES
from loadmanager.wire.broker_data import LocalBrokerData

log = structlog.get_logger(__name__)

_AT_A_TIME = 8
_AGAIN_S = 10.0
_STALE_S = 600.0
_HEARD_WITHIN_S = 30.0
_ON = "true"
_INTERVAL = "loadBalancerReportUpdateMaxIntervalMinutes"
_DEFAULT_MINUTES = 15.0


class Tells(Protocol):
    def address_in(self, record: LocalBrokerData) -> str: ...
    async def settings(self, url: str) -> BrokerSettings: ...


class AskedBrokers:
    """`faults` says of brokers why they did not answer, as long as they have not."""

    def __init__(self, admin: Tells, view: ClusterMirror) -> None:
        self._admin = admin
        self._view = view
        self._told: dict[Registration, tuple[float, BrokerSettings]] = {}
        self._dynamic: Mapping[str, str] = {}
        self._changed_s = -math.inf
        self._wake = asyncio.Event()
        self.faults: dict[BrokerId, str] = {}

    def changed(self, dynamic: Mapping[str, str]) -> None:
        """Brokers may have come or gone, or Pulsar's dynamic configuration may have changed."""
        if dynamic != self._dynamic:
            self._dynamic = dict(dynamic)
            self._changed_s = time.monotonic()
            self._told.clear()
        self._wake.set()

    async def run(self) -> None:
        """Ask whoever has not answered, for as long as the process lives."""
        while True:
            self._wake.clear()
            await self.ask()
            try:
                async with asyncio.timeout(_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def ask(self) -> None:
        """Ask all registered brokers that have not answered, or not for a while."""
        registered = set(self._view.registrations.values())
        self._told = {each: told for each, told in self._told.items() if each in registered}
        self.faults = {broker: fault for broker, fault in self.faults.items() if broker in self._view.registrations}
        now_s = time.monotonic()
        turns = asyncio.Semaphore(_AT_A_TIME)
        unasked = sorted(registered, key=lambda each: each.broker)
        await asyncio.gather(
            *(self._ask(each, turns) for each in unasked if each not in self._told or self._is_due(each, now_s))
        )

    @property
    def report_interval_s(self) -> float:
        """After how long a broker reports at the latest; of several the longest."""
        told = (settings.texts.get(_INTERVAL, "") for _, settings in self._told.values())
        return MINUTE_S * max(map(_minutes, told), default=_DEFAULT_MINUTES)

    def unknown(self) -> list[BrokerId]:
        """The brokers that have not said what they go by."""
        return sorted(each.broker for each in self._view.registrations.values() if each not in self._told)

    def shedding(self) -> list[BrokerId]:
        """The brokers that shed by themselves, if they lead."""
        return self._with(SHEDS)

    def splitting(self) -> list[BrokerId]:
        """The brokers that split bundles by themselves, if they lead."""
        return self._with(SPLITS)

    def switched_on(self) -> list[str]:
        """The keys by which some broker would move or split bundles by itself."""
        return [key for key in SWITCHES if self._with(key)]

    def _is_due(self, registration: Registration, now_s: float) -> bool:
        told_s, _ = self._told[registration]
        may_be_of_before = told_s < self._changed_s + _HEARD_WITHIN_S
        return now_s - told_s >= (_AGAIN_S if may_be_of_before else _STALE_S)

    def _with(self, key: str) -> list[BrokerId]:
        """Those where a switch is on, as it is by default."""
        return sorted(each.broker for each, (_, told) in self._told.items() if told.texts.get(key, _ON) == _ON)

    async def _ask(self, registration: Registration, turns: asyncio.Semaphore) -> None:
        entry = self._view.brokers.get(registration.broker)
        if entry is None:
            return
        url = self._admin.address_in(entry.record)
        async with turns:
            dynamic = self._dynamic
            try:
                told = await self._admin.settings(url)
            except (PulsarRefusedError, PulsarUnreachableError) as error:
                if registration.broker not in self.faults:
                    log.warning("broker_does_not_tell", broker=registration.broker, error=str(error))
                self.faults[registration.broker] = str(error)
                if isinstance(error, PulsarRefusedError):  # as when a token ends; who is only silent goes by the same
                    self._told.pop(registration, None)
                return
        if dynamic is self._dynamic:
            self._told[registration] = time.monotonic(), told
            self.faults.pop(registration.broker, None)


def _minutes(text: str) -> float:
    """What a broker has for its interval; what is no number is what it goes by without one."""
    try:
        return float(text)
    except ValueError:
        return _DEFAULT_MINUTES
