"""Learned loads as a pipeline run publishes them."""

from __future__ import annotations

from collections.abc import Mapping

from support.builders import Load

from loadmanager.wire.learned_records import LearnedData


def learned(loads: Mapping[str, Load], run: str = "run-1", published_at_ms: int = 1_795_132_800_000) -> LearnedData:
    """Loads of a bundle by namespace, each learned from four bundles, published on 2026-11-20."""
    return LearnedData(
        run=run,
        publishedAt=published_at_ms,
        history="/var/history",
        rangeFrom=0,
        rangeTo=published_at_ms,
        namespaces={
            name: {
                "msgRateIn": load[0],
                "msgRateOut": load[1],
                "msgThroughputIn": load[2],
                "msgThroughputOut": load[3],
                "bundles": 4,
            }
            for name, load in loads.items()
        },
    )
