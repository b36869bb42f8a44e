"""Reader of Pulsar's znodes and of their writers: ZooKeeper's transaction log names the session of each write."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

_ANSWER_TIMEOUT_S = 10.0
_LOG_HEADER = struct.Struct(">4siq")
_RECORD_HEADER = struct.Struct(">qi")
"""Checksum and length of a transaction; zeros in the preallocated part of the log."""
_TRANSACTION_HEADER = struct.Struct(">qiqqi")
_LENGTH = struct.Struct(">i")
_CREATE_SESSION, _CLOSE_SESSION = -10, -11
_KINDS = {1: "create", 2: "delete", 5: "set", 7: "set ACL", 14: "several", 15: "create", 19: "create", 21: "create"}
_WITH_PATH = _KINDS.keys() - {14}


@dataclass(frozen=True, slots=True)
class Znode:
    """Content of a znode, and the transactions that last changed it and its children."""

    data: bytes
    mzxid: int
    pzxid: int
    cversion: int
    ephemeral_owner: int

    def content(self) -> Any:  # noqa: ANN401 - JSON
        return json.loads(self.data)


@dataclass(frozen=True, slots=True)
class Transaction:
    """One write, or the begin or end of a session."""

    zxid: int
    session: int
    kind: str
    path: str


@contextlib.contextmanager
def connect(zookeeper: str) -> Iterator[Any]:
    """Open a kazoo client, which has no types."""
    client = KazooClient(zookeeper, timeout=20.0)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def read_tree(zookeeper: str, root: str = "/") -> dict[str, Znode]:
    """Read all znodes below `root`, without ZooKeeper's own and those that are deleted meanwhile."""
    found: dict[str, Znode] = {}
    with connect(zookeeper) as client:
        open_paths = [root]
        while open_paths:
            path = open_paths.pop()
            with contextlib.suppress(NoNodeError):
                data, stat = client.get(path)
                found[path] = Znode(data, stat.mzxid, stat.pzxid, stat.cversion, stat.ephemeralOwner)
                names = [name for name in client.get_children(path) if (path, name) != ("/", "zookeeper")]
                open_paths += [f"{path.rstrip('/')}/{name}" for name in names]
    return found


def read_znode(zookeeper: str, path: str) -> Znode | None:
    """Read a znode; None if it does not exist."""
    with connect(zookeeper) as client, contextlib.suppress(NoNodeError):
        data, stat = client.get(path)
        return Znode(data, stat.mzxid, stat.pzxid, stat.cversion, stat.ephemeralOwner)
    return None


def four_letters(zookeeper: str, word: str) -> str:
    """Return ZooKeeper's answer to a four-letter command. Raises `OSError` if it does not serve."""
    host, _, port = zookeeper.partition(":")
    with socket.create_connection((host, int(port)), _ANSWER_TIMEOUT_S) as connection:
        connection.sendall(word.encode())
        with connection.makefile(encoding="utf-8") as answer:
            return answer.read()


def last_zxid(zookeeper: str) -> int:
    """Return the id of the newest transaction."""
    found = re.search(r"^Zxid: (0x[0-9a-f]+)$", four_letters(zookeeper, "srvr"), re.MULTILINE)
    if found is None:
        raise OSError("ZooKeeper does not serve")
    return int(found[1], 16)


def sessions_of(zookeeper: str, pid: int) -> set[int]:
    """Return the current sessions of a process, by comparing ZooKeeper's connections with those of the kernel."""
    sockets = (each.laddr for each in psutil.Process(pid).net_connections("tcp") if each.laddr)
    local = {f"{each.ip.removeprefix('::ffff:')}:{each.port}" for each in sockets}
    connections = re.findall(r"/([\d.]+:\d+)\[\d+\]\(.*?sid=(0x[0-9a-f]+)", four_letters(zookeeper, "cons"))
    return {int(session, 16) for peer, session in connections if peer in local}


def read_transactions(data: Path, after: int = 0) -> list[Transaction]:
    """Return the transactions after `after` in ZooKeeper's log, in order; `data` is its `dataDir`."""
    logs = (data / "version-2").glob("log.*")
    found = {each.zxid: each for log in logs for each in _in_log(log.read_bytes()) if each.zxid > after}
    return [found[zxid] for zxid in sorted(found)]


def _in_log(log: bytes) -> Iterator[Transaction]:
    at = _LOG_HEADER.size
    while at + _RECORD_HEADER.size <= len(log):
        _, length = _RECORD_HEADER.unpack_from(log, at)
        at += _RECORD_HEADER.size
        if length <= 0 or at + length > len(log):
            return
        session, _, zxid, _, kind = _TRANSACTION_HEADER.unpack_from(log, at)
        yield Transaction(zxid, session, _name(kind), _path_in(log, at + _TRANSACTION_HEADER.size, kind))
        at += length + 1  # an end mark follows each


def _name(kind: int) -> str:
    named = {_CREATE_SESSION: "session begins", _CLOSE_SESSION: "session ends", -1: "refused"}
    return named.get(kind) or _KINDS.get(kind) or f"kind {kind}"


def _path_in(log: bytes, at: int, kind: int) -> str:
    if kind not in _WITH_PATH:
        return ""
    (length,) = _LENGTH.unpack_from(log, at)
    start = at + _LENGTH.size
    return log[start : start + length].decode()
