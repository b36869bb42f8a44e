"""The agent's measurement of a broker in a real control group, from inside and from outside of the group."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from support.waiting import eventually_sync

from loadmanager.agent.host_readings import ProcessLimits, Roots, find_limits, read_process
from loadmanager.agent.host_usage import HostReading, usage_between

CGROUPS = Path("/sys/fs/cgroup")
MIB = 1024 * 1024
BROKER = """
import sys, time
share = float(sys.argv[1])
print("ready", flush=True)
while True:
    end_s = time.process_time() + 0.02 * share
    while time.process_time() < end_s:
        pass
    time.sleep(0.02 * (1 - share))
"""


@dataclass(frozen=True)
class Group:
    """A control group of version 1 (a folder for each controller) or 2 (one folder for all)."""

    folders: dict[str, Path]

    def write(self, controller: str, file: str, text: str) -> None:
        (self.folders[controller] / file).write_text(text)

    def add(self, pid: int) -> None:
        for folder in set(self.folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))


@contextmanager
def a_group() -> Iterator[tuple[Group, bool]]:
    """A group of the test's own, and whether it is of version 2; skips where none can be made."""
    controllers, name = ("cpu", "cpuset", "memory"), f"loadmanager-test-{uuid.uuid4().hex[:8]}"
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    folders = {each: CGROUPS / name if is_v2 else CGROUPS / each / name for each in controllers}
    try:
        for folder in dict.fromkeys(folders.values()):
            folder.mkdir()
        if not all(any(folder.glob(f"{each}.*")) for each, folder in folders.items()):
            pytest.skip(f"{CGROUPS}: cpu, cpuset and memory are not all delegated")
        if not is_v2:
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folders["cpuset"] / file).write_text((CGROUPS / "cpuset" / file).read_text())
        yield Group(folders), is_v2
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    finally:
        for folder in dict.fromkeys(folders.values()):
            if folder.exists():
                folder.rmdir()


Start = Callable[[float], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that uses such a share of a core."""
    with ExitStack() as stack:

        def started(share: float) -> subprocess.Popen[str]:
            process = subprocess.Popen([sys.executable, "-c", BROKER, str(share)], stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            output: IO[str] | None = process.stdout
            assert output is not None
            stack.callback(output.close)
            assert output.readline() == "ready\n"
            return process

        yield started


def set_quota(group: Group, *, is_v2: bool, cores: float, memory_bytes: int) -> None:
    if is_v2:
        group.write("cpu", "cpu.max", f"{int(cores * 100_000)} 100000")
        group.write("memory", "memory.max", str(memory_bytes))
    else:
        group.write("cpu", "cpu.cfs_quota_us", str(int(cores * 100_000)))
        group.write("memory", "memory.limit_in_bytes", str(memory_bytes))


def test_limits_of_a_control_group_are_read_from_outside_and_inside(start: Start) -> None:
    with a_group() as (group, is_v2):
        set_quota(group, is_v2=is_v2, cores=0.5, memory_bytes=256 * MIB)
        broker = start(0)
        group.add(broker.pid)
        assert find_limits(broker.pid, Roots()) == ProcessLimits(0.5, 256 * MIB)
        assert find_limits(os.getpid(), Roots()).cores != 0.5, "the agent is outside"
        inside = subprocess.run(
            [sys.executable, "-c", PRINT_LIMITS, str(broker.pid), *map(str, set(group.folders.values()))],
            capture_output=True,
            text=True,
            check=True,
        )
        assert inside.stdout.split() == ["0.5", str(256 * MIB)]
        broker.kill()
        broker.wait()


PRINT_LIMITS = """
import os, sys
from pathlib import Path
for folder in sys.argv[2:]:
    Path(folder, "cgroup.procs").write_text(str(os.getpid()))
from loadmanager.agent.host_readings import Roots, find_limits
limits = find_limits(int(sys.argv[1]), Roots())
print(limits.cores, limits.memory_bytes)
"""


def test_cpuset_of_one_core_is_a_limit_of_one_core(start: Start) -> None:
    with a_group() as (group, _):
        group.write("cpuset", "cpuset.cpus", str(min(os.sched_getaffinity(0))))
        broker = start(0)
        group.add(broker.pid)
        assert find_limits(broker.pid, Roots()).cores == 1.0
        broker.kill()
        broker.wait()


def test_brokers_of_one_host_report_their_own_usage(start: Start) -> None:
    brokers = [start(share).pid for share in (0.0, 0.4, 0.8)]

    def readings() -> list[tuple[HostReading | None, float]]:
        return [
            (read_process(pid, Roots(), time.monotonic, None, nic_speed_declared=False), run_s(pid)) for pid in brokers
        ]

    before = readings()
    eventually_sync(lambda: run_s(brokers[2]) - before[2][1] > 1.0)
    after = readings()
    reported = []
    for (earlier, ran_before_s), (later, ran_after_s) in zip(before, after, strict=True):
        assert earlier is not None
        assert later is not None
        reported.append(usage_between(earlier, later, None)["cpu"]["usage"])
        used = 100 * (ran_after_s - ran_before_s) / (later.at_s - earlier.at_s)
        assert reported[-1] == pytest.approx(used, rel=0.1, abs=5)
    assert reported[0] < reported[2], "the idle one uses less"


def run_s(pid: int) -> float:
    """CPU seconds that the scheduler has given to the process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
