"""Process at the other end of a local connection, as the kernel reports it.

Over a unix socket it keeps who connected. Over TCP it is asked for the socket at the other end, by its addresses, and a
process has that if one of its descriptors leads there. What it does not tell (of another pid or network namespace, of
another user's process) is not known, and never guessed.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import psutil

_CREDENTIALS = struct.Struct("iII")
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_REST_OF_ID = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
"""Of any interface, whatever its cookie."""

_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_INODE_AT = _HEADER.size + 68
_ANSWER_BYTES = 8192

Address = tuple[Any, ...]
"""Host and port first, as sockets name themselves."""


def pid_that_connected(connection: socket.socket) -> int:
    """Return the peer's process id of a unix socket; 0 for a process outside this pid namespace."""
    found: int = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
    return found


def inode_at_other_end(own: Address, other: Address) -> int | None:
    """Return the inode of the peer's socket of a TCP connection between these addresses, if it is in this network
    namespace.
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
    """Return True if the process has this socket open, as far as it may be inspected."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            return any(_is_socket(each, inode) for each in descriptors)
    except OSError:
        return False


def listens_at(pid: int, port: int | None) -> bool | None:
    """Return whether the process listens at the TCP port; None when it may not be looked at."""
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
    except OSError:  # closed meanwhile
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_ino == inode


def _plain(host: str) -> IPv4Address | IPv6Address:
    """Return an IPv4-mapped IPv6 address as IPv4."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
