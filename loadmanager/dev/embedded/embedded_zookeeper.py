"""A real Apache ZooKeeper as a child process that cannot outlive this process.

It listens on loopback only. All methods here block; on an event loop call them with `asyncio.to_thread`.
"""

from __future__ import annotations

import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from loadmanager.dev.embedded.processes import ServerProcesses
from loadmanager.dev.embedded.server_files import (
    LOG_FILE,
    LOOPBACK,
    OPEN,
    STANDALONE_MAIN,
    Security,
    free_ports,
    is_free,
    server_command,
    write_server_files,
)
from loadmanager.errors import EmbeddedServerError
from loadmanager.store.kazoo_client import session_works
from loadmanager.util.jvm import Java, get_java

DEFAULT_HEAP_MIB = 1024
"""Maximum heap. ZooKeeper keeps its last 500 transactions in memory, and a namespace's record has up to 1 MB."""

DEFAULT_TICK_TIME_MS = 200
"""ZooKeeper's shortest session timeout is two ticks, and a session ends up to a tick after its timeout."""

_TEMPORARY_PREFIX = "loadmanager-zookeeper-"
_TRIES_TO_FIND_PORTS = 3
_NAME = "zookeeper"
_POLL_S = 0.02
_SESSION_TRY_S = 5.0
_COMMAND_TIMEOUT_S = 3.0
_LINES_OF_LOG = 15


class PortTakenError(EmbeddedServerError):
    """Another process listens on the port."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Runtime of the server: guarded processes, folder, port and command line."""

    processes: ServerProcesses
    folder: Path
    port: int
    command: tuple[str, ...]


