"""`loadmanager zookeeper`: a real ZooKeeper on this machine, for trials and development.

`loadmanager zookeeper secure` works with any ZooKeeper; run it where the nodes run.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.service_runner import existing_store, store_command
from loadmanager.config.node_settings import Settings
from loadmanager.dev.embedded.embedded_zookeeper import DEFAULT_TICK_TIME_MS, EmbeddedZooKeeper
from loadmanager.errors import ConfigurationError, EmbeddedServerError
from loadmanager.store.acl_update import AclOutcome, secure, why_locked_out
from loadmanager.store.pulsar_detection import refuse_pulsar
from loadmanager.store.zookeeper_acl import Acls, is_for_anyone
from loadmanager.store.zookeeper_store import ZooKeeperStore

_FAILED_SHOWN = 20


def secure_znodes(
    config: Annotated[Path | None, typer.Option(help="YAML file of a node; see config/loadmanager.yaml.")] = None,
    metadata_store_url: Annotated[
        str | None, typer.Option(help="ZooKeeper and chroot, zk:host:port/chroot; default: as configured.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Remove the restrictions: allow everybody everything.")] = False,  # noqa: FBT002 - a flag
    yes: Annotated[bool, typer.Option("--yes", help="Make the changes; without this they are only shown.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Set the access lists (ACLs) of our znodes; without --yes only show the changes.

    This needs the credentials of a node. Correct lists are not changed, so you can repeat it at any time.
    """
    with store_command(config, metadata_store_url) as configured:
        outcome = asyncio.run(_secure(configured, is_open=open_, do=yes))
    _show(outcome, do=yes)


async def _secure(settings: Settings, *, is_open: bool, do: bool) -> AclOutcome:
    async with existing_store(settings) as store:
        await refuse_pulsar(store)
        acls = store.access.acls
        print(f"{settings.metadata_store_url}, as {store.access.who}")
        if not is_open:
            _refuse_to_guess_nodes(settings, store)
            await _refuse_to_lock_out(store, acls)
            _show_identities(acls)
        return await secure(store, Acls() if is_open else acls, do=do, progress=_progress)


def _refuse_to_guess_nodes(settings: Settings, store: ZooKeeperStore) -> None:
    """Raise `ConfigurationError` unless nodes are named: the credentials may be those of an agent."""
    if is_for_anyone(settings.metadata_store_node_ids):
        raise ConfigurationError("metadataStoreNodeIds: world:anyone: name the identities of nodes")
    credentials = store.access.credentials
    if credentials is not None and not settings.metadata_store_node_ids:
        scheme, identity = credentials.identity
        raise ConfigurationError(
            f"metadataStoreNodeIds: name the identities of nodes; these credentials are {scheme}:{identity}, which"
            " belongs there if nodes use them, and into metadataStoreAgentIds if agents do"
        )


async def _refuse_to_lock_out(store: ZooKeeperStore, acls: Acls) -> None:
    why = await why_locked_out(store, acls.nodes)
    if why is not None:
        raise ConfigurationError(f"this would lock us out: {why}; see metadataStoreCredentials")


def _show_identities(acls: Acls) -> None:
    for name, ids in (("metadataStoreNodeIds", acls.nodes), ("metadataStoreAgentIds", acls.agents)):
        for scheme, identity in ids:
            print(f"  {name:<22} {scheme}:{identity}")


def _progress(seen: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{seen} znodes", end="", file=sys.stderr, flush=True)


def _show(outcome: AclOutcome, *, do: bool) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{outcome.right} znodes are as they should be")
    for change, count in sorted(outcome.changed.items()):
        print(f"{count} {'changed' if do else 'would change'}: {change}")
    for path, why in sorted(outcome.failed.items())[:_FAILED_SHOWN]:
        print(f"not changed: {path}: {why}", file=sys.stderr)
    if outcome.failed:
        fail(f"{len(outcome.failed)} znodes could not be {'changed' if do else 'looked at'}", EXIT_FAILURE)
    if outcome.changed and not do:
        print("Nothing was changed. With --yes it is.")


_LOOK_AGAIN_S = 0.5

zookeeper = typer.Typer(invoke_without_command=True)
zookeeper.command("secure")(secure_znodes)


@zookeeper.callback()
def run(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option(min=0, max=65_535, help="Port for clients. 0: a free one."),
    ] = 2181,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder for the data; default: a temporary one.", file_okay=False)
    ] = None,
    tick_time_ms: Annotated[
        int, typer.Option(min=50, help="ZooKeeper's tick; the shortest session timeout is two ticks.")
    ] = DEFAULT_TICK_TIME_MS,
) -> None:
    """Run a real ZooKeeper on this machine until Ctrl-C; or, with a command, manage an existing one."""
    if context.invoked_subcommand is None:
        _run(port, data_dir, tick_time_ms)


def _run(port: int, data_dir: Path | None, tick_time_ms: int) -> None:
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    server = EmbeddedZooKeeper(port=port or None, data_dir=data_dir, tick_time_ms=tick_time_ms)
    try:
        with server:
            print(f"ZooKeeper serves at {server.connect_string}", flush=True)
            print(f"data in {data_dir or 'a temporary folder'}; Ctrl-C stops it", flush=True)
            while server.is_running:
                time.sleep(_LOOK_AGAIN_S)
            last_words = server.last_lines()
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return
    except EmbeddedServerError as error:
        print(error, file=sys.stderr, flush=True)
        raise typer.Exit(1) from error
    print(f"ZooKeeper has ended by itself. The end of its log:\n{last_words}", file=sys.stderr, flush=True)
    raise typer.Exit(1)


def _as_ctrl_c(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
