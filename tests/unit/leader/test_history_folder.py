from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.nodes import in_memory

from loadmanager.cli import serve_command
from loadmanager.cli.serve_command import MOST_BYTES, choose_history_folder
from loadmanager.config.node_settings import Settings
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore, Put


@pytest.fixture(autouse=True)
def _no_var_lib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve_command, "_VAR_LIB", tmp_path / "var-lib")


async def a_store(epoch: int = 0) -> MetadataStore:
    """Return a store in which `epoch` terms have begun."""
    store = await in_memory()()
    await store.ensure_path(paths.EPOCH)
    for version in range(epoch):
        await store.commit([Put(paths.EPOCH, b"", version)])
    return store


async def found(environment: Mapping[str, str], epoch: int = 0, **settings: object) -> Settings:
    return await choose_history_folder(Settings(**settings), await a_store(epoch), environment)  # type: ignore[arg-type]


def record(history: Path, epoch: int) -> None:
    """Write an event file of this epoch."""
    hour = history / "events" / "date=2026-01-01" / "hour=00"
    hour.mkdir(parents=True)
    (hour / f"{epoch:010}-{0:012}-{1:012}-n.parquet").write_bytes(b"")


def names(folder: Path, but: str = "") -> list[str]:
    return [each.name for each in folder.iterdir() if each.name != but]


async def test_first_writable_folder_is_used_with_a_size_limit(tmp_path: Path) -> None:
    systemd, state, home = (tmp_path / name for name in ("systemd", "state", "home"))
    home.mkdir()
    environment = {"STATE_DIRECTORY": f"{systemd}:other", "XDG_STATE_HOME": str(state), "HOME": str(home)}
    expected = [systemd, state / "loadmanager", tmp_path / "var-lib", home / ".local/state/loadmanager"]
    (tmp_path / "var-lib").mkdir()
    for base in expected:
        settings = await found(environment)
        assert Path(settings.history_url).parent == base / "history"
        assert settings.history_max_bytes == MOST_BYTES
        (base / "history" / ".lock").unlink()
        (base / "history").rmdir()
        (base / "history").write_text("a file in its place")


async def test_smaller_configured_limit_is_kept(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert (await found(environment, history_max_bytes=5)).history_max_bytes == 5
    assert (await found(environment, history_max_bytes=0)).history_max_bytes == MOST_BYTES


async def test_folder_is_shared_within_a_cluster_only(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    one, again = [(await found(environment, cluster_name="a/b", web_service_port=port)).history_url for port in (1, 2)]
    assert one == again
    assert Path(one).name.startswith("a_b-")
    others: list[dict[str, Any]] = [
        {"cluster_name": "c"},
        {"cluster_name": "a/b", "metadata_store_url": "zk:other:2181"},
    ]
    assert len({one, *[(await found(environment, **other)).history_url for other in others]}) == 3


async def test_configured_history_url_is_kept_even_if_empty(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    for url in ("", "s3://bucket/prefix", str(tmp_path / "mine")):
        settings = await found(environment, history_url=url)
        assert (settings.history_url, settings.history_max_bytes) == (url, 10_737_418_240)
    assert names(tmp_path) == []


async def test_history_is_off_with_a_warning_if_no_folder_is_writable(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    for environment in ({"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "none")}, {}):
        with capture_logs() as logs:
            settings = await found(environment)
        assert settings.history_url == ""
        (said,) = [entry for entry in logs if entry["event"] == "history_off"]
        assert said["log_level"] == "warning"
        assert "historyUrl" in said["to_change"]
        assert said["why"].startswith("no folder can be written (")


async def test_history_of_another_store_is_moved_aside(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    history = Path((await found(environment)).history_url)
    record(history, 3)
    for epoch in (3, 4):
        await found(environment, epoch)
        assert (history / "events").is_dir()
    with capture_logs() as logs:
        assert Path((await found(environment, 2)).history_url) == history
    assert [entry["why"] for entry in logs if entry["event"] == "history_moved_aside"] == [
        "its epochs are of another metadataStoreUrl"
    ]
    (aside,) = names(history.parent, but=".lock")
    assert aside.startswith(f"{history.name}-until-")
