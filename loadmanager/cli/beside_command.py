"""`loadmanager beside`: look at how a Pulsar balances, judge it, and do it better if told to."""

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
from loadmanager.cli.listeners import listen
from loadmanager.cli.service_runner import (
    ANSWER_S,
    GRACE_S,
    check_audit_log,
    keep_pauses_short,
    open_store,
    ready,
    start_up,
    store_of,
    until_told_to_stop,
)
from loadmanager.cli.zookeeper_access import access_to_pulsar
from loadmanager.config import BesideSettings
from loadmanager.errors import ConfigurationError, HistoryError, StoreError
from loadmanager.http.app import make_beside_app
from loadmanager.net.http_server import ServerLimits, listen_on, serve_within
from loadmanager.net.tls_contexts import TlsOptions
from loadmanager.pulsar.planning_settings import PulsarSettings
from loadmanager.pulsar.preflight import find_warnings, refuse_unfit
from loadmanager.pulsar.previous_runs import memory_after, put_history_of_another_store_aside
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_service import BesideNode
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError
from loadmanager.store.memory_store import MemoryStore
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util.malloc import give_back_memory, map_large_blocks

log = structlog.get_logger(__name__)


def beside(
    pulsar: Annotated[
        str | None, typer.Option(metavar="URL", help="The ZooKeeper of the brokers, zk:host:2181; it is only read.")
    ] = None,
    admin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="The web service of a broker, http://broker:8080; for more, say it again."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file; see config/beside.yaml.")] = None,
    take_over: Annotated[  # noqa: FBT002 - a command-line flag
        bool,
        typer.Option("--take-over", help="In mode act: switch the brokers' own balancing off, and back at the end."),
    ] = False,
    ready_file: Annotated[Path | None, typer.Option(help='Write {"url": ...} here once all is read.')] = None,
    log_json: Annotated[bool, typer.Option(help="Log JSON lines.")] = False,  # noqa: FBT002 - a command-line flag
) -> None:
    """Look at a Pulsar's balancing from beside it, and judge it; in mode act, move bundles in its stead.

    By default (mode shadow) nothing is changed, anywhere. The diary goes to standard output, and into the folder; a
    first verdict comes within five minutes.
    """
    given: dict[str, Any] = {"takeOver": True} if take_over else {}
    given |= {} if pulsar is None else {"pulsarMetadataStoreUrl": pulsar}
    given |= {} if not admin else {"adminUrls": admin}
    settings = start_up(BesideSettings, config, given, json_lines=log_json)
    check_audit_log(settings)
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"folder {settings.folder}: {error.strerror}", EXIT_CONFIGURATION)
    asyncio.run(_run(settings, ready_file))


async def _run(settings: BesideSettings, ready_file: Path | None) -> None:
    listener = listen(settings.key("web_service_port"), settings.bind_address, settings.web_service_port)
    pulsar = await _open_pulsar(settings, listener)
    try:
        await _beside(settings, ReadOnlyStore(pulsar), listener, ready_file)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    except (PulsarRefusedError, PulsarUnreachableError, StoreError, HistoryError) as error:
        fail(str(error), EXIT_FAILURE)
    finally:
        listener.close()
        await pulsar.close()


async def _open_pulsar(settings: BesideSettings, listener: socket.socket) -> ZooKeeperStore:
    url = settings.pulsar_metadata_store_url
    try:
        store = store_of(url, settings, create_chroot=False, access=access_to_pulsar(settings))
        await store.start()
    except (ConfigurationError, StoreError) as error:
        listener.close()
        code = EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILURE
        fail(f"{settings.key('pulsar_metadata_store_url')} {url}: {error}", code)
    return store


async def _beside(
    settings: BesideSettings, pulsar: ReadOnlyStore, listener: socket.socket, ready_file: Path | None
) -> None:
    async with _admin_of(settings) as admin:
        told = await refuse_unfit(pulsar, admin, settings)
        for warning in await find_warnings(pulsar, told):
            log.warning("pulsar", warning=warning)
        live = PulsarSettings(told, settings)
        for fault in live.faults:
            log.warning("setting_left_out", fault=fault)
        store = await _open_state_store(settings, listener)
        try:
            await _serve(settings, live, pulsar, store, admin, listener, ready_file)
        finally:
            await store.close()


def _admin_of(settings: BesideSettings) -> PulsarAdmin:
    tls = TlsOptions(
        trust_certs=settings.tls_trust_certs_file_path,
        certificate=settings.tls_certificate_file_path,
        key=settings.tls_key_file_path,
        allow_insecure=settings.tls_allow_insecure_connection,
        hostname_verification=settings.tls_hostname_verification_enable,
    )
    timeout_s = settings.admin_timeout_ms / 1000
    return PulsarAdmin(settings.admin_urls, token_file=settings.token_file, tls=tls, timeout_s=timeout_s)


async def _open_state_store(settings: BesideSettings, listener: socket.socket) -> MetadataStore:
    """Open the store of this process's own election: ZooKeeper, or memory for a single process."""
    if not settings.state_store_url:
        store = MemoryStore(memory_after(settings.folder), session_timeout_s=settings.session_timeout_s)
        await store.start()
        return store
    shared = await open_store(settings.key("state_store_url"), settings.state_store_url, settings, listener)
    await put_history_of_another_store_aside(settings.folder, shared)
    return shared


async def _serve(
    settings: BesideSettings,
    live: PulsarSettings,
    pulsar: ReadOnlyStore,
    store: MetadataStore,
    admin: PulsarAdmin,
    listener: socket.socket,
    ready_file: Path | None,
) -> None:
    map_large_blocks()
    host = settings.advertised_address or settings.bind_address
    port = listener.getsockname()[1]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    url = f"http://{address}"
    node = BesideNode(settings, live, pulsar, store, admin, address, url, secrets.randbits(63))
    node.diary.show = partial(print, flush=True)
    runner = await serve_within(make_beside_app(node), ServerLimits.of(settings), ANSWER_S)
    try:
        await node.start()
        keep_pauses_short()
        give_back_memory()
        await listen_on(runner, listener)
        of = {"mode": settings.mode, "pulsar": settings.pulsar_metadata_store_url}
        stop = ready("beside", settings, ready_file, {"url": url}, **of)
        await until_told_to_stop(stop, node.failure)
        log.info("stopping", url=url)
    finally:
        await node.stop()
        async with asyncio.timeout(GRACE_S):
            await runner.cleanup()
