"""A ZooKeeper of several servers on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from loadmanager.dev.embedded.embedded_zookeeper import DEFAULT_TICK_TIME_MS, EmbeddedZooKeeper, PortTakenError
from loadmanager.dev.embedded.server_files import DATA_FOLDER, LOOPBACK, Security, free_ports
from loadmanager.errors import EmbeddedServerError

_TRIES_TO_FIND_PORTS = 3
_ENSEMBLE_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_CONNECT_TO_LEADER_MS = 10_000
_FOLLOW_LEADER_MS = 3_000


class EmbeddedEnsemble:
    """A ZooKeeper of several servers, each to be stopped, killed, paused and restarted on its own.

    `ports` are those the members serve clients on; `data_dir` gets a folder for each member.
    """

    def __init__(
        self,
        members: int = 3,
        *,
        ports: Sequence[int] | None = None,
        data_dir: Path | None = None,
        tick_time_ms: int = DEFAULT_TICK_TIME_MS,
    ) -> None:
        if members < 1 or (ports is not None and len(ports) != members):
            raise EmbeddedServerError(f"an ensemble of {members} members cannot have the ports {ports}")
        self.members: list[EmbeddedZooKeeper] = []
        self._size = members
        self._given_ports = ports
        self._given_data_dir = data_dir
        self._tick_time_ms = tick_time_ms
        self._temporary: TemporaryDirectory[str] | None = None

    @property
    def connect_string(self) -> str:
        """All members, also those that are down at the moment."""
        return ",".join(member.connect_string for member in self.members)

    def start(self) -> None:
        """Start all members and return when a session works on each of them."""
        if self.is_running:
            raise EmbeddedServerError("this ensemble runs already; start its members one by one")
        for tries_left in reversed(range(_TRIES_TO_FIND_PORTS)):
            try:
                self._start_all()
            except PortTakenError:
                self.stop()
                if self._given_ports is not None or not tries_left:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def stop(self) -> None:
        """End all members and, if their folder is a temporary one, remove that. Idempotent."""
        for member in self.members:
            if self._temporary is not None and member.is_running:
                member.kill()  # its data are not needed
            member.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def is_running(self) -> bool:
        """Tell if any member's process exists."""
        return any(member.is_running for member in self.members)

    def find_leader(self) -> EmbeddedZooKeeper | None:
        """The member that leads the ensemble; None while there is no quorum."""
        for member in self.members:
            try:
                if member.counters().get("zk_server_state") == "leader":
                    return member
            except EmbeddedServerError:
                continue
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_all(self) -> None:
        client_ports, keys = self._choose_ports()
        if self._given_data_dir is None:
            self._temporary = TemporaryDirectory(prefix="loadmanager-ensemble-")
            keys["forceSync"] = "no"
        folder = self._given_data_dir or Path(self._temporary.name if self._temporary else "")
        self.members = [
            EmbeddedZooKeeper(
                port=port,
                data_dir=folder / str(number),
                tick_time_ms=self._tick_time_ms,
                security=Security(keys=keys, files={f"{DATA_FOLDER}/myid": f"{number}\n".encode()}),
                main_class=_ENSEMBLE_MAIN,
            )
            for number, port in enumerate(client_ports, start=1)
        ]
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_serving()

    def _choose_ports(self) -> tuple[Sequence[int], dict[str, object]]:
        """The client ports, and the lines about the quorum that every member's `zoo.cfg` shares."""
        ports = free_ports(3 * self._size)
        client_ports = self._given_ports or ports[: self._size]
        pairs = zip(ports[self._size : 2 * self._size], ports[2 * self._size :], strict=True)
        quorum: dict[str, object] = {
            "initLimit": max(2, _CONNECT_TO_LEADER_MS // self._tick_time_ms),
            "syncLimit": max(2, _FOLLOW_LEADER_MS // self._tick_time_ms),
            "standaloneEnabled": "false",
        }
        for number, (peer, election) in enumerate(pairs, start=1):
            quorum[f"server.{number}"] = f"{LOOPBACK}:{peer}:{election}"
        return client_ports, quorum
