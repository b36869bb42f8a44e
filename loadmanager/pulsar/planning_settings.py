"""The settings that a process beside a Pulsar plans by: the brokers' own, under what its configuration overrides."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.config import PulsarServiceSettings, Settings, dynamic_keys, text_of
from loadmanager.config.overrides import usable_overrides
from loadmanager.core.domain.settings import KEYS
from loadmanager.lab.decide.broker_settings import BrokerSettings
from loadmanager.lab.decide.decision_settings import settings_for, usable_settings
from loadmanager.leader.mirror.live_settings import LiveSettings

HISTORY = "history"
"""The folder of the recorded history, in the folder of the process."""

_WHERE = "overrides"
_EXCLUDED = KEYS["shedding_excluded_namespaces"]
_DYNAMIC = frozenset(dynamic_keys())
_STRATEGIES = tuple(
    map(Settings.key, ("load_balancer_load_shedding_strategy", "load_balancer_load_placement_strategy"))
)


class PulsarSettings(LiveSettings):
    """Settings of a broker at the start (`told`), under Pulsar's dynamic configuration and our overrides.

    Whatever brokers say: shedding is planned for, as theirs has to be off where we act; how bundles are moved is a
    matter of our configuration, and so is, whatever it overrides, whether they are split; none are merged. `faults` are
    settings of the brokers' that cannot be used. Raises `ConfigurationError` for overrides that cannot be.
    """

    def __init__(self, told: BrokerSettings, ours: PulsarServiceSettings) -> None:
        self._forced = {**_forced(ours), **ours.overrides, **_of_shape(ours)}
        texts, self.faults = usable_settings(told.texts, f"the broker at {told.url}")
        settings_for(ours.overrides, _WHERE)
        self._told = settings_for(texts, _WHERE)
        self._dynamic: Mapping[str, str] = {}
        self._left_out: frozenset[str] = frozenset()
        self.theirs = self._told
        """Settings of Pulsar's own leader: nothing is forced or overridden."""
        super().__init__(settings_for({**texts, **self._forced, **_of_process(told.cluster, ours)}, _WHERE))

    def apply(self, overrides: Mapping[str, str]) -> list[str]:
        """Pulsar's dynamic configuration, of which most is about other things; what is wrong with the rest."""
        known = {key: text for key, text in overrides.items() if key in _DYNAMIC}
        if known != self._dynamic:
            self._dynamic = known
            self.theirs = usable_overrides(self._told, known)[0]
        return self._apply()

    def leave_out(self, namespaces: frozenset[str]) -> None:
        """Have nothing shed of these, which rails would stop, so that other bundles are chosen in their place."""
        if namespaces != self._left_out:
            self._left_out = namespaces
            self._apply()

    def _apply(self) -> list[str]:
        overrides = {key: text for key, text in self._dynamic.items() if key not in self._forced}
        if self._left_out:
            excluded = usable_overrides(self.base, overrides)[0].planner_settings().shedding_excluded_namespaces
            overrides[_EXCLUDED] = text_of(excluded | self._left_out)
        return super().apply(overrides)

    @property
    def doubt(self) -> str:
        """Reason why Pulsar's leader may use other strategies than `theirs` names, a sentence; empty without one."""
        told = [key for key in _STRATEGIES if key in self._dynamic]
        unknown = [fault for fault in self.faults if any(key in fault for key in _STRATEGIES)]
        if told:
            unknown.append(
                f"{' and '.join(told)} was set by dynamic configuration, which a broker goes by from its next start on"
            )
        return (
            f"Pulsar's own rounds may be others than they are worked out to be: {'; '.join(unknown)}."
            if unknown
            else ""
        )


def _forced(ours: PulsarServiceSettings) -> dict[str, str]:
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
