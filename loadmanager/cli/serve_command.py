"""`loadmanager serve`: one node of the load-manager service, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from pathlib import Path
from typing import Annotated

import structlog
import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import (
    ANSWER_S,
    GRACE_S,
    Listeners,
    check_audit_log,
    keep_pauses_short,
    open_store,
    patiently,
    ready,
    start_up,
    tls_of,
    until_told_to_stop,
)
from loadmanager.config import Settings
from loadmanager.errors import HistoryError, StoreError
from loadmanager.history.files import Directory
from loadmanager.http.app import make_app
from loadmanager.leader.audit.history_folder import choose_history_folder
from loadmanager.leader.node import Node
from loadmanager.net.http_server import ServerLimits, serve_within
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.util.malloc import give_back_memory, map_large_blocks

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
    check_audit_log(settings)
    asyncio.run(_serve(settings, ready_file))


async def _serve(settings: Settings, ready_file: Path | None) -> None:
    map_large_blocks()
    tls = tls_of(settings, settings.web_service_port_tls)
    doors = Listeners(settings, settings.bind_address, "web_service_port", "web_service_port_tls", tls)
    host, port = settings.advertised_address or socket.getfqdn(), doors.first.port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    url = f"{doors.first.scheme}://{address}"
    store = await open_store(settings.key("metadata_store_url"), settings.metadata_store_url, settings, doors)
    settings = await _with_history(settings, store)
    node = Node(settings, store, address, url, secrets.randbits(63))
    runner = await serve_within(make_app(node, tls), ServerLimits.of(settings), ANSWER_S)
    try:
        await node.start()
        keep_pauses_short()
        give_back_memory()
        await doors.open(runner)
        stop = ready("serving", settings, ready_file, {"url": url}, store=settings.metadata_store_url)
        await until_told_to_stop(stop, node.failure)
        log.info("stopping", url=url)
    except StoreError as error:
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_FAILURE)
    finally:
        await node.stop()
        async with asyncio.timeout(GRACE_S):
            await runner.cleanup()
        await store.close()


async def _with_history(settings: Settings, store: MetadataStore) -> Settings:
    """The settings with a place for the history."""
    try:
        return await patiently(lambda: choose_history_folder(settings, store, os.environ))
    except StoreError as error:
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_FAILURE)


def _check_history(url: str) -> None:
    """End the process when nothing could ever be recorded there; a disk that fails is another matter."""
    try:
        Directory.of(url)
    except HistoryError as error:
        fail(f"historyUrl: {error}", EXIT_CONFIGURATION)
