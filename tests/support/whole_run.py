"""Output of a whole pipeline run over an hour of a small fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmanager.lab.simulate.scenario import parse_as
from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.step import Summary
from loadmanager.pipeline.whatif_file import WhatIf

TRIED = {"name": "two", "strategies": ["ThresholdShedder", "TransferShedder"]}


def whatif(**given: object) -> WhatIf:
    return parse_as(WhatIf, {**TRIED, **given}, "what-if.yaml")


Done = tuple[Summary, list[str], Tables]
"""A run, the lines that it has shown, and its tables."""


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by what is no fraction: sums of these depend on the order of what is added."""

    def key(row: Mapping[str, Any]) -> str:
        return repr({name: value for name, value in row.items() if not isinstance(value, float)})

    return sorted(rows, key=key)
