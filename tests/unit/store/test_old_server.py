"""Servers that do not know the requests the store is built on."""

from __future__ import annotations

import asyncio
import struct
import threading

import pytest
from support.waiting import eventually

from loadmanager.errors import StoreError
from loadmanager.store.zookeeper_store import ZooKeeperStore

UNIMPLEMENTED = -6


async def _read_packet(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    return await reader.readexactly(length)


async def _serve_like_3_5(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Grant a session, answer the first request with "unimplemented" and hang up, as ZooKeeper 3.5 does."""
    await _read_packet(reader)
    session = struct.pack("!iiqi16sB", 0, 3000, 7, 16, bytes(16), 0)
    writer.write(struct.pack("!i", len(session)) + session)
    (xid,) = struct.unpack("!i", (await _read_packet(reader))[:4])
    refusal = struct.pack("!iqi", xid, 0, UNIMPLEMENTED)
    writer.write(struct.pack("!i", len(refusal)) + refusal)
    await writer.drain()
    writer.close()


async def test_server_older_than_3_6_is_refused_with_a_clear_error() -> None:
    threads = set(threading.enumerate())
    server = await asyncio.start_server(_serve_like_3_5, "127.0.0.1", 0)
    hosts = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    store = ZooKeeperStore(hosts, session_timeout_s=3, chroot="/app")
    store.watch("/", lambda _: None)
    with pytest.raises(StoreError, match=rf"{hosts} is too old: 3\.6 or newer"):
        await store.start()
    await store.close()
    server.close()
    await server.wait_closed()
    await eventually(lambda: not set(threading.enumerate()) - threads)
