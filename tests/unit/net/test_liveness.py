from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.servers import closed_port, listen

from loadmanager.net.liveness import is_refused


async def test_closed_port_is_refused() -> None:
    assert await is_refused(f"http://127.0.0.1:{closed_port()}/")


async def test_name_is_refused_when_all_its_addresses_are() -> None:
    assert await is_refused(f"http://localhost:{closed_port()}")


async def test_listening_port_without_answers_is_not_refused() -> None:
    with listen() as listener:
        assert not await is_refused(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert not await is_refused(f"http://localhost:{listener.getsockname()[1]}")


async def test_unresolvable_name_is_not_refused() -> None:
    assert not await is_refused("http://nowhere.invalid:80")


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://host:port"])
async def test_invalid_url_is_not_refused(url: str) -> None:
    assert not await is_refused(url)


async def test_localhost_is_refused_on_a_host_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    port = closed_port()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolving_to("127.0.0.1", "::1", port=port))
    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    assert await is_refused(f"http://localhost:{port}")


@pytest.mark.parametrize("code", sorted(set(errno.errorcode) - {errno.ECONNREFUSED}))
async def test_only_econnrefused_means_refused(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: socket.socket, address: tuple[str, int]) -> None:
        raise OSError(code, os.strerror(code), address)

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", fail)
    assert not await is_refused(f"http://127.0.0.1:{closed_port()}")


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a network namespace, which root alone can make")
@pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip, of iproute2")
def test_host_without_free_ports_finds_nobody_refused() -> None:
    script = ["ip link set lo up", f"{sys.executable} {Path(__file__).parents[2] / 'support' / 'no_free_ports.py'}"]
    subprocess.run(["unshare", "--net", "sh", "-ec", "\n".join(script)], check=True, timeout=60)


def resolving_to(*hosts: str, port: int) -> object:
    async def resolve(*_: object, **__: object) -> list[object]:
        return [each for host in hosts for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return resolve


class WithoutIpv6(socket.socket):
    def connect(self, address: Any) -> None:  # noqa: ANN401 - as of the class
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        super().connect(address)
