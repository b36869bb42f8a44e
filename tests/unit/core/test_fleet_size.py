from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker, report, snapshot
from support.level_fleets import SETTINGS

from loadmanager.core.domain.policies import Policies
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.headroom import WINDOW_S, FleetSize, SizeMemory, count_brokers, size_fleet

LOADS = st.floats(0, 200)
DOMAINS = st.integers(0, 5)


def cluster(brokers: int, cpu: float, at_s: float = 0.0, domains: int = 0) -> Snapshot:
    hosts = [f"b{number}" for number in range(brokers)]
    named = {broker(host).broker: f"zone-{n % domains}" for n, host in enumerate(hosts)} if domains else {}
    taken = snapshot({host: report(cpu=(cpu, 100)) for host in hosts})
    return replace(taken, taken_at_s=at_s, policies=Policies(failure_domains=named), _derived={})


def size(given_cluster: Snapshot, memory: SizeMemory | None = None) -> tuple[FleetSize, SizeMemory]:
    sized = size_fleet(given_cluster, SETTINGS, memory)
    assert sized is not None
    return sized


def remaining(count: int, domains: int) -> int:
    return count - (math.ceil(count / domains) if domains > 1 else 1)


@given(load=LOADS, domains=DOMAINS)
def test_remaining_brokers_carry_the_load_and_one_broker_less_would_not(load: float, domains: int) -> None:
    count = count_brokers(load, domains)
    assert remaining(count, domains) >= load
    assert count == 2 or remaining(count - 1, domains) < load


@given(load=LOADS, more=LOADS, domains=DOMAINS)
def test_more_load_never_needs_fewer_brokers(load: float, more: float, domains: int) -> None:
    assert count_brokers(load, domains) <= count_brokers(load + more, domains)


@given(loads=st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_number_carries_each_load_of_the_window(loads: list[float]) -> None:
    memory = None
    for number, cpu in enumerate(loads):
        sized, memory = size(cluster(4, cpu, 60.0 * number), memory)
        window = loads[max(0, number - 9) : number + 1]
        assert sized.needed >= count_brokers(4 * max(window) / 85 - 1e-3, 0)


@pytest.mark.parametrize(("cpu", "domains", "needed"), [(60, 0, 6), (60, 3, 8), (85, 0, 7), (0, 0, 6)])
def test_number_rises_at_once_and_falls_only_after_the_window(cpu: float, domains: int, needed: int) -> None:
    sized, memory = size(cluster(6, cpu, domains=domains))
    assert sized.needed == needed
    again, _ = size(cluster(6, 0, WINDOW_S - 1, domains), memory)
    assert again.needed == needed


def test_number_falls_to_the_peak_plus_a_tenth() -> None:
    _, memory = size(cluster(10, 10))
    sized, memory = size(cluster(10, 17, WINDOW_S), memory)
    assert sized.needed == 4  # 2.0 brokers' worth and a loss are 3, a tenth more is 4
    assert "1.7 brokers of CPU, and stay within 85 % after the loss of a broker" in sized.sentence
    assert size(cluster(10, 15, 3 * WINDOW_S), memory)[0].needed == 3


def test_loss_of_a_failure_domain_is_named() -> None:
    assert "after the loss of a failure domain" in size(cluster(6, 60, domains=3))[0].sentence


def test_no_size_before_the_first_report() -> None:
    assert size_fleet(snapshot({}), SETTINGS, None) is None
