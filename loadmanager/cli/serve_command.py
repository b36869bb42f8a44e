"""`loadmanager serve`: run one node of the load-manager service.

This module also chooses and locks the folder for its history.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import structlog
import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import (
    ANSWER_S,
    GRACE_S,
    Listeners,
    open_store,
    reading_cluster,
    ready,
    retry_until_answered,
    start_up,
    tls_of,
    wait_for_stop,
)
from loadmanager.config.node_settings import AUTO_HISTORY, Settings
from loadmanager.errors import HistoryError, StoreError
from loadmanager.history.files import Directory
from loadmanager.history.gaps import move_aside_if_ahead
from loadmanager.http.app import make_app
from loadmanager.leader.node import Node
from loadmanager.net.http_server import ServerLimits, serve_within
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore

log = structlog.get_logger(__name__)


def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file; see config/loadmanager.yaml.")] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help='Write {"url": ...} here once the node answers lookups.')
    ] = None,
    log_json: Annotated[bool, typer.Option(help="Log JSON lines.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Run a load-manager node: answer lookups, take part in elections, and lead when elected."""
    settings = start_up(Settings, config, json_lines=log_json)
    _check_history(settings.history_url)
    asyncio.run(_serve(settings, ready_file))


async def _serve(settings: Settings, ready_file: Path | None) -> None:
    tls = tls_of(settings, settings.web_service_port_tls)
    listeners = Listeners(settings, settings.bind_address, "web_service_port", "web_service_port_tls", tls)
    host, port = settings.advertised_address or socket.getfqdn(), listeners.first.port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    url = f"{listeners.first.scheme}://{address}"
    store = await open_store(settings.key("metadata_store_url"), settings.metadata_store_url, settings, listeners)
    settings = await _with_history(settings, store)
    node = Node(settings, store, address, url, secrets.randbits(63))
    runner = await serve_within(make_app(node, tls), ServerLimits.of(settings), ANSWER_S)
    try:
        with reading_cluster():
            await node.start()
        await listeners.open(runner)
        stop = ready("serving", settings, ready_file, {"url": url}, store=settings.metadata_store_url)
        await wait_for_stop(stop, node.failure)
        log.info("stopping", url=url)
    except StoreError as error:
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_FAILURE)
    finally:
        await node.stop()
        async with asyncio.timeout(GRACE_S):
            await runner.cleanup()
        await store.close()


async def _with_history(settings: Settings, store: MetadataStore) -> Settings:
    """Return the settings with a folder for the history."""
    try:
        return await retry_until_answered(lambda: choose_history_folder(settings, store, os.environ))
    except StoreError as error:
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_FAILURE)


def _check_history(url: str) -> None:
    """End the process if the URL is invalid. A failing disk does not end it."""
    try:
        Directory.of(url)
    except HistoryError as error:
        fail(f"historyUrl: {error}", EXIT_CONFIGURATION)


MOST_BYTES = 1024**3
"""Size limit of a history in the default folder."""
_NAME = "loadmanager"
_VAR_LIB = Path("/var/lib") / _NAME
_UNUSABLE_IN_NAMES = re.compile(r"[^-.\w]", re.ASCII)


async def choose_history_folder(settings: Settings, store: MetadataStore, environment: Mapping[str, str]) -> Settings:
    """Return the settings with a folder in place of `auto`, empty if none is writable. Raises a `StoreError`.

        $STATE_DIRECTORY                set by systemd for the service
        $XDG_STATE_HOME/loadmanager     if that is set
        /var/lib/loadmanager            if it exists
        ~/.local/state/loadmanager      if there is a home

    The folder is `history/<cluster>-<store>` in the first writable one. Nodes of one cluster on one machine share it.
    Without a writable folder nothing is recorded, and a warning names the fix: a container with a read-only file system
    must still start. A history of another store, as after ZooKeeper's data were deleted, is moved aside.
    """
    if settings.history_url != AUTO_HISTORY:
        return settings
    znode = await store.get(paths.EPOCH)
    try:
        folder = await asyncio.to_thread(_prepare_folder, settings, 0 if znode is None else znode.version, environment)
    except HistoryError as error:
        log.warning(
            "history_off",
            why=str(error),
            to_change="mount a volume at /var/lib/loadmanager, or set historyUrl (empty: no history is wanted)",
        )
        return settings.model_copy(update={"history_url": ""})
    most_bytes = min(settings.history_max_bytes or MOST_BYTES, MOST_BYTES)
    log.info("history_recorded", folder=str(folder), most_bytes=most_bytes)
    return settings.model_copy(update={"history_url": str(folder), "history_max_bytes": most_bytes})


def _prepare_folder(settings: Settings, epoch: int, environment: Mapping[str, str]) -> Path:
    """Return the folder, after moving the history of another store aside. Raises `HistoryError`."""
    folder = _find_base(environment) / _name_folder(settings)
    with _lock(folder.parent):
        move_aside_if_ahead(folder, epoch, settings.key("metadata_store_url"))
    return folder


def _name_folder(settings: Settings) -> str:
    store = sha256(settings.metadata_store_url.encode()).hexdigest()[:8]
    return f"{_UNUSABLE_IN_NAMES.sub('_', settings.cluster_name)}-{store}"


def _find_base(environment: Mapping[str, str]) -> Path:
    tried = []
    for candidate in _candidates(environment):
        base = candidate / "history"
        try:
            base.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=base):
                return base
        except OSError as error:
            tried.append(f"{base}: {error.strerror}")
    raise HistoryError(f"no folder can be written ({'; '.join(tried) or 'neither $HOME nor a state folder exists'})")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if systemd := environment.get("STATE_DIRECTORY"):
        yield Path(systemd.partition(":")[0])
    if state := environment.get("XDG_STATE_HOME"):
        yield Path(state) / _NAME
    if _VAR_LIB.is_dir():
        yield _VAR_LIB
    if (home := environment.get("HOME")) and Path(home).is_dir():
        yield Path(home) / ".local" / "state" / _NAME


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock file of the folder: one node of this machine at a time."""
    try:
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise HistoryError(f"{folder}: {error.strerror}") from None
