"""Settings of each broker, and those of our planner: the brokers', with overrides from our configuration.

Brokers' settings are read at a broker's first poll, after a change of dynamic configuration, and every ten minutes.

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

from loadmanager.config.dynamic_settings import dynamic_keys, text_of, usable_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.settings import KEYS
from loadmanager.lab.decide.decision_settings import LISTS, known_settings, settings_for, usable_settings
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.pulsar.take_over import SHEDS, SPLITS, SWITCHES

log = structlog.get_logger(__name__)

HISTORY = "history"
"""Folder of the recorded history, inside the folder of the process."""
RUNTIME_CONFIGURATION = "/admin/v2/brokers/configuration/runtime"
_CLUSTER = "clusterName"
_LOAD_MANAGER = "loadManagerClassName"
_OF_PULSAR = (_CLUSTER, _LOAD_MANAGER)
_UNSET = ("", "Optional.empty")

_AT_A_TIME = 8
_AGAIN_S = 10.0
_STALE_S = 600.0
_APPLIED_WITHIN_S = 30.0
_ON = "true"


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


_WHERE = "overrides"
_EXCLUDED = KEYS["shedding_excluded_namespaces"]
_DYNAMIC = frozenset(dynamic_keys())
_STRATEGIES = tuple(
    map(Settings.key, ("load_balancer_load_shedding_strategy", "load_balancer_load_placement_strategy"))
)


class PulsarSettings(LiveSettings):
    """Settings of one broker, read at the start, with Pulsar's dynamic configuration and our overrides.

    Some settings never come from brokers. Shedding is on here, although Pulsar's own must be off while we act. Our
    configuration controls moves and splits. Bundles are not merged. `faults` are unusable settings of the brokers.
    Raises `ConfigurationError` for unusable overrides.
    """

    def __init__(self, broker: BrokerSettings, ours: PulsarServiceSettings) -> None:
        self._forced = {**_forced_settings(ours), **ours.overrides, **_of_shape(ours)}
        texts, self.faults = usable_settings(broker.texts, f"the broker at {broker.url}")
        settings_for(ours.overrides, _WHERE)
        self._broker_settings = settings_for(texts, _WHERE)
        self._dynamic: Mapping[str, str] = {}
        self._excluded: frozenset[str] = frozenset()
        self.theirs = self._broker_settings
        """Settings of Pulsar's own leader, without overrides."""
        super().__init__(settings_for({**texts, **self._forced, **_of_process(broker.cluster, ours)}, _WHERE))

    def apply(self, overrides: Mapping[str, str]) -> list[str]:
        """Apply the supported keys of Pulsar's dynamic configuration; return the faults."""
        known = {key: text for key, text in overrides.items() if key in _DYNAMIC}
        if known != self._dynamic:
            self._dynamic = known
            self.theirs = usable_overrides(self._broker_settings, known)[0]
        return self._apply()

    def exclude(self, namespaces: frozenset[str]) -> None:
        """Exclude namespaces from shedding, so that no round chooses a bundle that guardrails would stop."""
        if namespaces != self._excluded:
            self._excluded = namespaces
            self._apply()

    def _apply(self) -> list[str]:
        overrides = {key: text for key, text in self._dynamic.items() if key not in self._forced}
        if self._excluded:
            excluded = usable_overrides(self.base, overrides)[0].planner_settings().shedding_excluded_namespaces
            overrides[_EXCLUDED] = text_of(excluded | self._excluded)
        return super().apply(overrides)

    @property
    def doubt(self) -> str:
        """Reason why Pulsar's leader may use other strategies than `theirs` has; empty without one."""
        dynamic = [key for key in _STRATEGIES if key in self._dynamic]
        unknown = [fault for fault in self.faults if any(key in fault for key in _STRATEGIES)]
        if dynamic:
            unknown.append(
                f"{' and '.join(dynamic)} was set by dynamic configuration, which a broker applies at its next start"
            )
        return f"Pulsar's own rounds may differ from those computed here: {'; '.join(unknown)}." if unknown else ""


def _forced_settings(ours: PulsarServiceSettings) -> dict[str, str]:
    return _texts(
        load_balancer_enabled=True,
        load_balancer_shedding_enabled=True,
        namespace_bundle_unloading_timeout_ms=ours.move_timeout_ms,
        max_concurrent_unloads=ours.moves_at_once,
        max_concurrent_unloads_per_broker=ours.moves_at_once,
    )


def _of_shape(ours: PulsarServiceSettings) -> dict[str, str]:
    return _texts(
        load_balancer_auto_bundle_split_enabled=ours.splits_enabled, load_balancer_auto_bundle_merge_enabled=False
    )


def _of_process(cluster: str, ours: PulsarServiceSettings) -> dict[str, str]:
    return _texts(
        cluster_name=ours.cluster_name or cluster,
        history_url=ours.folder.absolute() / HISTORY,
        history_retention_hours=ours.history_retention_hours,
        history_max_bytes=ours.history_max_bytes,
    )


def _texts(**values: object) -> dict[str, str]:
    return {Settings.key(name): text_of(value) for name, value in values.items()}
