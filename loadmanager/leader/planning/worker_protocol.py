"""Worker protocol: messages over a socket between a leader and its planner worker, one at a time each way.

A message is pickled, except for columns: they follow as raw memory, so that sending them costs next to nothing and lets
other threads run. Objects that the other side `holds` already, such as the names of all bundles, are sent by name, and
arrive as the very object that is held.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.domain.policies import IsolationPolicy, Patterns, Policies
from loadmanager.core.model.snapshot import Brokers, Bundles, Snapshot

Name = str | tuple[str, str]
"""Name of a held object."""

_NUMBER = struct.Struct("<Q")


class LostError(Exception):
    """The other side has exited."""


def _as_given(found: Any) -> tuple[type, tuple[Any, ...]]:  # noqa: ANN401 - one of the dataclasses below
    """Reduce a dataclass to its init arguments: cached results are computed again where needed."""
    of = type(found)
    return of, tuple(getattr(found, field.name) for field in fields(of) if field.init and field.name[0] != "_")


class _Pickler(pickle.Pickler):
    dispatch_table = copyreg.dispatch_table | dict.fromkeys(
        (Snapshot, Brokers, Bundles, Policies, IsolationPolicy, Patterns, Verdict, Assign, Unload), _as_given
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
