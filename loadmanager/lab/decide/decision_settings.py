"""Settings of a decision: Pulsar's keys, with values as text, as in a `broker.conf`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from loadmanager.config.dynamic_settings import OF_THE_NODE, settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import AS_PULSAR, KEYS, get_by_name, short_class_name
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import PAIRED_STRATEGIES, SHEDDING_STRATEGIES
from loadmanager.errors import ConfigurationError

PLACEMENT = KEYS["placement_strategy"]
SHEDDING = KEYS["shedding_strategy"]

LEGACY_WEIGHTS = {
    "loadBalancerBandwithInResourceWeight": "loadBalancerBandwidthInResourceWeight",
    "loadBalancerBandwithOutResourceWeight": "loadBalancerBandwidthOutResourceWeight",
}
"""Misspelt keys that Pulsar still reads if the correct key is not set, with the correct keys."""

LISTS = frozenset({KEYS["shedding_excluded_namespaces"], KEYS["supported_split_algorithms"]})
"""Keys with a comma-separated list."""

_EVENLY = KEYS["distribute_bundles_evenly_enabled"]
"""On by default in Pulsar. It hides the choice of a placement strategy, so `decide` applies it only if it is set."""

_DEFAULT_WEIGHT = re.compile(r"1(\.0*)?")

WITHOUT_EFFECT = frozenset(
    {
        "loadBalancerDebugModeEnabled",
        "loadBalancerHostUsageCheckIntervalMinutes",
        "loadBalancerOverrideBrokerNicSpeedGbps",
        "loadBalancerOverrideBrokerNics",
        "loadBalancerReportUpdateMaxIntervalMinutes",
        "loadBalancerReportUpdateMinIntervalMillis",
        "loadBalancerReportUpdateThresholdPercentage",
        "loadManagerMigrationEnabled",
        "statsUpdateFrequencyInSecs",
        "tlsCiphers",
        "tokenAudienceClaim",
        "tokenPublicAlg",
    }
)
"""Keys of Pulsar's brokers that do not affect decisions on a dump."""


_KNOWN = ({*map(Settings.key, Settings.model_fields)} - OF_THE_NODE) | WITHOUT_EFFECT | LEGACY_WEIGHTS.keys()
_STRATEGIES = (PLACEMENT, SHEDDING)


def known_settings(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Select the keys of a Pulsar broker that are known here, without those that only describe the node."""
    return {key: value for key, value in configuration.items() if key in _KNOWN}


def usable_settings(configuration: Mapping[str, str], where: str) -> tuple[dict[str, str], list[str]]:
    """Return the valid settings, and the faults of the others.

    The two strategy keys are checked together, because some strategies must be set under both.
    """
    usable, faults = dict[str, str](), list[str]()
    for key, text in configuration.items():
        keys = _STRATEGIES if key in _STRATEGIES else (key,)
        try:
            settings_for({each: configuration[each] for each in keys if each in configuration}, where)
        except ConfigurationError as error:
            faults.append(str(error))
        else:
            usable[key] = text
    return usable, list(dict.fromkeys(faults))


def settings_for(
    configuration: Mapping[str, str], where: str, *, shedding: str | None = None, placement: str | None = None
) -> Settings:
    """Return the settings with this strategy in place of the configured one, and Pulsar's defaults for absent keys.

    Raises `ConfigurationError`, which names `where`, the key and the allowed values, and `UnknownStrategyError`.
    """
    given = {key: value for key, value in configuration.items() if key not in WITHOUT_EFFECT}
    values = {**AS_PULSAR, **given}
    for legacy, key in LEGACY_WEIGHTS.items():
        weight = values.pop(legacy, None)
        if weight is not None and _DEFAULT_WEIGHT.fullmatch(values.get(key, "1.0")):
            values[key] = weight
    if shedding is not None:
        _name(values, SHEDDING, get_by_name("--shed", shedding, SHEDDING_STRATEGIES)[0], PLACEMENT)
    if placement is not None:
        _name(values, PLACEMENT, get_by_name("--place", placement, PLACEMENT_STRATEGIES)[0], SHEDDING)
        values.setdefault(_EVENLY, "false")
    lists = {key: [part.strip() for part in values[key].split(",") if part.strip()] for key in LISTS & values.keys()}
    return settings_of({**values, **lists}, where)


def _name(values: dict[str, str], key: str, strategy: str, other: str) -> None:
    """Set the strategy under its key.

    A strategy for both placement and shedding is set under both keys. Otherwise such a strategy is removed from the
    other key.
    """
    values[key] = strategy
    if strategy in PAIRED_STRATEGIES:
        values[other] = strategy
    elif short_class_name(values.get(other, "")) in PAIRED_STRATEGIES:
        del values[other]
