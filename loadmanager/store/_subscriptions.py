"""Subscriptions to changes below a path, and to the session's state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

from loadmanager.store.metadata_store import SessionState, Unsubscribe


class Subscriptions:
    """The callbacks of one store.

    Each call is scheduled on the event loop separately (`call_soon`), in the order of the changes. So a callback may
    call the store, and its exception does not affect the others. After unsubscribing a callback is not called.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count()
        self._watches: dict[str, dict[int, Callable[[str], None]]] = {}
        self._unarmed: set[int] = set()
        self._sessions: dict[int, Callable[[SessionState], None]] = {}

    @property
    def paths(self) -> list[str]:
        return list(self._watches)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver all callbacks on `loop`."""
        self._loop = loop

    def watch(self, path: str, on_change: Callable[[str], None]) -> Unsubscribe:
        number = next(self._numbers)
        self._watches.setdefault(path, {})[number] = on_change
        self._unarmed.add(number)

        def unsubscribe() -> None:
            callbacks = self._watches.get(path, {})
            callbacks.pop(number, None)
            self._unarmed.discard(number)
            if not callbacks:
                self._watches.pop(path, None)

        return unsubscribe

    def on_session(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        number = next(self._numbers)
        self._sessions[number] = callback

        def unsubscribe() -> None:
            self._sessions.pop(number, None)

        return unsubscribe

    def state_changed(self, state: SessionState) -> None:
        for number in list(self._sessions):
            self._get_loop().call_soon(self._tell_state, number, state)

    def disarmed(self) -> None:
        """Note that no watch is armed any more."""
        for callbacks in self._watches.values():
            self._unarmed.update(callbacks)

    def armed(self, path: str) -> None:
        """Note that the watch of `path` is armed, and notify subscribers that may have missed changes."""
        for number in self._watches.get(path, ()):
            if number in self._unarmed:
                self._unarmed.remove(number)
                self._get_loop().call_soon(self._tell_change, path, number, path)

    def changed(self, path: str) -> None:
        """Notify the subscribers of `path` and of its parents."""
        for watched in _with_ancestors(path):
            for number in self._watches.get(watched, ()):
                self._get_loop().call_soon(self._tell_change, watched, number, path)

    def _tell_state(self, number: int, state: SessionState) -> None:
        callback = self._sessions.get(number)
        if callback is not None:
            callback(state)

    def _tell_change(self, watched: str, number: int, path: str) -> None:
        callback = self._watches.get(watched, {}).get(number)
        if callback is not None:
            callback(path)

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("nothing can have happened before the store was started")
        return self._loop


def _with_ancestors(path: str) -> Iterator[str]:
    while path.strip("/"):
        yield path
        path = path.rpartition("/")[0]
    yield "/"
