from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker, snapshot
from support.level_fleets import SETTINGS, carrying

from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.headroom import Loss, Reserve, compute_reserve

MIB_OF_ALL = 1e6 * 1000 / 8 / 1024 / 1024
"""MiB/s of a broker's network."""


def cluster(policies: Policies | None = None, **parts: list[float]) -> Snapshot:
    """Brokers with bundles of these parts of their network."""
    given_cluster = snapshot({host: carrying(host, [part * MIB_OF_ALL for part in of]) for host, of in parts.items()})
    return given_cluster if policies is None else replace(given_cluster, policies=policies, _derived={})


def reserve_of(given_cluster: Snapshot) -> Reserve:
    return compute_reserve(given_cluster, SETTINGS)


def figures(loss: Loss | None) -> tuple[object, ...]:
    assert loss is not None
    return loss.lost, loss.bound, loss.placed, loss.stranded


def domains(**names: str) -> Policies:
    return Policies(failure_domains={broker(host).broker: name for host, name in names.items()})


def test_worst_loss_is_that_of_the_largest_broker() -> None:
    large = carrying("a", [0.1 * MIB_OF_ALL] * 9, (2e6, 2e6))
    small = {host: carrying(host, [0.1 * MIB_OF_ALL] * 4) for host in "bc"}
    loss = reserve_of(snapshot({"a": large, **small})).broker
    assert figures(loss) == ("a:8080", pytest.approx(0.85), pytest.approx(0.9), 0)
    assert loss is not None
    assert loss.is_borne


def test_large_bundles_cannot_be_shared_out() -> None:
    loss = reserve_of(cluster(a=[0.5], b=[0.6], c=[0.6])).broker
    assert loss is not None
    assert loss.bound == pytest.approx(0.85)
    assert loss.placed >= 1.1 - 1e-6
    assert not loss.is_borne


def test_failure_domain_is_lost_as_a_whole() -> None:
    given_cluster = cluster(domains(a="one", b="one", c="two"), a=[0.3], b=[0.3], c=[0.1], d=[0.1])
    found = reserve_of(given_cluster)
    assert figures(found.domain) == ("one", pytest.approx(0.4), pytest.approx(0.4), 0)
    assert found.broker is not None
    assert found.broker.placed == pytest.approx(0.4)


def test_loss_without_a_remaining_broker_has_no_figure() -> None:
    assert reserve_of(cluster(a=[0.3])) == Reserve(None, None)
    assert reserve_of(cluster(domains(a="one", b="one"), a=[0.3], b=[0.1])).domain is None


def test_bundles_without_another_eligible_broker_are_stranded() -> None:
    alone = IsolationPolicy("p", ("tenant/a",), ("a",), ())
    loss = reserve_of(cluster(Policies(isolation=(alone,)), a=[0.3, 0.1], b=[0.1], c=[0.1])).broker
    assert loss is not None
    assert (loss.lost, loss.stranded) == ("a:8080", 2)
    assert not loss.is_borne
    helped = IsolationPolicy("p", ("tenant/a",), ("a",), ("b",), min_limit=1)
    loss = reserve_of(cluster(Policies(isolation=(helped,)), a=[0.3, 0.1], b=[0.1], c=[0.1])).broker
    assert loss is not None
    assert loss.stranded == 0
    assert loss.placed == pytest.approx(0.5)


PARTS = st.lists(st.floats(0.001, 0.6), max_size=5)


@given(parts=st.lists(PARTS, min_size=2, max_size=5))
def test_placement_is_feasible_and_not_below_the_bound(parts: list[list[float]]) -> None:
    """Test that the assignment of the lower bound is one, too: kept and lost bundles are all there."""
    loss = reserve_of(cluster(None, **{f"b{k}": each for k, each in enumerate(parts)})).broker
    assert loss is not None
    lost = int(loss.lost[1])
    kept = [sum(each) for k, each in enumerate(parts) if k != lost]
    total = sum(map(sum, parts))
    assert loss.bound == pytest.approx(max(total / len(kept), *kept, 0.0), rel=1e-5, abs=1e-9)
    most = max([*parts[lost], 0.0])
    assert loss.bound <= loss.placed <= np.nextafter(max(kept) + sum(parts[lost]) + 1e-6, 10)
    assert loss.placed <= max(*kept, total / len(kept) + most) * 2 + 1e-6
