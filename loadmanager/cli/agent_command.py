"""`loadmanager agent`: run the sidecar of one broker."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Annotated

import typer

from loadmanager.agent.agent_service import Agent, url_of
from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.service_runner import (
    ANSWER_S,
    GRACE_S,
    Listeners,
    listen,
    listen_at,
    open_store,
    ready,
    start_up,
    tls_of,
)
from loadmanager.config.agent_settings import AgentSettings
from loadmanager.errors import StoreError
from loadmanager.net.http_server import ServerLimits, listen_on, serve_within
from loadmanager.net.tls_contexts import TlsMetrics
from loadmanager.store.acl_update import AclProcess

_LOOPBACK = "127.0.0.1"
_OF_THIS_HOST = {"0.0.0.0": _LOOPBACK, "::": "::1"}  # noqa: S104 - what listens everywhere listens there


def agent(
    config: Annotated[Path | None, typer.Option(help="YAML file; see config/agent.yaml.")] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(help='Write {"url": ...} here once the agent answers; the broker may not be there yet.'),
    ] = None,
    log_json: Annotated[bool, typer.Option(help="Log JSON lines.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Run the agent beside a broker: register it, report its load, grant leases, and pass on unload calls."""
    settings = start_up(AgentSettings, config, json_lines=log_json)
    asyncio.run(_run(settings, ready_file))


async def _run(settings: AgentSettings, ready_file: Path | None) -> None:
    # Listen first: while this process has the ports, no earlier process of this agent can grant leases through them.
    tls = tls_of(settings, settings.agent_port_tls)
    listeners = Listeners(settings, settings.bind_address, "agent_port", "agent_port_tls", tls)
    of_broker = _listen_for_broker(settings)
    url = url_of(settings, listeners.first.scheme, listeners.first.port)
    local_url = local_url_of(of_broker or listeners.plain.listener)
    store = await open_store(
        settings.key("metadata_store_url"), settings.metadata_store_url, settings, listeners, AclProcess.AGENT
    )
    beside = Agent(settings, store, url)
    beside.metrics.registry.register(TlsMetrics(beside.caller.tls, tls))
    limits = ServerLimits.of(settings, servers=2)
    runner = await serve_within(beside.server.app() if of_broker else beside.server.shared_app(), limits, ANSWER_S)
    broker_runner = await serve_within(beside.server.broker_app(), limits, ANSWER_S)
    await listeners.open(runner)
    if of_broker:
        await listen_on(broker_runner, of_broker)
    of = {"local_url": local_url, "broker_id": settings.broker_id, "store": settings.metadata_store_url}
    stop = ready("agent_started", settings, ready_file, {"url": url, "localUrl": local_url}, **of)
    try:
        await beside.run(stop)
    except (ExceptionGroup, StoreError) as failure:  # top level of the process: report any error and exit
        causes = failure.exceptions if isinstance(failure, ExceptionGroup) else (failure,)
        reasons = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
        fail(f"the agent cannot go on: {reasons}", EXIT_FAILURE)
    finally:
        await beside.close()
        async with asyncio.timeout(GRACE_S):
            await asyncio.gather(runner.cleanup(), broker_runner.cleanup())
        await store.close()


def _listen_for_broker(settings: AgentSettings) -> socket.socket | None:
    """Open the listener for the broker; None if the broker uses the port of nodes and operators."""
    if settings.broker_socket_path is not None:
        return listen_at(settings.key("broker_socket_path"), settings.broker_socket_path)
    if settings.agent_local_port is not None:
        return listen(settings.key("agent_local_port"), _LOOPBACK, settings.agent_local_port)
    return None


def local_url_of(listener: socket.socket) -> str:
    """Return the address of a listener for clients on this host: a URL, or unix:PATH."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    address, port = listener.getsockname()[:2]
    host = _OF_THIS_HOST.get(address, address)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
