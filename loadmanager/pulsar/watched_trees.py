"""The trees of Pulsar's metadata that are watched, and what of them is read when something changed.

what changed                              what is read
------------                              ------------
`EVERYTHING`, or a tree by its own name   of that tree all that is there now, and all that was known of it
a record                                  that record
a folder, or what is none of ours         nothing: what comes and goes in a folder says so itself
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from loadmanager.core.domain.parts import in_parts
from loadmanager.lab.decide.pulsar_dump import names_in_clusters, names_of_bundles
from loadmanager.lab.decide.record_collector import walk
from loadmanager.pulsar.pulsar_znodes import path_of, record_at
from loadmanager.pulsar.read_only_store import ReadOnlyStore
from loadmanager.store import paths
from loadmanager.store.metadata_store import Znode
from loadmanager.store.pulsar_paths import (
    CLUSTERS,
    DYNAMIC_CONFIGURATION,
    FLAGS,
    LOCAL_POLICIES,
    OWNERSHIP,
    READ_ONLY,
)

EVERYTHING = "/"
WATCHED = (paths.BROKERS, OWNERSHIP, LOCAL_POLICIES, CLUSTERS, DYNAMIC_CONFIGURATION, paths.LEADER, FLAGS)

_AT_A_TIME = 10_000

Records = Mapping[str, Mapping[str, Znode | None]]
"""By tree and by what each is about, the znodes that were read; None for one that is not there."""


class Trees:
    """Reads records. `known` gives the names of those that are known of a tree."""

    def __init__(self, store: ReadOnlyStore, known: Callable[[str], Iterable[str]]) -> None:
        self._store = store
        self._known = known

    async def read(self, changed: set[str]) -> Records:
        """Read all that these paths stand for; raises `StoreError`."""
        found = set(changed)
        for root in WATCHED if EVERYTHING in changed else changed.intersection(WATCHED):
            found |= {path_of(root, name) for name in [*await self._names(root), *self._known(root)]}
        read = await self._read(found)
        below = await self._find_below_places(read[LOCAL_POLICIES])
        read[LOCAL_POLICIES] |= (await self._read(below))[LOCAL_POLICIES]
        return read

    async def _names(self, root: str) -> list[str]:
        """What there is in a tree, or may be."""
        if root == paths.BROKERS:
            return await self._store.children(root)
        if root == OWNERSHIP:
            return await names_of_bundles(self._store, root)
        if root == LOCAL_POLICIES:
            return await walk(self._store, root, 2)
        return [READ_ONLY] if root == FLAGS else [root]

    async def _find_below_places(self, policies: Mapping[str, Znode | None]) -> set[str]:
        """What is below empty znodes of local policies: namespaces of Pulsar's first form, by their clusters."""
        places = [name for name, znode in policies.items() if znode is not None and not znode.data]
        names = await names_in_clusters(self._store, LOCAL_POLICIES, places)
        return {path_of(LOCAL_POLICIES, name) for name in names if name not in policies}

    async def _read(self, found: set[str]) -> dict[str, dict[str, Znode | None]]:
        """The records at these paths; so many at a time that nobody is held up for long."""
        read: dict[str, dict[str, Znode | None]] = defaultdict(dict)
        for part in in_parts(sorted(found), _AT_A_TIME):
            records = [record for path in part if (record := record_at(path)) is not None]
            znodes = await self._store.get_many([path_of(root, name) for root, name in records])
            for (root, name), znode in zip(records, znodes, strict=True):
                read[root][name] = znode
        return read
