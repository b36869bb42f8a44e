"""Whether the process at an address is gone, or merely slow."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any
from urllib.parse import urlsplit

_PROBE_TIMEOUT_S = 1.0


async def is_refused(url: str) -> bool:
    """Whether nothing listens at the URL: a process that is gone refuses, one that is slow or paused does not.

    A name with several addresses is only refused when all of them are; what is no URL is not refused.
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
            addresses = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
            for family, _, _, _, address in addresses:
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
        except OSError as error:
            # An address of a family that this host does not speak at all is nobody's.
            return error.errno == errno.EADDRNOTAVAIL
    return False
