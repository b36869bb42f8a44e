from __future__ import annotations

import socket

from loadmanager.dev.embedded.server_files import LOOPBACK, free_ports, is_free


def test_port_in_use_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_port_in_use_on_every_address_is_not_free() -> None:
    with socket.create_server(("", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_free_ports_are_distinct_and_usable() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_free_ports_are_outside_the_ephemeral_range() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as outgoing:
        first_by_kernel = min(server.getsockname()[1], outgoing.getsockname()[1])
    assert max(free_ports(20)) < first_by_kernel
