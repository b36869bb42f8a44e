"""Start and stop of long-running commands: settings, logging, listeners, ZooKeeper session and access, exit codes."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog
from aiohttp import web

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.config.shared_settings import (
    AuditSettings,
    SessionSettings,
    TlsSettings,
    require_writable,
    zookeeper_parts,
)
from loadmanager.errors import ConfigurationError, LoadManagerError, StoreError, StoreUnavailableError
from loadmanager.net.auth.gate import AuthGate, is_open_to_anyone
from loadmanager.net.http_client import Caller
from loadmanager.net.http_server import BACKLOG, listen_on
from loadmanager.net.tls_contexts import RenewedTls, ServerTls, TlsKeys, TlsOptions
from loadmanager.store.acl_update import AclProcess, refuse_strangers
from loadmanager.store.pulsar_detection import refuse_pulsar
from loadmanager.store.zookeeper_acl import Access, Acls, identities_of, is_for_anyone, read_credentials
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.util.atomic_write import write_ready_file
from loadmanager.util.logging import configure_logging
from loadmanager.util.malloc import give_back_memory, map_large_blocks

if TYPE_CHECKING:
    from loadmanager.config.agent_settings import AgentSettings
    from loadmanager.config.node_settings import Settings
    from loadmanager.config.pulsar_service_settings import PulsarServiceSettings

log = structlog.get_logger(__name__)

S = TypeVar("S", bound=SessionSettings)
_Answer = TypeVar("_Answer")

_CONNECT_TIMEOUT_S = 15.0
"""Minimum connect timeout for ZooKeeper at start. A longer session timeout replaces it, as it means a slower link."""
ANSWER_S = 0.5
"""Grace period for pending requests after the signal to stop."""

GRACE_S = 5.0
"""Grace period for the rest of the shutdown."""

_TRY_AGAIN_S = 0.5
_SWITCH_INTERVAL_S = 0.0005
_READING_THRESHOLD = 500_000
_SERVING_THRESHOLDS = (2_000, 20, 20)


def given_settings(texts: Iterable[str], option: str = "--set") -> dict[str, str]:
    """Parse `KEY=VALUE` options, by key. The process ends for any other form."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            fail(f"{option} {text!r}: expected KEY=VALUE", EXIT_CONFIGURATION)
        found[key.strip()] = value.strip()
    return found


class Closable(Protocol):
    """Resource with an asynchronous `close`."""

    def close(self) -> None: ...


def start_up(model: type[S], config: Path | None, overrides: Mapping[str, Any] | None = None, *, json_lines: bool) -> S:
    """Set up logging, settings and the event loop of a service. The process ends for unusable settings."""
    configure_logging(json_lines=json_lines)
    try:
        settings = load_settings(model, config, overrides)
        if isinstance(settings, AuthSettings):
            AuthGate(settings)  # refuses unusable keys before anything is started
            Caller.of(settings)  # refuses an unusable token
        if isinstance(settings, AuditSettings):
            require_writable(settings.audit_log_file)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    install_fast_loop()
    return settings


def warn_if_open(settings: AuthSettings, address: str) -> None:
    """Log a warning if everybody who reaches the address may give commands."""
    if is_open_to_anyone(settings, address):
        log.warning(
            "open_to_anyone",
            bindAddress=address,
            consequence="whoever reaches the port may move bundles and change settings",
            remedy="authenticationEnabled: true, with tokenSecretKey or tokenPublicKey; see docs/security.md",
        )


def store_of(url: str, settings: SessionSettings, *, create_chroot: bool = True) -> ZooKeeperStore:
    """Return the store at `url`, not started. Raises `ConfigurationError` for unusable settings."""
    hosts, chroot = zookeeper_parts(url)
    return ZooKeeperStore(
        hosts,
        session_timeout_s=settings.session_timeout_s,
        chroot=chroot,
        connect_timeout_s=max(_CONNECT_TIMEOUT_S, settings.session_timeout_s),
        create_chroot=create_chroot,
        access=access_of(settings),
    )


@contextmanager
def store_command(config: Path | None, metadata_store_url: str | None) -> Iterator[Settings]:
    """Yield the settings for a command on the store of a node; a fault of these or of the store ends the process."""
    from loadmanager.config.node_settings import Settings  # noqa: PLC0415 - not installed with agents

    configure_logging(json_lines=False, level="error")
    url = metadata_store_url
    try:
        settings = load_settings(Settings, config)
        url = url or settings.metadata_store_url
        yield settings.model_copy(update={"metadata_store_url": url})
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    except StoreError as error:
        fail(f"metadataStoreUrl {url}: {error}", EXIT_FAILURE)


@asynccontextmanager
async def existing_store(settings: Settings) -> AsyncIterator[ZooKeeperStore]:
    """Open the configured store for a command, without creating its chroot."""
    store = store_of(settings.metadata_store_url, settings, create_chroot=False)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def open_store(
    key: str, url: str, settings: SessionSettings, listener: Closable, process: AclProcess = AclProcess.NODE
) -> ZooKeeperStore:
    """Open a session with our ZooKeeper. On failure close the listener and end the process; the error names `key`."""
    try:
        store = store_of(url, settings)
        await store.start()
        try:
            await retry_until_answered(lambda: refuse_pulsar(store))
            await retry_until_answered(lambda: refuse_strangers(store, process=process))
        except LoadManagerError:
            await store.close()
            raise
    except (ConfigurationError, StoreError) as error:
        listener.close()
        code = EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILURE
        fail(f"{key} {url}: {error}", code)
    return store


