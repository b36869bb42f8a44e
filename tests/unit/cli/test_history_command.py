from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.recorded import NOON_MS
from support.stores import MemoryWorld

from loadmanager.cli import history_command
from loadmanager.config import Settings
from loadmanager.history.files import Directory
from loadmanager.history.load_import import Importer
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import EVENTS
from loadmanager.lab.decide.record_collector import Collected
from loadmanager.store.memory_store import MemoryStore
from loadmanager.wire.dump_line import DumpLine


async def test_large_checkpoint_keeps_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, finished_in = Collected.finish, list[threading.Thread]()

    def noting_the_thread(collected: Collected) -> DumpLine:
        finished_in.append(threading.current_thread())
        return finish(collected)

    store = MemoryStore(MemoryWorld().cluster)

    def store_of(_: str, __: Settings, *, create_chroot: bool) -> MemoryStore:
        assert not create_chroot, "nothing is written there"
        return store

    monkeypatch.setattr(Collected, "finish", noting_the_thread)
    monkeypatch.setattr(history_command, "store_of", store_of)
    directory = Directory.of(str(tmp_path / "history"))
    importer = Importer(directory, "test", NOON_MS)
    await history_command._sample(Settings(), None, importer, (1.0, 0.0), lambda _, __: None)
    importer.finish(NOON_MS)
    assert "checkpoint" in [row["kind"] for row in History(directory).rows(EVENTS)]
    assert finished_in
    assert threading.main_thread() not in finished_in
