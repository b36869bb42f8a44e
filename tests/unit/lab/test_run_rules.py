from __future__ import annotations

import re

import pytest
from support.worlds import brokers_named, namespaces_dealt

from loadmanager.core.domain.names import InvalidNameError
from loadmanager.lab.simulate.fleet_events import NamespaceSpec
from loadmanager.lab.simulate.run_rules import WorldRules


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"shedding_interval_s": 0.0}, "shedding_interval_s\n  Input should be greater than 0"),
        ({"unload_s": -1.0}, "unload_s\n  Input should be greater than or equal to 0"),
        ({"session_timeout_s": float("nan")}, "session_timeout_s\n  Input should be a finite number"),
        ({"max_concurrent_unloads": 0}, "max_concurrent_unloads\n  Input should be greater than or equal to 1"),
        ({"catch_up_factor": 1.0}, "catch_up_factor\n  Input should be greater than 1"),
    ],
)
def test_invalid_rules_are_rejected_by_name(rules: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        WorldRules(**rules)


def test_zero_is_allowed_for_durations() -> None:
    assert WorldRules(unload_s=0.0, lookup_s=0.0, grace_period_s=0.0, unload_split_bundles=False).unload_s == 0.0


def test_invalid_names_are_rejected() -> None:
    with pytest.raises(InvalidNameError, match="namespace"):
        NamespaceSpec.of("no-tenant", 4)
    with pytest.raises(ValueError, match="owners of t/n: expected one for each of 4 bundles"):
        NamespaceSpec.of("t/n", 4, [None])


def test_bundles_are_dealt_in_turn_over_all_namespaces() -> None:
    brokers = [spec.id for spec in brokers_named(4)]
    owners = [owner for spec in namespaces_dealt(3, 6, brokers) for owner in spec.owners or ()]
    assert owners == [brokers[number % 4] for number in range(18)]
    assert namespaces_dealt(1, 2, [])[0].owners is None
