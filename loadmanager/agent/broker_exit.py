"""Detection of the broker's process exit. A process that has exited for certain needs its leases no more.

    what has to be known                        how it is
    --------------------                        ---------
    that this process has ended                 a pidfd, opened while it lived, says so: of no other with its pid
    that it asked for the lease                 the kernel says who is at the other end of the connection (`peers`)
    that nobody else serves under the lease     it says so itself: `soleProcess` in its statistics

What is not known for certain, such as that of a broker in another pid namespace, is not taken for known: then a lease
is over when it has lapsed.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable

import structlog

from loadmanager.agent.presence import BrokerProcess
from loadmanager.net.peer_process import has_socket, inode_at_other_end, pid_that_connected

log = structlog.get_logger(__name__)

_MOST_CONNECTIONS = 64
"""So many connections of the process are remembered as its own."""


class BrokerExit:
    """Follows one process at a time to its end; `on_death()` is told of it in the event loop."""

    def __init__(self, on_death: Callable[[BrokerProcess], None]) -> None:
        self._on_death = on_death
        self._process: BrokerProcess | None = None
        self._pidfd = -1
        self._own: set[int] = set()

    def follow(self, process: BrokerProcess | None) -> None:
        """Follow this process instead of the one before; None: no change."""
        if process is None or process == self._process:
            return
        if self._has_ended():
            self._ended()
        self.close()
        try:
            self._pidfd = os.pidfd_open(process[0])
            asyncio.get_running_loop().add_reader(self._pidfd, self._ended)
        except (OSError, AttributeError, NotImplementedError) as error:
            log.info("broker_death_not_seen", pid=process[0], why=str(error))
            self.close()
        else:
            self._process = process

    async def holder(self, transport: asyncio.BaseTransport | None) -> BrokerProcess | None:
        """The process that is followed, if it is who asks over this connection, and lives."""
        process = self._process
        if process is None or transport is None or not await self._is_asked_by(process[0], transport):
            return None
        return process if self._process == process and not self._has_ended() else None

    def close(self) -> None:
        """Follow nobody."""
        self._process = None
        self._own.clear()
        pidfd, self._pidfd = self._pidfd, -1
        if pidfd >= 0:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    async def _is_asked_by(self, pid: int, transport: asyncio.BaseTransport) -> bool:
        connection = transport.get_extra_info("socket")
        if connection is None:
            return False
        if connection.family == socket.AF_UNIX:
            return pid_that_connected(connection) == pid
        inode = inode_at_other_end(transport.get_extra_info("sockname"), transport.get_extra_info("peername"))
        if inode is None:
            return False
        if inode in self._own:
            return True
        # All descriptors of the broker are looked at, which may be tens of thousands: not in the event loop.
        if not await asyncio.to_thread(has_socket, pid, inode):
            return False
        if len(self._own) >= _MOST_CONNECTIONS:
            self._own.clear()
        self._own.add(inode)
        return True

    def _has_ended(self) -> bool:
        if self._process is None:
            return False
        seen = select.poll()
        seen.register(self._pidfd, select.POLLIN)
        return bool(seen.poll(0))

    def _ended(self) -> None:
        process = self._process
        assert process is not None, "it is followed"
        self.close()
        self._on_death(process)
