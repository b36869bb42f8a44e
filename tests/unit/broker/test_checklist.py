"""The checklist of the contract's page is the one that is tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadmanager.broker.conformance.rule_verdicts import RuleRequirement
from loadmanager.broker.conformance.rules import RULES

PAGE = (Path(__file__).parents[3] / "docs/broker-contract.md").read_text(encoding="utf-8")


def test_page_lists_every_rule_by_its_text() -> None:
    listed = re.findall(r"^- \[ \] (`[\s\S]*?)(?=\n- \[ \]|\n\n)", PAGE, re.MULTILINE)
    assert [re.sub(r"\s+", " ", each) for each in listed] == [f"`{rule.name}`: {rule.text}" for rule in RULES]


@pytest.mark.parametrize(
    ("option", "need"),
    [
        ("`--start`, or", RuleRequirement.PROCESS),
        ("`--start` |", RuleRequirement.START),
        ("`--hang` |", RuleRequirement.HANG),
    ],
)
def test_page_lists_the_rules_that_need_each_option(option: str, need: RuleRequirement) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {option}"))
    assert rules_in(row) == {rule.name for rule in RULES if need in rule.needs}


def test_page_lists_the_rules_that_need_no_probe() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `--probe` | all but"))
    assert rules_in(row) == {rule.name for rule in RULES if RuleRequirement.PROBE not in rule.needs}


def rules_in(row: str) -> set[str]:
    return set(re.findall(r"`([a-z-]+)`", row)) & {rule.name for rule in RULES}