async def retry_until_answered(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Retry a request to the store until it answers."""
    while True:
        try:
            return await ask()
        except StoreUnavailableError:
            await asyncio.sleep(_TRY_AGAIN_S)


def ready(
    event: str,
    settings: Settings | AgentSettings | PulsarServiceSettings,
    ready_file: Path | None,
    where: Mapping[str, str],
    **details: object,
) -> asyncio.Event:
    """Announce that the process serves, in the log and in the ready file, which contains `where`.

    Return an event that SIGTERM and SIGINT set. The handlers are installed first, so a process that is ready always
    shuts down in order.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    log.info(event, url=where["url"], **details)
    warn_if_open(settings, settings.bind_address)
    if ready_file is not None:
        write_ready_file(ready_file, where)
    return stop


async def wait_for_stop(stop: asyncio.Event, failure: asyncio.Future[None]) -> None:
    """Wait for `stop`. The process ends with the `failure` of a task that must not end."""
    failure.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if failure.done():
        fail(f"the node cannot go on: {failure.exception()}", EXIT_FAILURE)


def install_fast_loop() -> None:
    """Use uvloop if it is installed (extra `fast`)."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return
    uvloop.install()


@contextmanager
def reading_cluster() -> Iterator[None]:
    """Tune memory, garbage collection and threads of a process that reads the cluster in this block, then serves.

    The objects read here live as long as the process. So the garbage collector hardly runs in the block: its scans
    would take a quarter of the CPU time of a start with 1,000,000 bundles. Afterwards these objects are frozen, because
    one scan takes 0.2 s for 100,000 bundles. Collections are also rarer than by default: they would take a fifth of
    all time when every bundle changes its owner. Planning threads yield the interpreter after 0.5 ms instead of 5.
    """
    map_large_blocks()
    gc.set_threshold(_READING_THRESHOLD)
    yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_SERVING_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    give_back_memory()


_KEYS = TlsKeys(
    *map(
        SessionSettings.key,
        (
            "metadata_store_tls_trust_certs_file_path",
            "metadata_store_tls_certificate_file_path",
            "metadata_store_tls_key_file_path",
        ),
    )
)


def access_of(settings: SessionSettings) -> Access:
    """Return credentials, TLS and ACLs for our own store. `ConfigurationError` names the unusable key and file."""
    key = settings.key("metadata_store_credentials")
    ours = read_credentials(key, settings.metadata_store_credentials)
    if ours and ours.scheme == "sasl" and find_spec("puresasl") is None:
        raise ConfigurationError(f"{ours.origin}: needs the package pure-sasl: install loadmanager[sasl]")
    agents = identities_of(settings.key("metadata_store_agent_ids"), settings.metadata_store_agent_ids)
    if is_for_anyone(settings.metadata_store_node_ids):
        return Access(ours, _tls(settings))
    nodes = identities_of(settings.key("metadata_store_node_ids"), settings.metadata_store_node_ids)
    nodes = nodes or ((ours.identity,) if ours else ())
    if agents and not nodes:
        raise ConfigurationError(
            f"{settings.key('metadata_store_agent_ids')}: without {key} or {settings.key('metadata_store_node_ids')}"
            " nobody could write"
        )
    return Access(ours, _tls(settings), Acls(nodes, agents))


def _tls(settings: SessionSettings) -> Callable[[], ssl.SSLContext] | None:
    """Return the TLS context for ZooKeeper; None if no file is configured."""
    options = TlsOptions(
        trust_certs=settings.metadata_store_tls_trust_certs_file_path,
        certificate=settings.metadata_store_tls_certificate_file_path,
        key=settings.metadata_store_tls_key_file_path,
        keys=_KEYS,
    )
    return None if options == TlsOptions(keys=_KEYS) else RenewedTls(options).context


def listen(key: str, address: str, port: int) -> socket.socket:
    """Open a listening socket. On failure the process ends; the error names the configuration `key` of the port."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fail(f"{key} {port} on {address}: {error.strerror or error}", EXIT_FAILURE)
    return listener


def listen_at(key: str, path: Path) -> socket.socket:
    """Open a Unix socket for its owner and group. On failure the process ends; the error names the `key`.

    A socket that an earlier process left behind is replaced.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and _is_left_over(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o660)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fail(f"{key} {path}: {error.strerror or error}", EXIT_FAILURE)
    return listener


def _is_left_over(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


@dataclass(frozen=True, slots=True)
class ListenerSpec:
    """A listening port, plain or TLS."""

    listener: socket.socket
    tls: ServerTls | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port


class Listeners:
    """Listening ports of a process on one address. `plain` and `by_tls` are fields of the settings. The process
    advertises the `first` port to others.

    If a port cannot be opened, the process ends; the error names the key.
    """

    def __init__(self, settings: TlsSettings, address: str, plain: str, by_tls: str, tls: ServerTls | None) -> None:
        sides: list[tuple[str, ServerTls | None]] = [(plain, None), (by_tls, tls)]
        if settings.broker_client_tls_enabled:
            sides.reverse()
        self.specs: list[ListenerSpec] = []
        for name, side in sides:
            port = getattr(settings, name)
            if port is not None:
                self.specs.append(ListenerSpec(listen(settings.key(name), address, port), side))

    @property
    def first(self) -> ListenerSpec:
        return self.specs[0]

    @property
    def plain(self) -> ListenerSpec:
        """Plain port; raises `StopIteration` if there is none."""
        return next(each for each in self.specs if each.tls is None)

    async def open(self, runner: web.AppRunner) -> None:
        for spec in self.specs:
            await listen_on(runner, spec.listener, spec.tls)

    def close(self) -> None:
        for spec in self.specs:
            spec.listener.close()


def tls_of(settings: TlsSettings, tls_port: int | None) -> ServerTls | None:
    """Load the server TLS; None without a TLS port. The process ends for unusable files."""
    try:
        return None if tls_port is None else ServerTls.of(settings)
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
