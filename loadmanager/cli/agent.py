"""`loadmanager agent`: the sidecar beside one broker, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path
from typing import Annotated

import structlog
import typer
from aiohttp import web

from loadmanager.agent.service import Agent, url_of
from loadmanager.cli.running import (
    ANSWER_S,
    EXIT_CONFIGURATION,
    EXIT_FAILURE,
    fail,
    install_fast_loop,
    write_ready_file,
)
from loadmanager.config import AgentSettings, load_settings
from loadmanager.errors import ConfigurationError, StoreError
from loadmanager.observability import configure_logging
from loadmanager.store.zookeeper import ZooKeeperStore

log = structlog.get_logger(__name__)

_BACKLOG = 128
_GRACE_S = 5.0


def agent(
    config: Annotated[Path | None, typer.Option(help="YAML file; see config/agent.yaml.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help='Write {"url": ...} here once the agent answers; the broker may not be there yet.'),
    ] = None,
    log_json: Annotated[bool, typer.Option(help="Log JSON lines.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Run the agent beside a broker: register it, report its load, and give it leases and unload calls."""
    configure_logging(json_lines=log_json)
    try:
        settings = load_settings(AgentSettings, config)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    install_fast_loop()
    asyncio.run(_run(settings, ready_file))


async def _run(settings: AgentSettings, ready_file: Path | None) -> None:
    # The port first: while it is ours, no former life of this agent can be handing out leases behind it.
    listener = _listen(settings)
    url = url_of(settings, listener.getsockname()[1])
    store = await _open_store(settings, listener)
    beside = Agent(settings, store, url)
    runner = web.AppRunner(beside.app(), access_log=None, shutdown_timeout=ANSWER_S)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    log.info("agent_started", url=url, broker_id=settings.broker_id, store=settings.metadata_store_url)
    if ready_file is not None:
        write_ready_file(ready_file, url)
    try:
        await beside.run(_stop_signal())
    except (ExceptionGroup, StoreError) as failure:  # the top of the process: whatever it was, say it and end
        log.exception("agent_failed")
        causes = failure.exceptions if isinstance(failure, ExceptionGroup) else (failure,)
        said = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        fail(f"the agent cannot go on: {said}", EXIT_FAILURE)
    finally:
        await beside.close()
        await asyncio.wait_for(runner.cleanup(), _GRACE_S)
        await store.close()


async def _open_store(settings: AgentSettings, listener: socket.socket) -> ZooKeeperStore:
    try:
        store = ZooKeeperStore(
            settings.zookeeper_hosts,
            session_timeout_s=settings.session_timeout_s,
            chroot=settings.zookeeper_chroot,
            connect_timeout_s=settings.metadata_store_connect_timeout_millis / 1000,
        )
        await store.start()
    except ConfigurationError as error:
        listener.close()
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_CONFIGURATION)
    except StoreError as error:
        listener.close()
        fail(f"metadataStoreUrl {settings.metadata_store_url}: {error}", EXIT_FAILURE)
    return store


def _stop_signal() -> asyncio.Event:
    """Set on SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _listen(settings: AgentSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.bind_address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.bind_address, settings.agent_port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        fail(f"agentPort {settings.agent_port} on {settings.bind_address}: {error.strerror or error}", EXIT_FAILURE)
    return listener
