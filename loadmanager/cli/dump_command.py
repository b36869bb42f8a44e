"""`loadmanager dump`: print the inputs of decisions about a cluster as a line of JSON for `loadmanager decide`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from loadmanager.cli.exit_codes import EXIT_FAILURE, fail
from loadmanager.cli.service_runner import existing_store, store_command
from loadmanager.cli.text.text_tables import write_lines
from loadmanager.config.node_settings import Settings
from loadmanager.errors import ForeignStoreError, InvalidRecordError
from loadmanager.lab.decide.cluster_dump import collect_cluster
from loadmanager.lab.decide.pulsar_dump import collect_pulsar
from loadmanager.lab.decide.record_collector import Collected
from loadmanager.store.pulsar_detection import find_pulsar
from loadmanager.util import clock
from loadmanager.wire.dump_line import encode


def dump(
    metadata_store_url: Annotated[
        str | None, typer.Option(help="ZooKeeper and chroot, zk:host:port/chroot; default: as configured.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of a node; see config/loadmanager.yaml.")] = None,
    pulsar: Annotated[bool, typer.Option("--pulsar", help="Read the ZooKeeper of a Pulsar.")] = False,  # noqa: FBT002 - a flag
    cluster: Annotated[
        str | None, typer.Option(help="With --pulsar: the cluster, for its isolation policies and failure domains.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Append the line to this file instead of printing it.")] = None,
) -> None:
    """Print the state of a cluster in its metadata store as a line of JSON. Nothing is changed.

    Unreadable records are left out, and named on standard error.
    """
    try:
        with store_command(config, metadata_store_url) as settings:
            collected = asyncio.run(_collect_pulsar(settings, cluster) if pulsar else _collect(settings))
        line = encode(collected.finish())
    except InvalidRecordError as error:
        fail(str(error), EXIT_FAILURE)
    for fault in collected.faults:
        print(f"left out: {fault}", file=sys.stderr)
    _write(line, output)


async def _collect_pulsar(settings: Settings, cluster: str | None) -> Collected:
    async with existing_store(settings) as store:
        return await collect_pulsar(store, clock.now_ms(), cluster)


async def _collect(settings: Settings) -> Collected:
    async with existing_store(settings) as store:
        znode = await find_pulsar(store)
        if znode is not None:
            raise ForeignStoreError(
                f"metadataStoreUrl {settings.metadata_store_url}: this is a Pulsar's metadata ({znode}):"
                " use --pulsar to read it"
            )
        return await collect_cluster(store, clock.now_ms(), settings)


def _write(line: str, output: Path | None) -> None:
    if output is None:
        write_lines([line])
        return
    try:
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        fail(f"{output}: {error.strerror}", EXIT_FAILURE)
