"""Settings of a process beside a Pulsar: the brokers' settings, with overrides from our configuration."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.config.dynamic_settings import dynamic_keys, text_of, usable_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.domain.settings import KEYS
from loadmanager.lab.decide.decision_settings import settings_for, usable_settings
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.pulsar.broker_settings import BrokerSettings

HISTORY = "history"
"""Folder of the recorded history, inside the folder of the process."""

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
        unload_attempt_timeout_ms=ours.move_timeout_ms,
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
