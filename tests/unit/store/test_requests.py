"""Outcomes of transactions, and sizes of reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadmanager.store._kazoo_requests import first_failure
from loadmanager.store.zookeeper_store import ZooKeeperStore


@pytest.mark.parametrize(
    ("codes", "index"),
    [
        ([], None),
        ([0, 0], None),
        ([0, -103, -2], 1),
        ([-101, -2, -2], 0),
        ([-2, -2, -110], 2),
        ([0, -2], 1),
    ],
)
def test_first_operation_that_failed_by_itself_is_reported(codes: list[int], index: int | None) -> None:
    assert first_failure(codes) == index


@pytest.mark.parametrize(
    ("znode_bytes", "sizes"),
    [(0, [32, 128, 512, 1000, 328]), (20_000, [32, 128, *[200] * 9, 40]), (5_000_000, [32, *[1] * 1968])],
)
async def test_read_sizes_grow_until_a_reply_has_4_mb(
    monkeypatch: pytest.MonkeyPatch, znode_bytes: int, sizes: list[int]
) -> None:
    read: list[int] = []

    async def answer(_: ZooKeeperStore, paths: Sequence[str], __: str) -> list[int | None]:
        read.append(len(paths))
        return [znode_bytes] * len(paths)

    monkeypatch.setattr(ZooKeeperStore, "_read", answer)
    store, paths = ZooKeeperStore("127.0.0.1:1", session_timeout_s=3), [f"/{number}" for number in range(2_000)]
    found = await store._read_many(lambda full_paths, _: full_paths, paths, lambda size: size)  # type: ignore[arg-type,return-value]
    assert len(found) == 2_000
    assert read == sizes
