"""Fleets that Level plans for."""

from __future__ import annotations

from support.builders import MIB, bundle, report, throughput

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport

SETTINGS = PlannerSettings(shedding_strategy="Level", placement_strategy="Level")


def carrying(host: str, sizes: list[float], capacity: tuple[float, float] = (1e6, 1e6)) -> BrokerReport:
    used = sum(sizes) * MIB * 8 / 1000
    loads = {bundle(i, f"tenant/{host}"): throughput(size) for i, size in enumerate(sizes)}
    return report(loads, bandwidth_in=(used, capacity[0]), bandwidth_out=(used, capacity[1]))
