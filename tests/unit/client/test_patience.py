"""Waits that grow, and that are not the same for any two."""

from __future__ import annotations

import random

from loadmanager.client.patience import Patience, pause_s


def test_waits_are_any_part_of_bounds_that_double_up_to_the_longest() -> None:
    crowd = [Patience(random.Random(seed), 1.0, 8.0) for seed in range(1_000)]
    for bound_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        waits_s = [each.next_s() for each in crowd]
        assert max(waits_s) <= bound_s
        tenths = [sum(n * bound_s / 10 <= wait_s < (n + 1) * bound_s / 10 for wait_s in waits_s) for n in range(10)]
        assert max(tenths) < 160, "a thousand clients come spread over the whole of it"
    crowd[0].begin_anew()
    assert crowd[0].next_s() <= 1.0


def test_pauses_after_failures_grow_and_are_at_least_half_of_what_is_meant() -> None:
    chance = random.Random(7)
    for failures, meant_s in ((1, 0.05), (2, 0.1), (3, 0.2), (10, 1.0), (10_000, 1.0)):
        pauses_s = [pause_s(chance, failures, 0.05, 1.0) for _ in range(100)]
        assert meant_s / 2 <= min(pauses_s) < max(pauses_s) <= meant_s
