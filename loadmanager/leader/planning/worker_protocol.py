"""What passes between two interpreters that work on one round: messages over a socket, one at a time each way.

A message is pickled. Columns are not: they follow as they are in memory, so that sending them costs the sender next to
nothing and lets its other threads go on. What the other side `holds` already, such as the names of all bundles, is
named instead of being sent again, and comes out as the very object that is held.
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
"""Of something that is held."""

_NUMBER = struct.Struct("<Q")


class LostError(Exception):
    """The other side has ended."""


def _as_given(found: Any) -> tuple[type, tuple[Any, ...]]:  # noqa: ANN401 - one of the dataclasses below
    """By what it is made of: what was worked out since is worked out again where it is needed."""
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
    """One end. While it sends or waits other threads go on, but for the pickling. All of it raises `LostError`, also
    when the other side does nothing for `longest_s`.
    """

    def __init__(self, end: socket.socket, longest_s: float | None = None) -> None:
        end.settimeout(longest_s)
        self._end = end

    def close(self) -> None:
        self._end.close()

    def send(self, message: object, holds: Mapping[Name, object]) -> None:
        """`holds` is what the other side has, by the names by which it has it."""
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

    def receive(self, held: Mapping[Name, object]) -> Any:  # noqa: ANN401 - whatever the other side sends
        """The next message; `held` is what it may name."""
        (parts,) = _NUMBER.unpack(self._read(_NUMBER.size))
        sizes = [size for (size,) in _NUMBER.iter_unpack(self._read(_NUMBER.size * parts))]
        text, *columns = [self._read(size) for size in sizes]
        return _Unpickler(text, columns, held).load()

    def _read(self, size: int) -> memoryview:
        """Nobody writes into what was read: columns that are made of it are read-only, as they were."""
        read = bytearray(size)
        left = memoryview(read)
        while left:
            try:
                count = self._end.recv_into(left)
            except OSError as error:
                raise LostError(str(error)) from None
            if not count:
                raise LostError("it has ended")
            left = left[count:]
        return memoryview(read).toreadonly()
