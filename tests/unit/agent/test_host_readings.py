from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from loadmanager.agent.host_readings import (
    ProcessLimits,
    Roots,
    find_limits,
    read_host,
    read_nics,
    read_process,
)

MIB = 1024 * 1024
OWN = os.getpid()
TOTAL = psutil.virtual_memory().total


def cores() -> int:
    return len(os.sched_getaffinity(OWN))


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """An empty tree: no control group, no NIC."""
    return Roots(cgroup=tmp_path / "cgroup", proc=tmp_path / "proc", nics=tmp_path / "net")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def a_group_v2(folder: Path, cpu_max: str = "max 100000", memory_max: str = "max") -> None:
    write(folder / "cpu.max", cpu_max)
    write(folder / "memory.max", memory_max)


def a_nic(roots: Roots, name: str, speed: str | None = "10000", **files: str) -> None:
    """A card as /sys shows it: a link into the tree of devices, `virtual` or not."""
    kind = files.pop("kind", "pci0000:00")
    device = roots.nics.parent / "devices" / kind / name
    described = {"type": "1", "operstate": "up", "statistics/rx_bytes": "1000", "statistics/tx_bytes": "500", **files}
    for file, text in described.items():
        write(device / file, text)
    if speed is not None:
        write(device / "speed", speed)
    roots.nics.mkdir(parents=True, exist_ok=True)
    (roots.nics / name).symlink_to(device)


def names(roots: Roots, *, virtual_if_alone: bool = False) -> list[str]:
    return [nic.name for nic in read_nics(roots, virtual_if_alone=virtual_if_alone)]


def test_limits_without_control_groups_are_affinity_and_host_memory(roots: Roots) -> None:
    assert find_limits(OWN, roots) == ProcessLimits(cores(), TOTAL)
    assert not ProcessLimits(psutil.cpu_count() or 1, TOTAL).is_below_host()
    assert not ProcessLimits(0.0, 0).is_below_host(), "they are not known"


def test_limits_are_read_from_control_groups_version_2(roots: Roots) -> None:
    a_group_v2(roots.cgroup, cpu_max="50000 100000", memory_max=str(512 * MIB))
    assert find_limits(OWN, roots) == ProcessLimits(0.5, 512 * MIB)
    assert ProcessLimits(0.5, TOTAL).is_below_host()
    assert ProcessLimits(psutil.cpu_count() or 1, 512 * MIB).is_below_host()


def test_limits_are_inherited_from_parent_control_groups(roots: Roots) -> None:
    write(roots.proc / str(OWN) / "cgroup", "0::/system.slice/broker.service")
    a_group_v2(roots.cgroup / "system.slice", cpu_max="20000 100000", memory_max=str(256 * MIB))
    a_group_v2(roots.cgroup / "system.slice" / "broker.service")
    assert find_limits(OWN, roots) == ProcessLimits(0.2, 256 * MIB)


def test_limits_are_read_from_control_groups_version_1(roots: Roots) -> None:
    write(roots.proc / str(OWN) / "cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc")
    write(roots.cgroup / "cpu" / "docker" / "abc" / "cpu.cfs_quota_us", "50000")
    write(roots.cgroup / "cpu" / "docker" / "abc" / "cpu.cfs_period_us", "100000")
    write(roots.cgroup / "memory" / "docker" / "abc" / "memory.limit_in_bytes", str(64 * MIB))
    assert find_limits(OWN, roots) == ProcessLimits(0.5, 64 * MIB)


def test_limits_of_a_broker_in_another_container_are_those_of_that_container(roots: Roots) -> None:
    write(roots.proc / str(OWN) / "cgroup", "0::/../broker.scope")
    a_group_v2(roots.cgroup, cpu_max="10000 100000", memory_max=str(64 * MIB))  # the agent's own
    assert find_limits(OWN, roots) == ProcessLimits(0.0, 0), "unknown while the broker's cannot be read"
    inside = roots.proc / str(OWN) / "root" / roots.cgroup.relative_to("/")
    a_group_v2(inside, cpu_max="70000 100000", memory_max=str(512 * MIB))
    assert find_limits(OWN, roots) == ProcessLimits(0.7, 512 * MIB)


