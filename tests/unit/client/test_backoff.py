from __future__ import annotations

import random

import pytest

from loadmanager.client.namespace_watch import pause_s


@pytest.mark.parametrize("at_least", [0.0, 0.5])
def test_pauses_are_uniform_within_doubling_bounds(at_least: float) -> None:
    chance = random.Random(7)
    for failures, bound_s in ((1, 0.05), (2, 0.1), (3, 0.2), (10, 1.0), (10_000, 1.0)):
        parts = [pause_s(chance, failures, 0.05, 1.0, at_least=at_least) / bound_s for _ in range(1_000)]
        assert at_least <= min(parts) < max(parts) <= 1.0
        tenths = [sum(n <= 10 * (part - at_least) / (1 - at_least) < n + 1 for part in parts) for n in range(10)]
        assert max(tenths) < 160, "a thousand clients come spread over the whole of it"
