"""What every process of ours counts about itself: `process_*` as everywhere, and which version runs."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from loadmanager import __version__


def add_process_metrics(registry: CollectorRegistry) -> CollectorRegistry:
    """`registry` itself, with memory, CPU time, open files and start of this process, and `loadmanager_build_info`."""
    ProcessCollector(registry=registry)
    built = Gauge("loadmanager_build_info", "1 for the version that runs.", ["version", "python"], registry=registry)
    built.labels(__version__, platform.python_version()).set(1)
    return registry
