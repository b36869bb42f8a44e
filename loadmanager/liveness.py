"""Whether the process at an address is gone, or merely slow."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any
from urllib.parse import urlsplit

_PROBE_TIMEOUT_S = 1.0


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
