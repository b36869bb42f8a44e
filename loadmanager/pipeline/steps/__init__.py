"""The steps of the pipeline: from the URL of a history, a range and an output directory to tables.

    history ──▶ ingest ──▶ averages ──▶ balance, forecast, capacity, advice ──▶ what-if ──▶ report
                  │            │                       │                           │
                  └────────────┴──────────── <out>/<table>/ ───────────────────────┘

Each step is a file here. It reads the tables of those before it and writes its own, so that any of them can be run
again alone. What is computed is in the modules of `pipeline`, as functions from frames to frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from loadmanager.pipeline import advice, balance, capacity
from loadmanager.pipeline.step import Step
from loadmanager.pipeline.steps import averages, forecast, ingest, report, whatif

STEPS: Mapping[str, Step] = MappingProxyType(
    {each.STEP.name: each.STEP for each in (ingest, averages, balance, forecast, capacity, advice, whatif, report)}
)
"""By name, in their order."""
