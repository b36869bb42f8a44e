"""Export of the operator config from ZooKeeper, for `loadmanager admin export`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loadmanager.cli.service_runner import existing_store, store_command
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.names import NamespaceName
from loadmanager.errors import ForeignStoreError
from loadmanager.lab.decide.record_collector import Collected, walk
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.pulsar_detection import find_pulsar
from loadmanager.wire.control_records import decode_controls, standing_data_of
from loadmanager.wire.learned_records import decode_learned
from loadmanager.wire.operator_config import NamespaceShape, OperatorConfigDocument
from loadmanager.wire.policy_records import decode_domains, decode_groups, decode_isolation
from loadmanager.wire.store_records import decode_configuration, decode_namespace


def read_operator_config(
    config: Path | None, metadata_store_url: str | None
) -> tuple[str, OperatorConfigDocument, list[str]]:
    """Return the URL of the ZooKeeper, its operator config, and the faults of unreadable records. The process ends if
    ZooKeeper cannot be reached.
    """
    with store_command(config, metadata_store_url) as settings:
        return settings.metadata_store_url, *asyncio.run(_read(settings))


async def _read(settings: Settings) -> tuple[OperatorConfigDocument, list[str]]:
    async with existing_store(settings) as store:
        found = await find_pulsar(store)
        if found is not None:
            raise ForeignStoreError(
                f"metadataStoreUrl {settings.metadata_store_url}: this is a Pulsar's metadata ({found})"
            )
        collected = Collected()
        return await _read_records(store, collected), collected.faults


async def _read_records(store: MetadataStore, collected: Collected) -> OperatorConfigDocument:
    """Read all records, one after the other and not atomically; an unreadable one is missing. Raises `StoreError`."""
    controls = await collected.read_one(store, paths.CONTROLS, decode_controls)
    named = {name: paths.namespace(name) for name in await walk(store, paths.NAMESPACES, 2)}
    states = collected.read(
        store, named, lambda name, text, path: decode_namespace(NamespaceName.parse(name), text, path)
    )
    return OperatorConfigDocument(
        namespaces={name: NamespaceShape.of(state.bundles) async for name, _, _, state in states},
        isolation_policies=await collected.read_one(store, paths.ISOLATION, decode_isolation),
        failure_domains=await collected.read_one(store, paths.FAILURE_DOMAINS, decode_domains),
        anti_affinity_groups=await collected.read_one(store, paths.ANTI_AFFINITY, decode_groups),
        controls=None if controls is None else standing_data_of(controls),
        configuration=await collected.read_one(store, paths.CONFIGURATION, decode_configuration),
        learned=await collected.read_one(store, paths.LEARNED, decode_learned),
    )
