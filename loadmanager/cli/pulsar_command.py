"""`loadmanager pulsar`: observe how a Pulsar balances its brokers, or balance it."""

from __future__ import annotations

import asyncio
import secrets
import socket
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import (
    ANSWER_S,
    GRACE_S,
    listen,
    open_store,
    reading_cluster,
    ready,
    start_up,
    wait_for_stop,
)
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.errors import ConfigurationError, HistoryError, StoreError
from loadmanager.http.pulsar_routes import make_pulsar_app
from loadmanager.net.http_server import ServerLimits, listen_on, serve_within
from loadmanager.net.tls_contexts import TlsOptions
from loadmanager.pulsar.broker_settings import PulsarSettings
from loadmanager.pulsar.preflight import ask_settings, find_warning, memory_after, put_history_of_another_store_aside
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_service import PulsarService
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.store.metadata_store import MetadataStore

log = structlog.get_logger(__name__)


pulsar = typer.Typer(help="Observe how a Pulsar balances its brokers, or balance it.", no_args_is_help=True)

_ADMIN_TIMEOUT_S = 10.0
"""Timeout of a request to a broker: longer than a pause of its garbage collector."""
_Admin = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Web service of a broker, http://broker:8080; may be repeated."),
]
_Config = Annotated[Path | None, typer.Option(help="YAML file; see config/pulsar.yaml.")]
_ReadyFile = Annotated[Path | None, typer.Option(help='Write {"url": ...} here once all brokers have answered.')]
_LogJson = Annotated[bool, typer.Option(help="Log JSON lines.")]


@pulsar.command()
def observe(
    admin: _Admin = None,
    config: _Config = None,
    ready_file: _ReadyFile = None,
    log_json: _LogJson = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Observe a Pulsar through its REST API, say what would balance it better, and change nothing.

    One broker's address is enough. The diary goes to standard output, and into the folder.
    """
    _start({"mode": "observe"}, admin, config, ready_file, json_lines=log_json)


@pulsar.command()
def act(
    admin: _Admin = None,
    config: _Config = None,
    take_over: Annotated[  # noqa: FBT002 - a command-line flag
        bool, typer.Option("--take-over", help="Switch the brokers' own balancing off, and restore it at the end.")
    ] = False,
    ready_file: _ReadyFile = None,
    log_json: _LogJson = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Balance a Pulsar: move bundles through its REST API. Needs a stateStoreUrl in the configuration file."""
    given = {"mode": "act", **({"takeOver": True} if take_over else {})}
    _start(given, admin, config, ready_file, json_lines=log_json)


def _start(
    given: dict[str, Any], admin: list[str] | None, config: Path | None, ready_file: Path | None, *, json_lines: bool
) -> None:
    given |= {"adminUrls": admin} if admin else {}
    settings = start_up(PulsarServiceSettings, config, given, json_lines=json_lines)
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"folder {settings.folder}: {error.strerror}", EXIT_CONFIGURATION)
    asyncio.run(_run(settings, ready_file))


async def _run(settings: PulsarServiceSettings, ready_file: Path | None) -> None:
    listener = listen(settings.key("web_service_port"), settings.bind_address, settings.web_service_port)
    try:
        await _run_with_admin(settings, listener, ready_file)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    except (PulsarRefusedError, PulsarUnreachableError, StoreError, HistoryError) as error:
        fail(str(error), EXIT_FAILURE)
    finally:
        listener.close()


async def _run_with_admin(settings: PulsarServiceSettings, listener: socket.socket, ready_file: Path | None) -> None:
    async with _admin_of(settings) as admin:
        broker_settings = await ask_settings(admin, settings)
        if warning := await find_warning(admin, broker_settings):
            log.warning("pulsar", warning=warning)
        live = PulsarSettings(broker_settings, settings)
        for fault in live.faults:
            log.warning("setting_ignored", fault=fault)
        store = await _open_state_store(settings, listener)
        try:
            await _serve(settings, live, store, admin, listener, ready_file)
        finally:
            await store.close()


def _admin_of(settings: PulsarServiceSettings) -> PulsarAdmin:
    tls = TlsOptions(
        trust_certs=settings.tls_trust_certs_file_path,
        certificate=settings.tls_certificate_file_path,
        key=settings.tls_key_file_path,
        allow_insecure=settings.tls_allow_insecure_connection,
        hostname_verification=settings.tls_hostname_verification_enable,
    )
    return PulsarAdmin(
        settings.admin_urls,
        token_file=settings.token_file,
        tls=tls,
        timeout_s=_ADMIN_TIMEOUT_S,
        suffixes=settings.token_host_suffixes,
    )


async def _open_state_store(settings: PulsarServiceSettings, listener: socket.socket) -> MetadataStore:
    """Open the store of this process's own election: ZooKeeper, or memory for a single process."""
    if not settings.state_store_url:
        store = memory_after(settings.folder, settings.session_timeout_s)
        await store.start()
        return store
    shared = await open_store(settings.key("state_store_url"), settings.state_store_url, settings, listener)
    await put_history_of_another_store_aside(settings.folder, shared)
    return shared


async def _serve(
    settings: PulsarServiceSettings,
    live: PulsarSettings,
    store: MetadataStore,
    admin: PulsarAdmin,
    listener: socket.socket,
    ready_file: Path | None,
) -> None:
    host = settings.advertised_address or settings.bind_address
    port = listener.getsockname()[1]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    url = f"http://{address}"
    node = PulsarService(settings, live, store, admin, address, url, secrets.randbits(63))
    node.diary.show = partial(print, flush=True)
    runner = await serve_within(make_pulsar_app(node), ServerLimits.of(settings), ANSWER_S)
    try:
        with reading_cluster():
            await node.start()
        await listen_on(runner, listener)
        of = {"mode": settings.mode, "pulsar": settings.admin_urls[0]}
        stop = ready("pulsar", settings, ready_file, {"url": url}, **of)
        await wait_for_stop(stop, node.failure)
        log.info("stopping", url=url)
    finally:
        await node.stop()
        async with asyncio.timeout(GRACE_S):
            await runner.cleanup()
