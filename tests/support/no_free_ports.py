"""Uses up the local ports of a network namespace: run as a program inside one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from pathlib import Path

from loadmanager.net.liveness import is_refused


def main() -> None:
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40001", encoding="ascii")
    with socket.create_server(("127.0.0.1", 5000)), contextlib.ExitStack() as held:
        code = 0
        while not code:
            connection = held.enter_context(socket.socket())
            code = connection.connect_ex(("127.0.0.1", 5000))
        assert code == errno.EADDRNOTAVAIL
        assert not asyncio.run(is_refused("http://127.0.0.1:5000"))


if __name__ == "__main__":
    main()
