"""`loadmanager zookeeper`: a real ZooKeeper on this machine, for trying things out and for development.

`loadmanager zookeeper secure` is about any ZooKeeper, and where nodes run.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from loadmanager.cli.zookeeper_secure import secure_znodes
from loadmanager.dev.embedded.embedded_zookeeper import (
    DEFAULT_TICK_TIME_MS,
    EmbeddedEnsemble,
    EmbeddedZooKeeper,
)
from loadmanager.errors import EmbeddedServerError

_LOOK_AGAIN_S = 0.5

zookeeper = typer.Typer(invoke_without_command=True)
zookeeper.command("secure")(secure_znodes)


@zookeeper.callback()
def run(
    context: typer.Context,
    port: Annotated[
        int,
        typer.Option(min=0, max=65_535, help="First port for clients; members take the following ones. 0: free ones."),
    ] = 2181,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where to keep the data. Without it they end with the command.", file_okay=False)
    ] = None,
    members: Annotated[int, typer.Option(min=1, max=9, help="Servers; more than one form an ensemble.")] = 1,
    tick_time_ms: Annotated[
        int, typer.Option(min=50, help="ZooKeeper's tick; the shortest session timeout it grants is two of them.")
    ] = DEFAULT_TICK_TIME_MS,
) -> None:
    """Run a real ZooKeeper on this machine until Ctrl-C; or, with a command, mind the one that there is."""
    if context.invoked_subcommand is None:
        _run(port, data_dir, members, tick_time_ms)


def _run(port: int, data_dir: Path | None, members: int, tick_time_ms: int) -> None:
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    server: EmbeddedZooKeeper | EmbeddedEnsemble
    if members == 1:
        server = EmbeddedZooKeeper(port=port or None, data_dir=data_dir, tick_time_ms=tick_time_ms)
    else:
        ports = range(port, port + members) if port else None
        server = EmbeddedEnsemble(members, ports=ports, data_dir=data_dir, tick_time_ms=tick_time_ms)
    try:
        with server:
            print(f"ZooKeeper serves at {server.connect_string}", flush=True)
            print(f"data in {data_dir or 'a temporary folder'}; Ctrl-C stops it", flush=True)
            while server.is_running:
                time.sleep(_LOOK_AGAIN_S)
            servers = server.members if isinstance(server, EmbeddedEnsemble) else [server]
            last_words = "\n".join(each.last_lines() for each in servers if not each.is_running)
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