class EmbeddedZooKeeper:
    """A ZooKeeper of one server: start, stop, kill, pause, resume, restart.

    Without `port` it uses a free one. Without `data_dir` it uses a temporary folder, which `stop` removes. Session
    timeouts may be from two ticks to 10 minutes. `java` defaults to `get_java`. `security` may require authentication
    or add TLS ports, but sessions at `port` must work without TLS.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        data_dir: Path | None = None,
        tick_time_ms: int = DEFAULT_TICK_TIME_MS,
        heap_mib: int = DEFAULT_HEAP_MIB,
        start_timeout_s: float = 60.0,
        java: Java | None = None,
        security: Security = OPEN,
        main_class: str = STANDALONE_MAIN,
    ) -> None:
        self._security = security
        self._given_port = port
        self._given_data_dir = data_dir
        self._tick_time_ms = tick_time_ms
        self._heap_mib = heap_mib
        self._start_timeout_s = start_timeout_s
        self._java = java
        self._main_class = main_class
        self._place: _Place | None = None
        self._pid: int | None = None
        self._log_start = 0

    @property
    def port(self) -> int:
        return self._get_place().port

    @property
    def connect_string(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self._get_place().folder

    @property
    def log_file(self) -> Path:
        """Log file of the server: warnings and errors."""
        return self.data_dir / LOG_FILE

    @property
    def pid(self) -> int:
        """Process id of the JVM that was started last."""
        if self._pid is None:
            raise EmbeddedServerError("this ZooKeeper has not been started")
        return self._pid

    @property
    def is_running(self) -> bool:
        """Tell if the process exists; True for a paused one."""
        return self._is_open() and self._pid is not None and self._find_exit_code() is None

    def start(self) -> None:
        """Start the server if it is not running, and return when a session works. After `kill` port and data stay the
        same.
        """
        if self.is_running:
            return
        may_move = self._given_port is None and not self._is_open()
        for tries_left in reversed(range(_TRIES_TO_FIND_PORTS if may_move else 1)):
            try:
                self.launch()
                self.wait_until_serving()
            except PortTakenError:
                self.stop()
                if not tries_left:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def stop(self) -> None:
        """Stop the server and remove a temporary folder. Idempotent."""
        if self._place is not None:
            self._place.processes.close()

    def kill(self) -> None:
        """SIGKILL; returns when the process has exited."""
        self._get_place().processes.stop(_NAME, grace_s=0)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, but the server does not answer."""
        self._get_place().processes.signal(_NAME, signal.SIGSTOP)

    def resume(self) -> None:
        self._get_place().processes.signal(_NAME, signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server gracefully if it runs, and start it again."""
        if self.is_running:
            self._get_place().processes.stop(_NAME)
        self.start()

    def counters(self) -> dict[str, str]:
        """Return the server's answer to the four-letter command `mntr`."""
        text = self._four_letter_command(b"mntr")
        counters = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
        if not counters:
            raise EmbeddedServerError(f"ZooKeeper at {self.connect_string} does not serve: {text.strip()}")
        return counters

    def launch(self) -> None:
        """Start the process without waiting for it to serve."""
        if not self._is_open():
            self._settle()
        place = self._get_place()
        if not is_free(place.port):
            raise PortTakenError(f"port {place.port} on {LOOPBACK} is taken: ZooKeeper cannot listen there")
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._pid = place.processes.start(_NAME, place.command, cwd=place.folder, log=self.log_file)

    def wait_until_serving(self) -> None:
        """Wait until a session works. If the server exits or times out, raise an error with the end of its log."""
        deadline_s = time.monotonic() + self._start_timeout_s
        while not self._serves():
            code = self._find_exit_code()
            if code is not None:
                story = self.last_lines()
                kind = PortTakenError if "Address already in use" in story else EmbeddedServerError
                raise kind(f"ZooKeeper on port {self.port} ended with exit code {code}; its log ends with:\n{story}")
            if time.monotonic() > deadline_s:
                raise EmbeddedServerError(
                    f"ZooKeeper on port {self.port} does not serve after {self._start_timeout_s:g} s;"
                    f" its log ends with:\n{self.last_lines()}"
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _get_place(self) -> _Place:
        if self._place is None:
            raise EmbeddedServerError("this ZooKeeper has not been started")
        return self._place

    def _is_open(self) -> bool:
        return self._place is not None and not self._place.processes.is_closed

    def _find_exit_code(self) -> int | None:
        return self._get_place().processes.find_exit_code(_NAME)

    def _serves(self) -> bool:
        try:
            self.counters()
        except EmbeddedServerError:
            return False
        return session_works(self.connect_string, _SESSION_TRY_S)

    def _four_letter_command(self, command: bytes) -> str:
        try:
            with socket.create_connection((LOOPBACK, self.port), _COMMAND_TIMEOUT_S) as connection:
                connection.sendall(command)
                with connection.makefile(encoding="utf-8") as answer:
                    return answer.read()
        except OSError as error:
            raise EmbeddedServerError(f"ZooKeeper at {self.connect_string} does not answer: {error}") from error

    def last_lines(self) -> str:
        """Return the end of the output since the last start, without the frames of stack traces."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        shown = [line for line in lines if not line.startswith("\tat ")]
        return "\n".join(shown[-_LINES_OF_LOG:])

    def _settle(self) -> None:
        """Set up processes, folder, port and configuration, for the first start and after `stop`."""
        java = self._java or get_java()
        command = tuple(server_command(java, self._main_class, self._heap_mib, self._security.jvm_options))
        port = self._given_port or free_ports(1)[0]
        processes, folder = _open_folder(self._given_data_dir)
        self._place, self._pid = _Place(processes, folder, port, command), None
        durable = self._given_data_dir is not None
        write_server_files(folder, port, tick_time_ms=self._tick_time_ms, durable=durable, security=self._security)


def _open_folder(given: Path | None) -> tuple[ServerProcesses, Path]:
    """Return processes and their folder: the given one, which is created and kept, or a temporary one, which is removed
    with the processes.
    """
    if given is not None:
        try:
            given.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EmbeddedServerError(f"ZooKeeper's data cannot be kept in {given}: {error}") from error
        return ServerProcesses(), given.absolute()
    processes = ServerProcesses(_TEMPORARY_PREFIX)
    if processes.folder is None:
        raise EmbeddedServerError("no temporary folder for ZooKeeper")
    return processes, processes.folder
