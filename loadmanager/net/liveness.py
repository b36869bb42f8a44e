"""Evidence that a process has exited, and is not merely slow: its address refuses; the kernel reports its end.

That a life of a process is over can be told for certain only where it was lived, by what the kernel keeps there and
nobody can copy: it holds an abstract socket of its own name, which goes with the process. The place is a network
namespace of one boot of one machine. Of a life elsewhere nothing is known: an address that refuses may be wrong.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import uuid
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PROBE_TIMEOUT_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_SOCKETS = Path("/proc/self/net/unix")


async def is_refused(url: str) -> bool:
    """Return whether connections to the URL are refused: ECONNREFUSED at each of its addresses, and no other error.

    A process that is gone refuses, one that is slow or paused does not; neither does a URL that cannot be used.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return False
    if parts.hostname is None:
        return False
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            resolved = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
            addresses = [(family, address) for family, _, _, _, address in resolved if _has_source(family, address)]
            for family, address in addresses:
                if not await _refuses(family, address):
                    return False
    except (OSError, TimeoutError, UnicodeError):  # UnicodeError: not a name that can be looked up
        return False
    return bool(addresses)


async def _refuses(family: int, address: tuple[Any, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(probe, address)
        except ConnectionRefusedError:
            return True
    return False


def _has_source(family: int, address: tuple[Any, ...]) -> bool:
    """Return whether this host has an address of its own to connect from: without IPv6, `::1` is nobody's.

    TCP reports a lack of free ports by the same EADDRNOTAVAIL, so UDP is asked, which sends nothing here.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError as error:
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True


def this_place() -> str:
    """Return where this process lives; empty where the system does not say, which is like no other place."""
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()}.{_NETWORK.stat().st_ino}"
    except OSError:
        return ""


class Life:
    """Identity of one run of a process of this `kind`; `name` is unique across hosts."""

    def __init__(self, place: str | None = None, kind: str = "agent") -> None:
        self._place = this_place() if place is None else place
        self._kind = kind
        self.name = f"{self._place}/{uuid.uuid4().hex}"
        sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sign.bind(_address(kind, self.name))
        self._close = weakref.finalize(self, os.close, sign.detach())

    def close(self) -> None:
        """End the identity, as the exit of the process would."""
        self._close()

    def is_over(self, name: str) -> bool:
        """Return True if the process run of that name has ended for certain; False wherever that is unknown."""
        place, _, _ = name.partition("/")
        return bool(place) and place == self._place and _is_unheld(self._kind, name)

    def count_agents_here(self) -> int:
        """Count the agents in this network namespace, this one included, by their sockets."""
        try:
            sockets = _SOCKETS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 1
        return max(1, sockets.count(f"@{_prefix(self._kind)}{self._place}/"))


def _is_unheld(kind: str, name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_address(kind, name))
        except ConnectionRefusedError:
            return True
        except OSError:  # a name that is none, or a limit of this process
            return False
    return False


def _address(kind: str, name: str) -> str:
    """Address in Linux's abstract socket namespace, which has no files; at most 107 bytes."""
    return f"\0{_prefix(kind)}{name}"


def _prefix(kind: str) -> str:
    return f"loadmanager-{kind}/"
