from __future__ import annotations

import socket

from loadmanager.dev.embedded.server_files import LOOPBACK, free_ports, is_free


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_port_somebody_listens_on_at_every_address_is_not_free() -> None:
    with socket.create_server(("", 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_free_ports_differ_from_each_other_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)


def test_a_free_port_is_none_an_outgoing_connection_could_get() -> None:
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as outgoing:
        first_by_kernel = min(server.getsockname()[1], outgoing.getsockname()[1])
    assert max(free_ports(20)) < first_by_kernel
