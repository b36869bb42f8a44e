"""Settings of each broker: read at its first poll, after a change of dynamic configuration, and every ten minutes.

A broker may apply a change later than we see it. So settings that were read within 30 s of a change are read again.

Source: `GET /admin/v2/brokers/configuration/runtime` of Pulsar's brokers. It has every key of the broker's file, with
the changes of dynamic configuration. Values are text: a list is `[a, b]`, an unset value is empty or `Optional.empty`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import orjson
import structlog

from loadmanager.core.domain.names import BrokerId
from loadmanager.lab.decide.decision_settings import LISTS, known_settings
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.pulsar.take_over import SHEDS, SPLITS, SWITCHES

RUNTIME_CONFIGURATION = "/admin/v2/brokers/configuration/runtime"
_CLUSTER = "clusterName"
_LOAD_MANAGER = "loadManagerClassName"
_OF_PULSAR = (_CLUSTER, _LOAD_MANAGER)
_UNSET = ("", "Optional.empty")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of the broker at `url`, of `cluster`. `texts` has the keys known here, in the form of `broker.conf`.

    `load_manager` is the class of its load manager.
    """

    url: str
    cluster: str
    texts: dict[str, str]
    load_manager: str = ""


def settings_in(body: bytes, url: str) -> BrokerSettings | None:
    """Parse the runtime configuration of the broker at `url`; None if the body is not one."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    known = known_settings(content) if isinstance(content, dict) else {}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in (*_OF_PULSAR, *known)):
        return None
    texts = {key: _format_value(key, text) for key, text in known.items() if text not in _UNSET}
    return BrokerSettings(url, content[_CLUSTER], texts, content[_LOAD_MANAGER])


def _format_value(key: str, text: str) -> str:
    if key not in LISTS:
        return text
    return ",".join(part.strip() for part in text.removeprefix("[").removesuffix("]").split(","))


log = structlog.get_logger(__name__)

_AT_A_TIME = 8
_AGAIN_S = 10.0
_STALE_S = 600.0
_APPLIED_WITHIN_S = 30.0
_ON = "true"


class SettingsClient(Protocol):
    def address(self, broker: BrokerId) -> str: ...
    async def settings(self, url: str) -> BrokerSettings: ...


class BrokerSettingsPoll:
    """Keeps the settings of all brokers. `faults` has the error of each broker whose last request failed."""

    def __init__(self, admin: SettingsClient) -> None:
        self._admin = admin
        self._brokers: Collection[BrokerId] = ()
        self._settings: dict[BrokerId, tuple[float, BrokerSettings]] = {}
        self._load_managers: dict[BrokerId, str] = {}
        self._dynamic: Mapping[str, str] = {}
        self._changed_s = -math.inf
        self.faults: dict[BrokerId, str] = {}

    async def ask(self, brokers: Collection[BrokerId], dynamic: Mapping[str, str]) -> None:
        """Read the settings of registered brokers that are unknown or may have changed."""
        self._brokers = brokers
        now_s = time.monotonic()
        if dynamic != self._dynamic:
            self._dynamic, self._changed_s = dict(dynamic), now_s
        self._settings = {broker: known for broker, known in self._settings.items() if broker in brokers}
        self._load_managers = {broker: name for broker, name in self._load_managers.items() if broker in brokers}
        self.faults = {broker: fault for broker, fault in self.faults.items() if broker in brokers}
        turns = asyncio.Semaphore(_AT_A_TIME)
        await asyncio.gather(*(self._ask(broker, turns) for broker in brokers if self._is_due(broker, now_s)))

    def load_manager(self, broker: BrokerId) -> str | None:
        """Return the class of a broker's load manager in its last answer; None before the first answer."""
        return self._load_managers.get(broker)

    def unknown(self) -> list[BrokerId]:
        """Return the brokers whose settings are unknown."""
        return sorted(broker for broker in self._brokers if broker not in self._settings)

    def shedding(self) -> list[BrokerId]:
        """Return the brokers whose own shedding is on."""
        return self._with(SHEDS)

    def splitting(self) -> list[BrokerId]:
        """Return the brokers whose own splits are on."""
        return self._with(SPLITS)

    def switched_on(self) -> list[str]:
        """Return the switches that are on at any broker."""
        return [key for key in SWITCHES if self._with(key)]

    def _is_due(self, broker: BrokerId, now_s: float) -> bool:
        if broker not in self._settings:
            return True
        read_s = self._settings[broker][0]
        may_predate_change = read_s < self._changed_s + _APPLIED_WITHIN_S
        return read_s < self._changed_s or now_s - read_s >= (_AGAIN_S if may_predate_change else _STALE_S)

    def _with(self, key: str) -> list[BrokerId]:
        """Return the brokers where a switch is on, which is the default."""
        return sorted(broker for broker, (_, known) in self._settings.items() if known.texts.get(key, _ON) == _ON)

    async def _ask(self, broker: BrokerId, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                settings = await self._admin.settings(self._admin.address(broker))
            except (PulsarRefusedError, PulsarUnreachableError) as error:
                if broker not in self.faults:
                    log.warning("broker_settings_unknown", broker=broker, error=str(error))
                self.faults[broker] = str(error)
                if isinstance(error, PulsarRefusedError):  # keep the settings of an unreachable broker
                    self._settings.pop(broker, None)
                return
        self._settings[broker] = time.monotonic(), settings
        self._load_managers[broker] = settings.load_manager
        self.faults.pop(broker, None)
