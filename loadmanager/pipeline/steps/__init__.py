"""Steps of the pipeline: from the URL of a history, a range and an output directory to tables.

    history ──▶ ingest ──▶ balance, forecast, capacity, advice ──▶ what-if ──▶ report
                  │                       │                           │
                  └────────────── <out>/<table>/ ─────────────────────┘

A step is declared in the module that computes it, or in a file here. It reads the tables of the steps before it and
writes its own, so each can be run again alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.pipeline import advice, balance, capacity, ingest
from loadmanager.pipeline.step import Step
from loadmanager.pipeline.steps import forecast, report, whatif

STEPS: Mapping[str, Step] = {
    each.STEP.name: each.STEP for each in (ingest, balance, forecast, capacity, advice, whatif, report)
}
"""By name, in their order."""
