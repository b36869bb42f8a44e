"""What to set other than by default where the defaults, which are Pulsar's, do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_yaml import render_fields

SMALL_FLEET: Mapping[str, tuple[Any, str]] = {
    "load_balancer_load_shedding_strategy": (
        "Level",
        "Goes by what bundles carry, also where brokers share a host or say nothing of their network.",
    ),
    "load_balancer_load_placement_strategy": ("Level", "The other half of it."),
    "load_balancer_level_least_usage_percentage": (
        0.01,
        "Level evens out whatever there is, and not only what is worth it on large machines.",
    ),
    "load_balancer_bundle_unload_min_throughput_threshold": (
        0.01,
        "For ThresholdShedder, if you go back to it: 10 kB/s and not 10 MiB/s is worth a move.",
    ),
    "min_unload_message": (10, "For UniformLoadShedder and AvgShedder, in messages/s."),
    "min_unload_message_throughput": (10_000, "The same in bytes/s."),
}
"""A few brokers with little load, also several on one host: by field the value and why."""


def render_small_fleet() -> str:
    """A configuration file of a node in a small fleet."""
    settings = Settings.model_construct(**{name: value for name, (value, _) in SMALL_FLEET.items()})
    lines = [
        "# loadmanager serve, for a small fleet: what is set otherwise; all keys: `loadmanager config serve`.\n",
        "# Add metadataStoreUrl. The agents' defaults fit: they see by themselves that brokers share their host.\n",
    ]
    for name, (_, why) in SMALL_FLEET.items():
        lines += ["\n", f"# {why}\n", render_fields(settings, [name])]
    return "".join(lines)
