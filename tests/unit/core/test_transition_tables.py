"""The transition tables in the docstrings of the state machines match the code."""

from __future__ import annotations

import enum
import re
from types import ModuleType
from typing import get_args

import pytest

from loadmanager.core.protocol import (
    assignment_machine,
    drain_machine,
    failure_detector,
    leadership,
    move_machine,
    plan_machine,
    reconciler,
    reshape_machine,
    reshape_round_machine,
)
from loadmanager.core.protocol.state_machine import Signal

MACHINES = (
    assignment_machine,
    drain_machine,
    failure_detector,
    leadership,
    move_machine,
    plan_machine,
    reconciler,
    reshape_machine,
    reshape_round_machine,
)
NO_PHASES = {leadership: leadership.StepDownReason, reshape_machine: reshape_machine.Parts}
IMPLIED = {"Signal", "ENDED"}
ONLY_WORDS = {"ZooKeeper"}


def phases(machine: ModuleType) -> set[str]:
    enums = [each for each in vars(machine).values() if isinstance(each, type) and issubclass(each, enum.Enum)]
    own = [each for each in enums if each.__module__ == machine.__name__ and each is not NO_PHASES.get(machine)]
    return {member.name for each in own for member in each}


def messages(machine: ModuleType) -> set[str]:
    unions = [getattr(machine, name) for name in ("Event", "Action") if hasattr(machine, name)]
    assert unions
    return {each.__name__ for union in unions for each in get_args(union)}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__.rpartition(".")[2])
def test_table_has_exactly_the_phases_events_and_actions(machine: ModuleType) -> None:
    table = machine.__doc__ or ""
    words = set(re.findall(r"\w+", table))
    assert (phases(machine) | messages(machine)) - IMPLIED <= words, "missing in the table"
    named = {word for word in words if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", word)} - ONLY_WORDS
    assert named <= set(vars(machine)), "in the table only"
    if phases(machine):
        assert set(re.findall(r"\b[A-Z]{4,}\b", table)) <= phases(machine) | set(Signal.__members__)
