"""One life of an agent: from the start of its process to the end of it, whatever ends it.

Whether another life is over can be told for certain only where it was lived, by what the kernel keeps there and nobody
can copy: a life holds an abstract socket of its own name, which goes with the process. The place is a network namespace
of one boot of one machine. Of a life elsewhere nothing is known: an address that refuses may be the wrong one.
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_SOCKETS = Path("/proc/self/net/unix")
_PREFIX = "loadmanager-agent/"


def this_place() -> str:
    """Where this process lives; empty where the system does not say, which is like no other place."""
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()}.{_NETWORK.stat().st_ino}"
    except OSError:
        return ""


class Life:
    """This process's own life; `name` is unlike that of any other, here or elsewhere."""

    def __init__(self, place: str | None = None) -> None:
        self._place = this_place() if place is None else place
        self.name = f"{self._place}/{uuid.uuid4().hex}"
        self._sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sign.bind(_address(self.name))

    def close(self) -> None:
        """As the end of the process would."""
        self._sign.close()

    def is_over(self, name: str) -> bool:
        """Whether the life of that name has ended for certain; False wherever that cannot be known."""
        place, _, _ = name.partition("/")
        return bool(place) and place == self._place and _is_unheld(name)

    def count_agents_here(self) -> int:
        """Agents that live in this network namespace, this one included: by the sockets that they hold."""
        try:
            sockets = _SOCKETS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 1
        return max(1, sockets.count(f"@{_PREFIX}{self._place}/"))


def _is_unheld(name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_address(name))
        except ConnectionRefusedError:
            return True
        except OSError:  # a name that is none, or a limit of this process
            return False
    return False


def _address(name: str) -> str:
    """In Linux's abstract namespace, which has no files; at most 107 bytes."""
    return f"\0{_PREFIX}{name}"
