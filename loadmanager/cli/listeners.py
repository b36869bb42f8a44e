"""TCP and TLS listeners of the long-running commands."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.config import TlsSettings
from loadmanager.errors import ConfigurationError
from loadmanager.net.http_server import BACKLOG, listen_on
from loadmanager.net.tls_contexts import ServerTls


def listen(key: str, address: str, port: int) -> socket.socket:
    """A listening socket; the process ends, naming the configuration `key` of the port, when it cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fail(f"{key} {port} on {address}: {error.strerror or error}", EXIT_FAILURE)
    return listener


def listen_at(key: str, path: Path) -> socket.socket:
    """A unix socket that its owner and group may connect to; the process ends, naming the `key`, when it cannot be had.

    One that a former life left behind is replaced.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and _is_left_over(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fail(f"{key} {path}: {error.strerror or error}", EXIT_FAILURE)
    return listener


def _is_left_over(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """A port that listens, plain or by TLS."""

    listener: socket.socket
    tls: ServerTls | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port


class Listeners:
    """The ports of a process on one address, by the fields of its settings; others are told to come to the `first`.

    The process ends, naming the key, when one cannot be had.
    """

    def __init__(self, settings: TlsSettings, address: str, plain: str, by_tls: str, tls: ServerTls | None) -> None:
        sides: list[tuple[str, ServerTls | None]] = [(plain, None), (by_tls, tls)]
        if settings.broker_client_tls_enabled:
            sides.reverse()
        self.doors: list[ListenerSpec] = []
        for name, side in sides:
            port = getattr(settings, name)
            if port is not None:
                self.doors.append(ListenerSpec(listen(settings.key(name), address, port), side))

    @property
    def first(self) -> ListenerSpec:
        return self.doors[0]

    @property
    def plain(self) -> ListenerSpec:
        """`StopIteration` where there is none."""
        return next(each for each in self.doors if each.tls is None)

    async def open(self, runner: web.AppRunner) -> None:
        for door in self.doors:
            await listen_on(runner, door.listener, door.tls)

    def close(self) -> None:
        for door in self.doors:
            door.listener.close()


def tls_of(settings: TlsSettings, tls_port: int | None) -> ServerTls | None:
    """Load the server TLS of a port, if there is one. The process ends when it cannot be used."""
    try:
        return None if tls_port is None else ServerTls.of(settings)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
