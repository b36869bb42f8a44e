"""Export of the operator config from ZooKeeper, for `loadmanager admin export`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.cli.service_runner import store_of
from loadmanager.config import Settings, load_settings
from loadmanager.errors import ConfigurationError, ForeignStoreError, StoreError
from loadmanager.store.config_reader import ConfigReader
from loadmanager.store.pulsar_detection import find_pulsar
from loadmanager.util.logging import configure_logging
from loadmanager.wire.operator_config import StoredOperatorConfig


def read_operator_config(
    config: Path | None, metadata_store_url: str | None
) -> tuple[str, StoredOperatorConfig, list[str]]:
    """Return the ZooKeeper's URL, the operator config in it, and faults of unreadable records. The process ends when
    ZooKeeper cannot be reached.
    """
    configure_logging(json_lines=False, level="error")
    url = metadata_store_url or ""
    try:
        settings = load_settings(Settings, config)
        url = url or settings.metadata_store_url
        return url, *asyncio.run(_read(settings, url))
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)
    except StoreError as error:
        fail(f"metadataStoreUrl {url}: {error}", EXIT_FAILURE)


async def _read(settings: Settings, url: str) -> tuple[StoredOperatorConfig, list[str]]:
    store = store_of(url, settings, create_chroot=False)
    await store.start()
    try:
        found = await find_pulsar(store)
        if found is not None:
            raise ForeignStoreError(f"metadataStoreUrl {url}: this is a Pulsar's metadata ({found})")
        reader = ConfigReader(store)
        return await reader.read(), reader.faults
    finally:
        await store.close()
