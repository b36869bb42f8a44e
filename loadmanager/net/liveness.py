"""Evidence that a process has exited, and is not merely slow: its address refuses, or the kernel confirms the exit.

Only the machine on which a process ran can prove that it has exited. Each process holds an abstract Unix socket with
its own name; the kernel removes it when the process exits, and nobody else can create it. The scope of such a name is
one network namespace during one boot of a machine. Nothing is concluded about processes elsewhere, and a refusing
address may be the wrong one.

The kernel also names the process at the other end of a local connection. A Unix socket stores the peer's pid. For TCP
the kernel finds the peer's socket by its addresses; a process owns it if one of its descriptors refers to it. Peers in
another pid or network namespace, and processes of another user, stay unknown; nothing is guessed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
import uuid
import weakref
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

_PROBE_TIMEOUT_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")
_SOCKETS = Path("/proc/self/net/unix")


async def is_refused(url: str) -> bool:
    """Return whether connections to the URL are refused: ECONNREFUSED at each of its addresses, and no other error.

    A process that has exited refuses; a slow or paused one does not. False for an invalid URL.
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
    except (OSError, TimeoutError, UnicodeError):  # UnicodeError: not a valid host name
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
    """Return whether this host has a source address of this family. Without IPv6, a refusal by `::1` proves nothing.

    TCP also reports EADDRNOTAVAIL if no port is free, so this connects a UDP socket, which sends nothing.
    """
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError as error:
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
    return True


def this_place() -> str:
    """Return this boot and network namespace; empty if unknown, which equals no other place."""
    try:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()}.{_NETWORK.stat().st_ino}"
    except OSError:
        return ""


class Life:
    """Identity of one process run of this `kind`; `name` is unique across hosts."""

    def __init__(self, place: str | None = None, kind: str = "agent") -> None:
        self._place = this_place() if place is None else place
        self._kind = kind
        self.name = f"{self._place}/{uuid.uuid4().hex}"
        sign = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sign.bind(_address(kind, self.name))
        self._close = weakref.finalize(self, os.close, sign.detach())

    def close(self) -> None:
        """End the identity, as a process exit would."""
        self._close()

    def is_over(self, name: str) -> bool:
        """Return True if the process run of that name has certainly exited; False if that is unknown."""
        place, _, _ = name.partition("/")
        return bool(place) and place == self._place and _is_unheld(self._kind, name)

    def count_agents_here(self) -> int:
        """Count the agents in this network namespace, this one included, by their sockets."""
        try:
            sockets = _SOCKETS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return 1
        return max(1, sockets.count(f"@loadmanager-{self._kind}/{self._place}/"))


def _is_unheld(kind: str, name: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_address(kind, name))
        except ConnectionRefusedError:
            return True
        except OSError:  # an invalid name, or a limit of this process
            return False
    return False


def _address(kind: str, name: str) -> str:
    """Return the address in Linux's abstract socket namespace; at most 107 bytes."""
    return f"\0loadmanager-{kind}/{name}"


_CREDENTIALS = struct.Struct("iII")
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_REST_OF_ID = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
"""Any interface, any cookie."""

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_INODE_AT = _HEADER.size + 68
_ANSWER_BYTES = 8192

Address = tuple[Any, ...]
"""Host and port first, as in `getsockname`."""


def pid_that_connected(connection: socket.socket) -> int:
    """Return the pid of the peer of a Unix socket; 0 if the peer is outside this pid namespace."""
    found: int = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return found


def inode_at_other_end(own: Address, other: Address) -> int | None:
    """Return the inode of the peer's socket of a TCP connection between these addresses; None if it is not in this
    network namespace.
    """
    ours, theirs = _plain(own[0]), _plain(other[0])
    family = socket.AF_INET if ours.version == 4 else socket.AF_INET6  # noqa: PLR2004 - IPv4
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
    request += _PORTS.pack(other[1], own[1]) + theirs.packed.ljust(16, b"\0") + ours.packed.ljust(16, b"\0")
    request += _REST_OF_ID
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG) as asked:
            asked.send(header + request)
            answer = asked.recv(_ANSWER_BYTES)
    except OSError:
        return None
    if len(answer) < _INODE_AT + 4 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    inode: int = struct.unpack_from("=I", answer, _INODE_AT)[0]
    return inode or None


def has_socket(pid: int, inode: int) -> bool:
    """Return True if the process has this socket open and may be inspected."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            return any(_is_socket(each, inode) for each in descriptors)
    except OSError:
        return False


def listens_at(pid: int, port: int | None) -> bool | None:
    """Return whether the process listens on the TCP port; None if it may not be inspected."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.AccessDenied:
        return None
    except psutil.Error:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)


def _is_socket(descriptor: os.DirEntry[str], inode: int) -> bool:
    try:
        found = descriptor.stat()
    except OSError:  # closed in the meantime
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_ino == inode


def _plain(host: str) -> IPv4Address | IPv6Address:
    """Return an IPv4-mapped IPv6 address as IPv4."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
