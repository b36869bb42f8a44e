"""Takes readings of the host, the container or a process: /proc, /sys and control groups, and psutil for the rest.

Control groups are read here and not left to a library because the limits of a container are invisible otherwise. Both
versions are understood. The limits of a group and of all groups above it apply; the tightest counts. All roots are
parameters, so that any tree of files will do in a test.
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
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6
_DEFAULT_ROUTE = "00000000"


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's files are."""

    cgroup: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")
    nics: Path = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class CpuLimit:
    """`used_s`: CPU seconds that the group with the limit has used so far."""

    cores: float
    used_s: float


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """`used_bytes` is without page cache that can be dropped at any time."""

    limit_bytes: int
    used_bytes: int


def read_host(
    roots: Roots, now_s: Callable[[], float], cores: float | None, *, nic_speed_declared: bool
) -> HostReading:
    """The whole host, or the container this process is in; `cores` overrides the detected limit."""
    cpu = find_cpu_limit(roots)
    memory = find_memory_limit(roots)
    host_memory = psutil.virtual_memory()
    used_s = cpu.used_s if cpu else _host_cpu_s()
    return HostReading(
        at_s=now_s(),
        cpu_s={_WHOLE_HOST: used_s},
        cores=cores or (cpu.cores if cpu else _host_cores()),
        memory_used_bytes=memory.used_bytes if memory else host_memory.total - host_memory.available,
        memory_limit_bytes=memory.limit_bytes if memory else host_memory.total,
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
    """A process with its children; None when there is no such process, or it may not be looked at."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except (psutil.Error, ValueError):
        return None
    usages = [usage for member in family if (usage := _process_usage(member)) is not None]
    if not usages:
        return None
    cpu = find_cpu_limit(roots)
    memory = find_memory_limit(roots)
    return HostReading(
        at_s=now_s(),
        cpu_s={identity: cpu_s for identity, cpu_s, _ in usages},
        cores=cores or (cpu.cores if cpu else _host_cores()),
        memory_used_bytes=sum(resident for _, _, resident in usages),
        memory_limit_bytes=memory.limit_bytes if memory else psutil.virtual_memory().total,
        nics=read_nics(roots, virtual_if_alone=nic_speed_declared),
    )


def read_nics(roots: Roots, *, virtual_if_alone: bool) -> tuple[Nic, ...]:
    """Physical Ethernet cards that are up; without any, on demand, the virtual one with the default route."""
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


def find_cpu_limit(roots: Roots) -> CpuLimit | None:
    """The tightest CPU quota of this process's control groups; None without one."""
    limits = [*_cpu_limits_v2(roots), *_cpu_limits_v1(roots)]
    return min(limits, key=lambda limit: limit.cores, default=None)


def find_memory_limit(roots: Roots) -> MemoryLimit | None:
    """The tightest memory limit of this process's control groups; None when none is below the host's memory."""
    host_bytes = psutil.virtual_memory().total
    limits = [*_memory_limits_v2(roots), *_memory_limits_v1(roots)]
    tightest = min(limits, key=lambda limit: limit.limit_bytes, default=None)
    return tightest if tightest is not None and tightest.limit_bytes < host_bytes else None


def _cpu_limits_v2(roots: Roots) -> Iterator[CpuLimit]:
    for folder in _groups(roots, "", roots.cgroup):
        quota = (_read(folder / "cpu.max") or "").split()
        used_us = _read_field(folder / "cpu.stat", "usage_usec")
        if len(quota) == 2 and used_us is not None:  # noqa: PLR2004 - quota and period
            cores = _ratio(quota[0], quota[1])
            if cores is not None:
                yield CpuLimit(cores, used_us / _MICROSECONDS)


def _cpu_limits_v1(roots: Roots) -> Iterator[CpuLimit]:
    for folder in _groups(roots, "cpu", roots.cgroup / "cpu"):
        cores = _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
        accounting = roots.cgroup / "cpuacct" / folder.relative_to(roots.cgroup / "cpu")
        used_ns = _number(_read(accounting / "cpuacct.usage"))
        if cores is not None and used_ns is not None:
            yield CpuLimit(cores, used_ns / _NANOSECONDS)


def _memory_limits_v2(roots: Roots) -> Iterator[MemoryLimit]:
    for folder in _groups(roots, "", roots.cgroup):
        limit, used = _number(_read(folder / "memory.max")), _number(_read(folder / "memory.current"))
        if limit and used is not None:
            droppable = _read_field(folder / "memory.stat", "inactive_file") or 0
            yield MemoryLimit(limit, max(0, used - droppable))


def _memory_limits_v1(roots: Roots) -> Iterator[MemoryLimit]:
    for folder in _groups(roots, "memory", roots.cgroup / "memory"):
        limit = _number(_read(folder / "memory.limit_in_bytes"))
        used = _number(_read(folder / "memory.usage_in_bytes"))
        if limit and used is not None:
            droppable = _read_field(folder / "memory.stat", "total_inactive_file") or 0
            yield MemoryLimit(limit, max(0, used - droppable))


def _groups(roots: Roots, controller: str, mount: Path) -> Iterator[Path]:
    """The folders of this process's group and of those above it, as far as they are visible under `mount`.

    A container usually sees its own group as the root, while /proc/self/cgroup may name a path outside of it.
    """
    yield mount
    path = mount
    for part in _membership(roots, controller).strip("/").split("/"):
        path = path / part
        if not part or part == ".." or not path.is_dir():
            return
        yield path


def _membership(roots: Roots, controller: str) -> str:
    """The path of this process's group: `0::/path` for version 2, `4:cpu,cpuacct:/path` for version 1."""
    for line in (_read(roots.proc / "self" / "cgroup") or "").splitlines():
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
    """Who it is, its CPU seconds and its resident bytes; None when it has ended meanwhile."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            identity = (process.pid, process.create_time())
            return identity, times.user + times.system, process.memory_info().rss
    except psutil.Error:
        return None


def _host_cpu_s() -> float:
    """CPU seconds of the host that were neither idle nor waiting for a disk. Guests are part of `user` already."""
    times = psutil.cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in busy))


def _host_cores() -> float:
    return float(psutil.cpu_count() or 1)


def _read(path: Path) -> str | None:
    """The text of a file of the kernel, None when there is none or it refuses: the speed of a NIC that is down does."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _read_field(path: Path, name: str) -> int | None:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value)
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
