from __future__ import annotations

from dataclasses import replace

import pytest

from loadmanager.agent.host_usage import (
    HostReading,
    Nic,
    Traffic,
    bandwidth_limit,
    unknown_limits,
    usage_between,
    why_bandwidth_is_unknown,
)

MIB = 1024 * 1024
BROKER = (100, 1.0)
CHILD = (101, 2.0)


def a_nic(name: str = "eth0", speed: int | None = 10_000, received: int = 0, sent: int = 0) -> Nic:
    return Nic(name, speed, received, sent)


def a_reading(at_s: float = 10.0, cpu_s: float = 5.0, nics: tuple[Nic, ...] = (a_nic(),)) -> HostReading:
    return HostReading(at_s, {BROKER: cpu_s}, 4.0, 512 * MIB, 2048 * MIB, nics)


@pytest.mark.parametrize(
    ("speeds", "declared", "limit"),
    [
        pytest.param([None], 3.0, 3_000_000, id="declared"),
        pytest.param([None], 5.4, 5_400_000, id="declared fraction"),
        pytest.param([None] * 3, 3.0, 9_000_000, id="declared for each"),
        pytest.param([None] * 3, 5.4, 16_200_000, id="declared fraction for each"),
        pytest.param([1_000], 25.0, 25_000_000, id="declared before detected"),
        pytest.param([10_000, 1_000], None, 11_000_000, id="sum of detected"),
        pytest.param([10_000, None], None, None, id="one unknown"),
        pytest.param([], None, None, id="no NIC"),
        pytest.param([], 10.0, None, id="no NIC, declared"),
    ],
)
def test_limit_of_bandwidth(speeds: list[int | None], declared: float | None, limit: float | None) -> None:
    nics = tuple(a_nic(f"eth{number}", speed) for number, speed in enumerate(speeds))
    assert bandwidth_limit(nics, declared) == (None if limit is None else pytest.approx(limit))


def test_usage_is_the_difference_of_two_readings() -> None:
    before = a_reading(at_s=10.0, cpu_s=5.0, nics=(a_nic(received=0, sent=1_000_000),))
    now = a_reading(at_s=20.0, cpu_s=25.0, nics=(a_nic(received=12_500_000, sent=3_500_000),))
    usage = usage_between(before, now, None)
    assert usage["cpu"] == {"usage": 200.0, "limit": 400.0}
    assert usage["memory"] == {"usage": 512.0, "limit": 2048.0}
    assert usage["bandwidthIn"] == {"usage": 10_000.0, "limit": 10_000_000.0}
    assert usage["bandwidthOut"] == {"usage": 2_000.0, "limit": 10_000_000.0}
    assert unknown_limits(usage) == ("directMemory",)


def test_rates_are_zero_when_no_time_has_passed() -> None:
    assert usage_between(a_reading(cpu_s=1), a_reading(cpu_s=9), None)["cpu"]["usage"] == 0.0


def test_unknown_limit_is_zero_and_usage_is_as_measured() -> None:
    before = a_reading(at_s=0.0, nics=(a_nic(speed=None),))
    now = a_reading(at_s=1.0, nics=(a_nic(speed=None, received=1000),))
    usage = usage_between(before, now, None)
    assert usage["bandwidthIn"] == {"usage": 8.0, "limit": 0.0}
    assert unknown_limits(usage) == ("directMemory", "bandwidthIn", "bandwidthOut")


def test_nic_that_is_new_or_was_reset_adds_no_traffic() -> None:
    before = a_reading(at_s=0.0, nics=(a_nic("eth0", received=10_000),))
    now = a_reading(at_s=1.0, nics=(a_nic("eth0", received=10), a_nic("eth1", received=10**9)))
    assert usage_between(before, now, None)["bandwidthIn"]["usage"] == 0.0


def test_exited_child_process_does_not_lower_cpu_usage() -> None:
    before = replace(a_reading(at_s=0.0), cpu_s={BROKER: 5.0, CHILD: 100.0})
    now = replace(a_reading(at_s=10.0), cpu_s={BROKER: 6.0})
    assert usage_between(before, now, None)["cpu"]["usage"] == pytest.approx(10.0)


def test_restarted_broker_counts_all_its_cpu_time() -> None:
    before = replace(a_reading(at_s=0.0), cpu_s={(100, 1.0): 5000.0})
    now = replace(a_reading(at_s=10.0), cpu_s={(100, 9.0): 2.0})
    assert usage_between(before, now, None)["cpu"]["usage"] == pytest.approx(20.0)


def test_broker_traffic_is_compared_with_the_declared_speed() -> None:
    usage = usage_between(a_reading(at_s=0.0), a_reading(at_s=1.0), 1.0, Traffic(125_000.0, 250_000.0))
    assert usage["bandwidthIn"] == {"usage": 1_000.0, "limit": 1_000_000.0}
    assert usage["bandwidthOut"] == {"usage": 2_000.0, "limit": 1_000_000.0}


def test_reason_for_unknown_bandwidth_is_stated() -> None:
    known, silent = Nic("eth0", 10_000, 0, 0), Nic("eth1", None, 0, 0)
    assert why_bandwidth_is_unknown((known, silent)) == "no speed is to be read of eth1"
    assert why_bandwidth_is_unknown(()) == "there is no physical network card, as in a container"
