"""A cgroup for each broker: brokers on one machine otherwise all report the CPU of the whole machine as theirs.

Needs root, mostly, and a kernel whose cgroups can be written to. Where they cannot, brokers differ in messages alone.
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
    """One group of processes, as the folders that the kernel shows it by: one (version 2), or one a controller (1)."""

    folders: tuple[Path, ...]

    def entering(self, command: list[str]) -> list[str]:
        """The command, run in this group from its first instruction on."""
        places = " ".join(f"'{folder}/cgroup.procs'" for folder in self.folders)
        return ["/bin/sh", "-c", f'for place in {places}; do echo $$ > "$place"; done; exec "$@"', "sh", *command]

    def remove(self) -> None:
        """Once its processes have ended, which the kernel may notice a moment later than we."""
        for folder in self.folders:
            for _ in range(_REMOVAL_TRIES):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                if not folder.exists():
                    break
                time.sleep(_RETRY_S)


def make_cgroup(name: str, cores: float) -> Cgroup | None:
    """A group whose processes get so many cores together; None where this process may make none."""
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
