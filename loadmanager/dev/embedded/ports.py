"""Loopback ports for servers that are stopped and started again on the same port.

Such a server must not sit in the range the kernel takes outgoing connections from: while it is down, any client of
any process may be given its port as a source port, and a client that keeps reconnecting to it can even end up
connected to itself. Then the restart fails, rarely and for no visible reason. So ports come from below that range.
"""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

_LOWEST_PORT = 10_240
_USUAL_FIRST_EPHEMERAL_PORT = 32_768
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200


def is_free(port: int) -> bool:
    """Tell if a server could listen on `port` of the loopback interface; connections in TIME_WAIT do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """`count` different ports nobody listens on at the moment; another process may still be quicker to take one."""
    found: list[int] = []
    span = _first_ephemeral_port() - _LOWEST_PORT
    for _ in range(_TRIES if span > 0 else 0):
        if len(found) == count:
            break
        port = _LOWEST_PORT + secrets.randbelow(span)
        if port not in found and is_free(port):
            found.append(port)
    return found + _ports_from_kernel(count - len(found))


def _first_ephemeral_port() -> int:
    try:
        first = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        return _USUAL_FIRST_EPHEMERAL_PORT
    return min(first, _USUAL_FIRST_EPHEMERAL_PORT)


def _ports_from_kernel(count: int) -> list[int]:
    """The fall-back where the kernel's own range covers everything; all are held at once, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
