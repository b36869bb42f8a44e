"""Placement beyond Pulsar's own cases."""

from __future__ import annotations

import numpy as np
from support.builders import averages, bundle, report, snapshot

from loadmanager.core.load import ResourceWeights
from loadmanager.core.placement.base import Projection
from loadmanager.core.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.snapshot import Snapshot

STRATEGY = LeastLongTermMessageRate(85, ResourceWeights())
EVERYONE = np.arange(3)


def equals() -> Snapshot:
    return snapshot({"a": report(), "b": report(), "c": report()})


def test_among_equals_each_is_drawn_about_as_often() -> None:
    given, rng = equals(), np.random.default_rng(0)
    drawn = [STRATEGY.place(EVERYONE, None, given, Projection(given), {}, rng).broker for _ in range(3000)]
    assert all(900 < drawn.count(row) < 1100 for row in range(3))


def test_a_single_best_broker_is_chosen_without_drawing() -> None:
    known = {bundle(i): averages((10.0 * i, 0, 0, 0)) for i in (1, 2, 3)}
    given = snapshot({name: report([bundle(i)]) for i, name in enumerate("abc", start=1)}, known)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    placement = STRATEGY.place(EVERYONE, None, given, Projection(given), {"kept": 1}, rng)
    assert (placement.broker, placement.state) == (0, {"kept": 1})
    assert rng.bit_generator.state == before


def test_a_score_that_is_not_a_number_is_never_the_least() -> None:
    given = snapshot(
        {"a": report([bundle(1)]), "b": report([bundle(2)])},
        {bundle(1): averages((np.nan, 0, 0, 0)), bundle(2): averages((5, 0, 0, 0))},
    )
    placement = STRATEGY.place(np.arange(2), None, given, Projection(given), {}, np.random.default_rng(0))
    assert placement.broker == 1


def test_a_projected_move_counts_at_its_destination_and_no_longer_at_its_source() -> None:
    given = snapshot({"a": report({bundle(1): (7, 3, 20, 10)}), "b": report()})
    projection = Projection(given)
    projection.move("tenant/ns", 0, 0, 1)
    assert projection.load.tolist() == [[-7, -3, -20, -10], [7, 3, 20, 10]]
    assert projection.topics.tolist() == [-1, 1]
    assert projection.bundles_per_broker("tenant/ns").tolist() == [0, 1]
    assert projection.bundles_per_broker("tenant/unknown").tolist() == [0, 0]


def test_the_long_term_counts_and_not_the_short_term() -> None:
    known = {bundle(1): averages((1, 0, 0, 0), (9, 0, 0, 0)), bundle(2): averages((9, 0, 0, 0), (1, 0, 0, 0))}
    given = snapshot({"a": report([bundle(1)]), "b": report([bundle(2)])}, known)
    assert STRATEGY.place(np.arange(2), None, given, Projection(given), {}, np.random.default_rng(0)).broker == 1