def test_negative_quota_and_memory_limit_above_the_host_are_no_limits(roots: Roots) -> None:
    write(roots.cgroup / "cpu" / "cpu.cfs_quota_us", "-1")
    write(roots.cgroup / "cpu" / "cpu.cfs_period_us", "100000")
    write(roots.cgroup / "memory" / "memory.limit_in_bytes", "9223372036854771712")
    assert find_limits(OWN, roots) == ProcessLimits(cores(), TOTAL)


@pytest.mark.parametrize("garbage", ["", "nonsense", "100000", "0 0", "-5 100000"])
def test_malformed_cpu_max_is_no_limit(roots: Roots, garbage: str) -> None:
    a_group_v2(roots.cgroup, cpu_max=garbage)
    assert find_limits(OWN, roots).cores == cores()


def test_only_physical_ethernet_cards_that_are_up_count(roots: Roots) -> None:
    a_nic(roots, "eth0")
    a_nic(roots, "eth1", operstate="dormant")
    a_nic(roots, "eth2", operstate="unknown")
    a_nic(roots, "eth3", operstate="down")
    a_nic(roots, "ib0", type="32")
    a_nic(roots, "veth1", kind="virtual")
    a_nic(roots, "lo", kind="virtual", type="772")
    assert names(roots) == ["eth0", "eth1", "eth2"]


@pytest.mark.parametrize("speed", ["-1", "0", "fast", None])
def test_invalid_nic_speed_is_unknown(roots: Roots, speed: str | None) -> None:
    a_nic(roots, "eth0", speed=speed)
    (nic,) = read_nics(roots, virtual_if_alone=False)
    assert nic.speed_mbit_per_s is None
    assert (nic.received_bytes, nic.sent_bytes) == (1000, 500)


def test_declared_speed_selects_the_virtual_nic_of_the_default_route(roots: Roots) -> None:
    a_nic(roots, "eth0", kind="virtual")
    a_nic(roots, "docker0", kind="virtual")
    write(roots.proc / "net" / "route", "Iface\tDestination\tGateway\ndocker0\t000011AC\t0\neth0\t00000000\t0101A8C0")
    assert names(roots, virtual_if_alone=True) == ["eth0"]
    assert names(roots, virtual_if_alone=False) == []


def test_virtual_nic_is_ignored_beside_a_physical_one(roots: Roots) -> None:
    a_nic(roots, "eth0")
    a_nic(roots, "tun0", kind="virtual")
    write(roots.proc / "net" / "route", "Iface\tDestination\ntun0\t00000000")
    assert names(roots, virtual_if_alone=True) == ["eth0"]


def test_host_reading_has_cores_memory_and_cpu_time(roots: Roots) -> None:
    reading = read_host(roots, time.monotonic, None, nic_speed_declared=False)
    assert reading.cores == psutil.cpu_count()
    assert 0 < reading.memory_used_bytes < reading.memory_limit_bytes == psutil.virtual_memory().total
    assert sum(reading.cpu_s.values()) > 0


def test_declared_cores_override_detected_ones(roots: Roots) -> None:
    assert read_host(roots, time.monotonic, 8.0, nic_speed_declared=False).cores == 8.0


def test_process_reading_has_own_cpu_time_and_memory(roots: Roots) -> None:
    reading = read_process(os.getpid(), roots, time.monotonic, 2.0, nic_speed_declared=False)
    assert reading is not None
    assert (os.getpid(), psutil.Process().create_time()) in reading.cpu_s
    assert reading.memory_used_bytes > MIB
    assert reading.cores == 2.0


def test_process_cpu_is_user_plus_system_time(roots: Roots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "cpu_times", Mock(return_value=Mock(user=2.0, system=1.0)))
    reading = read_process(os.getpid(), roots, time.monotonic, 2.0, nic_speed_declared=False)
    assert reading is not None
    assert set(reading.cpu_s.values()) == {3.0}


@pytest.mark.parametrize("pid", [-1, 0x7FFFFFFF])
def test_missing_process_has_no_reading(roots: Roots, pid: int) -> None:
    assert read_process(pid, roots, time.monotonic, None, nic_speed_declared=False) is None
