"""The history that Pulsar's leader has of bundles, to begin with: read once, in the background, so many at a time.

Source: `/loadbalance/bundle-data`, a znode for each bundle that Pulsar's leader has written. From then on the model
makes averages of its own from the reports, as Pulsar's leader does. Znodes are asked for by the names of the bundles:
to list them first would be a request for each namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.errors import InvalidRecordError, StoreError
from loadmanager.pulsar.pulsar_znodes import decode_averages
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode

log = structlog.get_logger(__name__)

_AT_A_TIME = 2_000
_PAUSE_S = 1.0


class Seeding:
    """`is_complete` is set once every bundle was asked for."""

    def __init__(self, store: ReadOnlyStore, model: ClusterModel) -> None:
        self._store = store
        self._model = model
        self.is_complete = asyncio.Event()

    async def run(self, bundles: Sequence[str]) -> None:
        """Read the history of these; what cannot be read is said in the log, and left out."""
        begin = 0
        while begin < len(bundles):
            named = [paths.bundle_data(name) for name in bundles[begin : begin + _AT_A_TIME]]
            try:
                znodes = await self._store.get_many(named)
            except StoreError as error:
                log.debug("seeding_waits_for_store", error=str(error))
            else:
                self._seed(znodes)
                begin += _AT_A_TIME
            await asyncio.sleep(_PAUSE_S)
        self.is_complete.set()

    def _seed(self, znodes: Sequence[Znode | None]) -> None:
        for znode in znodes:
            if znode is None or not znode.data:
                continue
            try:
                averages = decode_averages(znode.data, znode.path)
            except InvalidRecordError as error:
                log.warning("bundle_data_rejected", error=str(error))
                continue
            self._model.seed_bundle(znode.path.removeprefix(f"{paths.BUNDLE_DATA}/"), averages)
