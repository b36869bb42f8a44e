"""A bounded dictionary whose hits cost what a dictionary's do: two generations, of which the older one is dropped."""

from __future__ import annotations

from typing import Generic, TypeVar

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """The values that were put or found last: at least half of `most`, and never more than `most`.

    Whoever reads `recent` directly, in whatever thread, has the fast way, and comes here with what is not in it.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self.recent: dict[str, Value] = {}
        self._older: dict[str, Value] = {}

    def __len__(self) -> int:
        return len(self.recent) + len(self._older)

    def find(self, key: str) -> Value | None:
        value = self.recent.get(key)
        return value if value is not None else self._older.get(key)

    def put(self, key: str, value: Value) -> None:
        recent = self.recent
        if len(recent) >= self._half:
            self._older, self.recent = recent, {}
            recent = self.recent
        recent[key] = value
