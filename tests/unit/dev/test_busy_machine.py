from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadmanager.dev.demo import busy_machine
from loadmanager.dev.demo.busy_machine import ProcessorWait, waited_s


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Waiting time of each process; others are unknown."""
    known: dict[int, float] = {}
    monkeypatch.setattr(busy_machine, "waited_s", known.get)
    return known


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not tell")
def test_the_kernel_tells_how_long_a_process_has_waited() -> None:
    first = waited_s(os.getpid())
    assert first is not None
    assert (waited_s(os.getpid()) or 0.0) >= first >= 0
    assert waited_s(2**22 + 1) is None


@pytest.mark.parametrize(("each_s", "too_much"), [(0.5, True), (0.3, True), (0.1, False), (0.0, False)])
def test_verdict_needs_several_samples(waited: dict[int, float], each_s: float, *, too_much: bool) -> None:
    waiting, said = ProcessorWait(), []
    for second in range(30):
        waited.update({1: second * each_s, 2: second * each_s})
        waited[100 + second] = 1e6  # a new one in every look
        said.append(waiting.is_too_much([1, 2, 100 + second], float(second)))
    assert said == [False] * 10 + [too_much] * 20


def test_where_nothing_is_known_no_machine_is_too_busy(waited: dict[int, float]) -> None:
    assert not waited
    waiting = ProcessorWait()
    assert not any(waiting.is_too_much([1, 2], float(second)) for second in range(30))
