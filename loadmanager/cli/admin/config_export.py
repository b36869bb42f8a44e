"""Export of the operator config from ZooKeeper, for `loadmanager admin export`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeVar

from loadmanager.cli.service_runner import existing_store, store_command
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import InvalidNameError, NamespaceName
from loadmanager.errors import ForeignStoreError, InvalidRecordError
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.pulsar_detection import find_pulsar
from loadmanager.store.znode_codec import decode
from loadmanager.wire.control_records import decode_controls
from loadmanager.wire.learned_records import decode_learned
from loadmanager.wire.operator_config import StoredOperatorConfig, standing
from loadmanager.wire.policy_records import decode_domains, decode_groups, decode_isolation
from loadmanager.wire.store_records import decode_configuration, decode_namespace

_Value = TypeVar("_Value")


@dataclass(slots=True)
class ConfigReader:
    """Reads operator config. `faults` lists the unreadable records, whose contents are missing."""

    store: MetadataStore
    faults: list[str] = field(default_factory=list)

    async def read(self) -> StoredOperatorConfig:
        """Read all records, one after the other and not atomically. Raises `StoreError`."""
        controls = await self._one(paths.CONTROLS, decode_controls)
        return StoredOperatorConfig(
            await self._namespaces(),
            await self._one(paths.ISOLATION, decode_isolation),
            await self._one(paths.FAILURE_DOMAINS, decode_domains),
            await self._one(paths.ANTI_AFFINITY, decode_groups),
            None if controls is None else standing(controls),
            await self._one(paths.CONFIGURATION, decode_configuration),
            await self._one(paths.LEARNED, decode_learned),
        )

    async def _one(self, path: str, read: Callable[[bytes, str], _Value]) -> _Value | None:
        """Return the decoded znode, an empty value if it does not exist, or None if it is unreadable."""
        znode = await self.store.get(path)
        try:
            return read(b"{}" if znode is None else decode(znode.data, path), path)
        except InvalidRecordError as error:
            self.faults.append(str(error))
            return None

    async def _namespaces(self) -> dict[str, NamespaceBundles]:
        tenants = await self.store.children(paths.NAMESPACES)
        below = await self.store.children_many([paths.namespace(tenant) for tenant in tenants])
        names = [
            *chain(*([f"{tenant}/{each}" for each in found] for tenant, found in zip(tenants, below, strict=True)))
        ]
        found: dict[str, NamespaceBundles] = {}
        for name, znode in zip(names, await self.store.get_many([*map(paths.namespace, names)]), strict=True):
            path = paths.namespace(name)
            if znode is None:
                continue
            try:
                found[name] = decode_namespace(NamespaceName.parse(name), decode(znode.data, path), path).bundles
            except InvalidRecordError as error:
                self.faults.append(str(error))
            except InvalidNameError as error:
                self.faults.append(f"{path}: {error}")
        return found


def read_operator_config(
    config: Path | None, metadata_store_url: str | None
) -> tuple[str, StoredOperatorConfig, list[str]]:
    """Return the URL of the ZooKeeper, its operator config, and the faults of unreadable records. The process ends if
    ZooKeeper cannot be reached.
    """
    with store_command(config, metadata_store_url) as settings:
        return settings.metadata_store_url, *asyncio.run(_read(settings))


async def _read(settings: Settings) -> tuple[StoredOperatorConfig, list[str]]:
    async with existing_store(settings) as store:
        found = await find_pulsar(store)
        if found is not None:
            raise ForeignStoreError(
                f"metadataStoreUrl {settings.metadata_store_url}: this is a Pulsar's metadata ({found})"
            )
        reader = ConfigReader(store)
        return await reader.read(), reader.faults
