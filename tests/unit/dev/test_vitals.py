from __future__ import annotations

import pytest

from loadmanager.broker import Health
from loadmanager.dev.demo.demo_host import Vitals


def test_what_was_published_is_said_once() -> None:
    vitals = Vitals()
    for number in range(100):
        vitals.published(0.5 if number == 99 else 0.001, taken=number % 4 > 0)
    said = vitals.take(waiting=7)
    assert said.latency_ms == pytest.approx(1.0 + 0.01 * 499, rel=0.01)
    assert (said.error_share, said.queue) == (0.25, 7)
    assert vitals.take(waiting=0) == Health(queue=0)
