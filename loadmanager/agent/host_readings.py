"""Readings of the host or of the broker's process, with the limits that apply to it.

A process may use the least that its control groups, its cpuset and its affinity allow. This module reads control
groups itself: a library shows those of the host or of the caller, and the broker may run in another container than its
agent. Both cgroup versions are supported. All root folders are parameters, so tests can use any tree of files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadmanager.agent.host_usage import HostReading, Nic, PidAndStart

_ETHERNET = "1"
_USABLE_STATES = ("up", "unknown", "dormant")
_WHOLE_HOST: PidAndStart = (0, 0.0)
_DEFAULT_ROUTE = "00000000"
_OUTSIDE = "/.."
"""Prefix of a control group outside of the caller's cgroup namespace."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace of all processes outside containers (`PROC_PID_INIT_INO`)."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Root folders of the kernel's files."""

    cgroup: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")
    nics: Path = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Cores and memory that a process may use; 0: unknown."""

    cores: float
    memory_bytes: int

    def is_below_host(self) -> bool:
        return 0 < self.cores < _host_cores() or 0 < self.memory_bytes < psutil.virtual_memory().total


def read_host(
    roots: Roots, now_s: Callable[[], float], cores: float | None, *, nic_speed_declared: bool
) -> HostReading:
    """Read the whole machine; `cores` overrides the number of its cores."""
    memory = psutil.virtual_memory()
    return HostReading(
        at_s=now_s(),
        cpu_s={_WHOLE_HOST: _host_cpu_s()},
        cores=cores or _host_cores(),
        memory_used_bytes=memory.total - memory.available,
        memory_limit_bytes=memory.total,
        nics=read_nics(roots, virtual_if_alone=nic_speed_declared),
    )


def read_process(
    pid: int,
    roots: Roots,
    now_s: Callable[[], float],
    cores: float | None,
    *,
    nic_speed_declared: bool,
) -> HostReading | None:
    """Read a process and its children; None if there is no such process or access is denied."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        limits = find_limits(pid, roots)
    except (psutil.Error, OSError, ValueError):
        return None
    usages = [usage for member in family if (usage := _process_usage(member)) is not None]
    if not usages:
        return None
    return HostReading(
        at_s=now_s(),
        cpu_s={identity: cpu_s for identity, cpu_s, _ in usages},
        cores=cores or limits.cores,
        memory_used_bytes=sum(resident for _, _, resident in usages),
        memory_limit_bytes=limits.memory_bytes,
        nics=read_nics(roots, virtual_if_alone=nic_speed_declared),
    )


def find_limits(pid: int, roots: Roots) -> ProcessLimits:
    """Return the tightest limits of a process: control groups, cpuset (part of the affinity) and affinity.

    `OSError` if there is no such process. Limits are unknown if its control groups are not visible from here.
    """
    affinity = len(os.sched_getaffinity(pid))
    mount = roots.proc / str(pid) / "root" / roots.cgroup.relative_to(roots.cgroup.anchor)
    if not os.access(mount, os.R_OK | os.X_OK):
        if _membership(roots, pid, "").startswith(_OUTSIDE) or _membership(roots, pid, "cpu").startswith(_OUTSIDE):
            return ProcessLimits(0.0, 0)
        mount = roots.cgroup
    quotas = (
        *(_quota_v2(folder) for folder in _groups(roots, pid, "", mount)),
        *(_quota_v1(folder) for folder in _groups(roots, pid, "cpu", mount / "cpu")),
    )
    memory = (
        *(_number(_read(folder / "memory.max")) for folder in _groups(roots, pid, "", mount)),
        *(
            _number(_read(folder / "memory.limit_in_bytes"))
            for folder in _groups(roots, pid, "memory", mount / "memory")
        ),
    )
    return ProcessLimits(
        cores=min([affinity, *(quota for quota in quotas if quota)]),
        memory_bytes=min([psutil.virtual_memory().total, *(limit for limit in memory if limit)]),
    )


def is_in_container(roots: Roots) -> bool:
    """Tell if this process has its own pid namespace, as in a container."""
    try:
        return (roots.proc / "self" / "ns" / "pid").stat().st_ino != _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def read_nics(roots: Roots, *, virtual_if_alone: bool) -> tuple[Nic, ...]:
    """Return physical Ethernet cards that are up. If there are none and `virtual_if_alone`, return the virtual card
    that has the default route.
    """
    try:
        folders = sorted(roots.nics.iterdir())
    except OSError:
        return ()
    ethernet = [folder for folder in folders if _is_usable(folder)]
    physical = [folder for folder in ethernet if "/virtual/" not in os.path.realpath(folder)]
    if not physical and virtual_if_alone:
        routed = _interfaces_of_default_route(roots.proc)
        physical = [folder for folder in ethernet if folder.name in routed]
    return tuple(_read_nic(folder) for folder in physical)


def _quota_v2(group: Path) -> float | None:
    quota, _, period = (_read(group / "cpu.max") or "").partition(" ")
    return _ratio(quota, period)


def _quota_v1(group: Path) -> float | None:
    return _ratio(_read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us"))


def _groups(roots: Roots, pid: int, controller: str, mount: Path) -> Iterator[Path]:
    """Yield the folders of the process's group and its ancestors, as far as they are visible under `mount`.

    A container usually sees its own group as the root, while `/proc/<pid>/cgroup` may name a path outside of it.
    """
    yield mount
    path = mount
    for part in _membership(roots, pid, controller).strip("/").split("/"):
        path = path / part
        if not part or part == ".." or not path.is_dir():
            return
        yield path


def _membership(roots: Roots, pid: int, controller: str) -> str:
    """Return the path of the process's group: `0::/path` in version 2, `4:cpu,cpuacct:/path` in version 1."""
    for line in (_read(roots.proc / str(pid) / "cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            return path
    return ""


def _is_usable(folder: Path) -> bool:
    return _read(folder / "type") == _ETHERNET and _read(folder / "operstate") in _USABLE_STATES


def _read_nic(folder: Path) -> Nic:
    speed = _number(_read(folder / "speed"))
    return Nic(
        name=folder.name,
        speed_mbit_per_s=speed if speed and speed > 0 else None,
        received_bytes=_number(_read(folder / "statistics" / "rx_bytes")) or 0,
        sent_bytes=_number(_read(folder / "statistics" / "tx_bytes")) or 0,
    )


def _interfaces_of_default_route(proc: Path) -> set[str]:
    rows = [line.split() for line in (_read(proc / "net" / "route") or "").splitlines()[1:]]
    return {row[0] for row in rows if len(row) > 1 and row[1] == _DEFAULT_ROUTE}


def _process_usage(process: psutil.Process) -> tuple[PidAndStart, float, int] | None:
    """Return the identity, CPU seconds and resident bytes of a process; None if it has ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            identity = (process.pid, process.create_time())
            return identity, times.user + times.system, process.memory_info().rss
    except psutil.Error:
        return None


def _host_cpu_s() -> float:
    """Return the host's busy CPU seconds, without idle and I/O wait. `user` includes guests."""
    times = psutil.cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in busy))


def _host_cores() -> float:
    return float(os.cpu_count() or 1)


def _read(path: Path) -> str | None:
    """Return the text of a kernel file; None if it is missing or unreadable, like the speed of a NIC that is down."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text else None
    except ValueError:
        return None


def _ratio(quota: str | None, period: str | None) -> float | None:
    """Cores in a quota; None when there is none (`max`, or -1)."""
    quota_us, period_us = _number(quota), _number(period)
    return quota_us / period_us if quota_us and period_us and quota_us > 0 and period_us > 0 else None
