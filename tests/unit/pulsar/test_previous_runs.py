from __future__ import annotations

from pathlib import Path

import pytest
from support.memory_store import MemoryStore
from support.nodes import in_memory
from support.pulsar_harness import pulsar_harness

from loadmanager.errors import HistoryError
from loadmanager.history.gaps import last_epoch
from loadmanager.history.reader import History
from loadmanager.pulsar.preflight import memory_after, put_history_of_another_store_aside
from loadmanager.store import paths
from loadmanager.store.local_store import LocalStore
from loadmanager.store.metadata_store import Put

OBSERVE = {"mode": "observe", "state_store_url": ""}


def record(folder: Path, epoch: int) -> None:
    """A history in which something of this epoch is recorded."""
    hour = folder / "history" / "events" / "date=2026-01-01" / "hour=00"
    hour.mkdir(parents=True)
    (hour / f"{epoch:010}-{0:012}-{1:012}-n.parquet").write_bytes(b"")


def names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def a_store(epoch: int) -> MemoryStore:
    """One in which so many terms have begun."""
    store = await in_memory()()
    assert isinstance(store, MemoryStore)
    await store.ensure_path(paths.EPOCH)
    for version in range(epoch):
        await store.commit([Put(paths.EPOCH, b"", version)])
    return store


async def test_every_run_records_in_a_later_epoch(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    async with pulsar_harness(tmp_path) as harness:
        for epoch in (1, 2, 3):
            store = memory_after(folder)
            await store.start()

            async def connect(store: LocalStore = store) -> LocalStore:
                return store

            harness.connect = connect
            node = await harness.leader(**OBSERVE, folder=folder)
            assert node.mirror.epoch == epoch
            await node.stop()
            assert last_epoch(History(str(folder / "history"))) == epoch


@pytest.mark.parametrize("epoch", [7, 8])
async def test_history_of_this_store_is_continued(tmp_path: Path, epoch: int) -> None:
    record(tmp_path, 7)
    await put_history_of_another_store_aside(tmp_path, await a_store(epoch))
    assert names(tmp_path) == ["history"]


@pytest.mark.parametrize("epoch", [0, 6])
async def test_history_of_another_store_is_renamed(tmp_path: Path, epoch: int) -> None:
    record(tmp_path, 7)
    await put_history_of_another_store_aside(tmp_path, await a_store(epoch))
    (aside,) = names(tmp_path)
    assert aside.startswith("history-until-")
    assert last_epoch(History(str(tmp_path / aside))) == 7


async def test_missing_history_is_not_renamed(tmp_path: Path) -> None:
    await put_history_of_another_store_aside(tmp_path, await in_memory()())
    assert names(tmp_path) == []


async def test_failed_rename_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    record(tmp_path, 7)
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(HistoryError, match="cannot be moved aside: Read-only file system"):
        await put_history_of_another_store_aside(tmp_path, await a_store(1))
