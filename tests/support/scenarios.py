"""Scenarios and results with defaults for everything a test does not set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.planning.repeated_moves import NEVER
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason
from loadmanager.lab.simulate.scenario import Scenario, parse_as
from loadmanager.lab.simulate.sim_result import CompletedMove, FirstReport, Result, StepSeries

PROJECT = Path(__file__).parents[2]
TRACES = Path(os.environ.get("LOADMANAGER_SHARED", PROJECT.parent / "shared")) / "traces"


def a_file(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a key may hold
    """A scenario file of two brokers and one namespace, but for `changes`."""
    return {
        "name": "a-scenario",
        "about": "Something small.",
        "durationS": 600,
        "brokers": [{"count": 2}],
        "namespaces": [{"name": "t/ns", "bundles": 4}],
        **changes,
    }


def a_scenario(**changes: Any) -> Scenario:  # noqa: ANN401 - whatever a key may hold
    return parse_as(Scenario, a_file(**changes), "a.yaml")


def a_move(
    at_s: float,
    bundle: int = 0,
    source: str = "a",
    destination: str = "b",
    *,
    moved_s: float = NEVER,
    left_s: float = NEVER,
    share: float = 0.1,
) -> CompletedMove:
    return CompletedMove(
        at_s,
        f"t/ns#{bundle}",
        BrokerId(f"{source}:8080"),
        BrokerId(f"{destination}:8080"),
        ThresholdReason.BROKER_ABOVE_AVERAGE,
        share,
        1e6,
        10,
        is_own=True,
        moved_s=moved_s,
        left_s=left_s,
    )


def a_result(
    imbalance: list[float],
    *,
    worst: list[float] | None = None,
    reports: list[int] | None = None,
    unowned: list[int] | None = None,
    moves: tuple[CompletedMove, ...] = (),
    first_reports: Mapping[str, float] | None = None,
    verdicts: Mapping[tuple[str, Reason, bool], int] | None = None,
) -> Result:
    """A run in steps of 10 s, of which these columns are known, on two brokers."""
    steps = len(imbalance)
    none, counts = np.zeros(steps), np.zeros(steps, dtype=np.int64)
    series = StepSeries(
        t_s=np.arange(steps, dtype=np.float64) * 10.0,
        imbalance=np.array(imbalance),
        lower_bound=np.ones(steps),
        level=none,
        worst_usage=none if worst is None else np.array(worst),
        brokers=counts + 2,
        load=none,
        moves=counts,
        moved_load=none,
        unowned=counts if unowned is None else np.array(unowned, dtype=np.int64),
        unowned_load=none,
        backlog=none,
        reports=counts + 1 if reports is None else np.array(reports, dtype=np.int64),
    )
    known = [FirstReport(at_s, BrokerId(f"{name}:8080"), 1) for name, at_s in (first_reports or {}).items()]
    return Result(
        seed=0,
        step_s=10.0,
        duration_s=10.0 * steps,
        series=series,
        moves=moves,
        splits=(),
        first_reports=tuple(known),
        placements=0,
        rounds=1,
        unowned_bundle_s=7.0,
        reconnections=0,
        bundles=4,
        verdicts=dict(verdicts or {}),
    )
