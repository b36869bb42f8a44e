"""Output of a whole pipeline run over an hour of a small fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmanager.pipeline.delta import Tables
from loadmanager.pipeline.step import Summary
from loadmanager.pipeline.whatif_file import WhatIf, parse_whatif

TRIED = {"name": "two", "strategies": ["ThresholdShedder", "TransferShedder"]}


def whatif(**given: object) -> WhatIf:
    return parse_whatif({**TRIED, **given}, "what-if.yaml")


class Seen:
    """Progress that a run has reported."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.rows: dict[str, int] = {}

    def began(self, step: str) -> None:
        self.steps.append(step)

    def wrote(self, step: str, table: str, rows: int) -> None:
        assert step == self.steps[-1]
        self.rows[table] = rows

    def ended(self, step: str, seconds: float) -> None:
        assert seconds > 0
        self.steps.append(f"{step} done")


Done = tuple[Summary, Seen, Tables]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by what is no fraction: sums of these depend on the order of what is added."""

    def key(row: Mapping[str, Any]) -> str:
        return repr({name: value for name, value in row.items() if not isinstance(value, float)})

    return sorted(rows, key=key)
