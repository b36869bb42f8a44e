from __future__ import annotations

import pytest
from support.builders import broker, bundle, report, snapshot

from loadmanager.core.domain.plan import Unload
from loadmanager.core.planning.shedding_round import summarize_round
from loadmanager.core.strategies.shedding.overload_shedder import OverloadReason

LOADS = snapshot({"a": report({bundle(number): (0.0, 0.0, 10.0, 0.0) for number in range(10)}), "b": report()})


def move(number: int, destination: str | None) -> Unload:
    target = None if destination is None else broker(destination)
    return Unload(bundle(number), broker("a"), target, OverloadReason.BROKER_OVERLOADED)


def test_round_summary_names_routes_and_share_of_traffic() -> None:
    verdict = summarize_round(12, LOADS, [move(0, "c"), move(1, "b"), move(2, "b"), move(3, None)], acted=True)
    assert verdict.acted
    assert verdict.sentence() == (
        "Round 12: 4 of 10 bundles, 40 % of the traffic:"
        " a:8080 -> b:8080 (2), a:8080 -> c:8080 (1), a:8080 -> any broker (1)"
    )


@pytest.mark.parametrize(("routes", "told"), [(5, "(1), a:8080 -> d4:8080 (1)"), (7, "(1), 2 more routes")])
def test_many_routes_are_abbreviated(routes: int, told: str) -> None:
    verdict = summarize_round(1, LOADS, [move(number, f"d{number}") for number in range(routes)], acted=False)
    assert not verdict.acted
    assert verdict.sentence().endswith(told)
