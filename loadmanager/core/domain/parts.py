"""Batching of large iterables, so that other work runs in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")


def in_parts(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield the items in batches of this size."""
    remaining = iter(items)
    while part := list(islice(remaining, size)):
        yield part
