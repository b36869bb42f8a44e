"""`loadmanager agent`: the sidecar beside one broker, until it is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import structlog
import typer
from aiohttp import web

from loadmanager.agent.service import Agent, url_of
from loadmanager.cli.exits import EXIT_FAILURE, fail
from loadmanager.cli.running import (
    ANSWER_S,
    BACKLOG,
    GRACE_S,
    listen,
    open_store,
    start_up,
    stop_signal,
    warn_if_open,
    write_ready_file,
)
from loadmanager.config import AgentSettings
from loadmanager.errors import StoreError
from loadmanager.serving import ServerLimits, serve_within

log = structlog.get_logger(__name__)


def agent(
    config: Annotated[Path | None, typer.Option(help="YAML file; see config/agent.yaml.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help='Write {"url": ...} here once the agent answers; the broker may not be there yet.'),
    ] = None,
    log_json: Annotated[bool, typer.Option(help="Log JSON lines.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Run the agent beside a broker: register it, report its load, and give it leases and unload calls."""
    settings = start_up(AgentSettings, config, json_lines=log_json)
    asyncio.run(_run(settings, ready_file))


async def _run(settings: AgentSettings, ready_file: Path | None) -> None:
    # The port first: while it is ours, no former life of this agent can be handing out leases behind it.
    listener = listen(settings.key("agent_port"), settings.bind_address, settings.agent_port)
    url = url_of(settings, listener.getsockname()[1])
    store = await open_store(settings.key("metadata_store_url"), settings.metadata_store_url, settings, listener)
    beside = Agent(settings, store, url)
    runner = await serve_within(beside.app(), ServerLimits.of(settings), ANSWER_S)
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    log.info("agent_started", url=url, broker_id=settings.broker_id, store=settings.metadata_store_url)
    warn_if_open(settings, settings.bind_address)
    if ready_file is not None:
        write_ready_file(ready_file, url)
    try:
        await beside.run(stop_signal())
    except (ExceptionGroup, StoreError) as failure:  # the top of the process: whatever it was, say it and end
        causes = failure.exceptions if isinstance(failure, ExceptionGroup) else (failure,)
        said = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        fail(f"the agent cannot go on: {said}", EXIT_FAILURE)
    finally:
        await beside.close()
        await asyncio.wait_for(runner.cleanup(), GRACE_S)
        await store.close()
