"""Worker process for rounds of shedding, and its protocol.

Command: `python -m loadmanager.leader.planning.planner_worker SOCKET`. Both sides use `WorkerChannel`.

The worker has an interpreter of its own, so lookups do not wait for it, and a niceness that gives them priority. It
gets all its data over the socket, and exits when the socket closes. For each round:

    received                                                 sent
    -------------------------------------------------------  --------------------------------------------------------
    lasting objects that it does not hold yet, by name
    the snapshot, the memory of strategies, a generator
    the busiest bundles of that broker                       ASKED: a broker whose busiest bundles it needs
                                                             FOUND: the proposal or its error, and the state of the
                                                             generator
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, cast

from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.domain.policies import IsolationPolicy, Patterns, Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import Listed, TopBundles
from loadmanager.core.model.snapshot import Brokers, Bundles, Snapshot
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.decision_kinds import InColumns
from loadmanager.core.planning.planner import State
from loadmanager.util.malloc import map_large_blocks

Name = str | tuple[str, str]
"""Name of a held object."""

_NUMBER = struct.Struct("<Q")


class LostError(Exception):
    """The other side has exited."""


def _reduce_to_init_arguments(found: Any) -> tuple[type, tuple[Any, ...]]:  # noqa: ANN401 - one of the dataclasses below
    """Reduce a dataclass to its init arguments; cached results are computed again where needed."""
    of = type(found)
    return of, tuple(getattr(found, field.name) for field in fields(of) if field.init and field.name[0] != "_")


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | dict.fromkeys(
        (Snapshot, Brokers, Bundles, Policies, IsolationPolicy, Patterns, Verdict, Assign, Unload),
        _reduce_to_init_arguments,
    )

    def __init__(
        self, text: io.BytesIO, held: Mapping[int, Name], columns: Callable[[pickle.PickleBuffer], object]
    ) -> None:
        super().__init__(text, pickle.HIGHEST_PROTOCOL, buffer_callback=columns)
        self._held = held

    def persistent_id(self, found: object) -> Name | None:
        return self._held.get(id(found))


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: memoryview, columns: list[memoryview], held: Mapping[Name, object]) -> None:
        super().__init__(io.BytesIO(text), buffers=columns)
        self._held = held

    def persistent_load(self, name: Name) -> object:
        return self._held[name]


class WorkerChannel:
    """One end of the socket. Other threads run while it sends or waits, except during pickling. Every call raises
    `LostError`, also after `longest_s` of silence.

    A message is pickled, except for columns: they follow as raw memory, which is cheap to send and lets other threads
    run. Objects that the other side `holds` already, such as the names of all bundles, are sent as a reference by name,
    which the receiver resolves.
    """

    def __init__(self, end: socket.socket, longest_s: float | None = None) -> None:
        end.settimeout(longest_s)
        self._end = end

    def close(self) -> None:
        self._end.close()

    def send(self, message: object, holds: Mapping[Name, object]) -> None:
        """Send a message; `holds` are the objects that the other side has, by name."""
        text, columns = io.BytesIO(), list[pickle.PickleBuffer]()
        _Pickler(text, {id(held): name for name, held in holds.items()}, columns.append).dump(message)
        parts = [text.getbuffer(), *(column.raw() for column in columns)]
        sizes = b"".join(_NUMBER.pack(number) for number in (len(parts), *map(len, parts)))
        try:
            self._end.sendall(sizes)
            for part in parts:
                self._end.sendall(part)
        except OSError as error:
            raise LostError(str(error)) from None

    def receive(self, held: Mapping[Name, object]) -> Any:  # noqa: ANN401 - any message
        """Receive the next message; `held` are the objects that it may name."""
        (parts,) = _NUMBER.unpack(self._read(_NUMBER.size))
        sizes = [size for (size,) in _NUMBER.iter_unpack(self._read(_NUMBER.size * parts))]
        text, *columns = [self._read(size) for size in sizes]
        return _Unpickler(text, columns, held).load()

    def _read(self, size: int) -> memoryview:
        """Read `size` bytes into a read-only buffer, so that columns made of it are read-only."""
        read = bytearray(size)
        left = memoryview(read)
        while left:
            try:
                count = self._end.recv_into(left)
            except OSError as error:
                raise LostError(str(error)) from None
            if not count:
                raise LostError("the process has exited")
            left = left[count:]
        return memoryview(read).toreadonly()


ASKED, FOUND = "asked", "found"
SNAPSHOT, SETTINGS = "snapshot", "settings"

_NICE = 10
"""Niceness: under contention the worker gets a tenth of the CPU time of a serving process."""


def name_round_objects(snapshot: Snapshot, state: State) -> dict[Name, object]:
    """Return the objects that both sides hold once a round has begun, besides the lasting ones."""
    columns: dict[Name, object] = {
        (strategy, key): part
        for strategy, remembered in state.items()
        if isinstance(remembered, Mapping)  # strategies may store anything
        for key, part in remembered.items()
        if isinstance(part, InColumns)
    }
    return {SNAPSHOT: snapshot, **columns}


def compute_round(channel: WorkerChannel, held: Mapping[Name, object]) -> None:
    """Receive and compute one round, from its snapshot on."""
    snapshot, lists_bundles, state, rng = channel.receive(held)

    def ask(broker: int) -> Listed:
        channel.send((ASKED, broker, None), {})
        listed: Listed = channel.receive({})
        return listed

    if lists_bundles:
        snapshot = replace(snapshot, top_bundles=TopBundles(ask))
    found: shedding.Proposal | Exception
    try:
        found = shedding.propose(snapshot, cast("PlannerSettings", held[SETTINGS]), state, rng)
    except LostError:
        raise
    except Exception as error:  # noqa: BLE001 - sent to the leader, whose round fails
        error.add_note(f"In the planner worker:\n{traceback.format_exc()}")
        found = error
    channel.send((FOUND, found, rng.bit_generator.state), {**held, **name_round_objects(snapshot, state)})


def main() -> None:
    os.nice(_NICE)
    map_large_blocks()
    channel = WorkerChannel(socket.socket(fileno=int(sys.argv[1])))
    held: dict[Name, object] = {}
    try:
        while True:
            held |= channel.receive(held)
            compute_round(channel, held)
    except LostError:  # the leader has exited
        return


if __name__ == "__main__":
    main()
