"""Reading the trees of a metadata store: in order, many requests at a time, and whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from loadmanager.decide.collecting import walk
from loadmanager.errors import StoreUnavailableError
from loadmanager.store.base import Znode


class Tree:
    """`tenants` x `namespaces` names; a request is answered after others had their turn, and the later ones first."""

    def __init__(self, tenants: int, namespaces: int, failing: Sequence[str] = ()) -> None:
        self._tenants = [f"t{number:03}" for number in range(tenants)]
        self._namespaces = [f"n{number}" for number in range(namespaces)]
        self._failing = failing
        self.asked: list[str] = []
        self.under_way = self.most_under_way = 0

    async def children(self, path: str) -> list[str]:
        self.asked.append(path)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        for _ in range(200 - len(self.asked)):
            await asyncio.sleep(0)
        self.under_way -= 1
        if path in self._failing:
            raise StoreUnavailableError(path)
        return self._tenants if path == "/r" else self._namespaces

    async def get(self, path: str) -> Znode | None:
        raise NotImplementedError(path)

    async def get_many(self, paths: Sequence[str]) -> list[Znode | None]:
        raise NotImplementedError(paths)


async def test_a_tree_is_read_in_its_order_by_so_many_requests_at_a_time() -> None:
    tree = Tree(tenants=150, namespaces=2)
    assert await walk(tree, "/r", 2) == [f"t{tenant:03}/n{number}" for tenant in range(150) for number in range(2)]
    assert tree.asked == ["/r", *(f"/r/t{tenant:03}" for tenant in range(150))]
    assert tree.most_under_way == 64


async def test_of_several_requests_that_fail_the_first_says_why_when_none_is_under_way_any_more() -> None:
    tree = Tree(tenants=150, namespaces=2, failing=["/r/t007", "/r/t050", "/r/t100"])
    with pytest.raises(StoreUnavailableError, match="/r/t007"):
        await walk(tree, "/r", 2)
    assert tree.under_way == 0
    assert len(tree.asked) == 65, "and nothing is asked after it"


async def test_a_reading_that_is_cancelled_leaves_no_request_under_way() -> None:
    tree = Tree(tenants=150, namespaces=2)
    reading = asyncio.create_task(walk(tree, "/r", 2))
    for _ in range(250):
        await asyncio.sleep(0)
    assert tree.under_way == 64
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(asyncio.all_tasks()) == 1
