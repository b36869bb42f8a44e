"""A cgroup for each broker. Otherwise all brokers on one machine report the CPU of the whole machine.

This usually needs root, and writable cgroups. Without them, brokers differ only in messages.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_REMOVAL_TRIES = 50
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup, as its folders: one in version 2, one per controller in version 1."""

    folders: tuple[Path, ...]

    def entering(self, command: list[str]) -> list[str]:
        """Wrap a command so that it runs in this group from its start."""
        places = " ".join(f"'{folder}/cgroup.procs'" for folder in self.folders)
        return ["/bin/sh", "-c", f'for place in {places}; do echo $$ > "$place"; done; exec "$@"', "sh", *command]

    def remove(self) -> None:
        """Remove the group after its processes have exited. Retries, as the kernel may be late to notice the exit."""
        for folder in self.folders:
            for _ in range(_REMOVAL_TRIES):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                if not folder.exists():
                    break
                time.sleep(_RETRY_S)


def make_cgroup(name: str, cores: float) -> Cgroup | None:
    """Create a group whose processes share `cores` cores; None if this process may not create one."""
    group = Cgroup(_folders(name))
    try:
        for folder in group.folders:
            folder.mkdir()
        _limit(group.folders[0], round(cores * _PERIOD_US))
    except (OSError, IndexError):
        group.remove()
        return None
    return group


def _folders(name: str) -> tuple[Path, ...]:
    if (_ROOT / "cgroup.controllers").exists():
        return (_ROOT / name,)
    return tuple(_ROOT / controller / name for controller in ("cpu", "cpuacct") if (_ROOT / controller).is_dir())


def _limit(folder: Path, quota_us: int) -> None:
    if (folder / "cpu.cfs_quota_us").exists():
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        return
    if not (folder / "cpu.max").exists():
        (_ROOT / "cgroup.subtree_control").write_text("+cpu")
    (folder / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
