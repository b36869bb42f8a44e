"""Much of something, a part at a time: so that others have their turn between the parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")


def in_parts(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """The items, so many of them at a time."""
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
