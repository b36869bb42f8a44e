"""ACL update: compares the ACLs of existing znodes with the configured ones, and sets them.

A process with all permissions cannot tell a secured cluster from an open one. `refuse_strangers` checks at the start
that the servers know a process by its configured identity, before its writes fail one by one.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import chain

import structlog
from kazoo.security import ACL, Id

from loadmanager.errors import AccessDeniedError, ConfigurationError, StoreError
from loadmanager.store import paths
from loadmanager.store.zookeeper_acl import Acls, grants_all, render
from loadmanager.store.zookeeper_store import ZooKeeperStore

log = structlog.get_logger(__name__)

_AT_A_TIME = 500


class AclProcess(enum.Enum):
    """Access that a process needs."""

    NODE = enum.auto()
    AGENT = enum.auto()


async def refuse_strangers(store: ZooKeeperStore, process: AclProcess) -> None:
    """Raise `ConfigurationError` if the existing znodes belong to other identities than configured, and warn if they
    are open.
    """
    acl = await store.get_acl(paths.ROOT)
    if acl is None:
        return
    acls = store.access.acls
    if grants_all(acl, ()):
        if not acls.are_open:
            log.warning("zookeeper_is_open", path=paths.ROOT, remedy="run `loadmanager zookeeper secure`")
        return
    who = await store.who_am_i()
    if process is AclProcess.NODE and not grants_all(acl, who):
        raise ConfigurationError(
            f"{paths.ROOT} belongs to others ({render(acl)}), and a node has to write there; we are {store.access.who}:"
            " see metadataStoreCredentials"
        )
    if process is AclProcess.AGENT and not grants_all(acl, acls.nodes):
        raise ConfigurationError(
            f"{paths.ROOT} belongs to others ({render(acl)}) than metadataStoreNodeIds says: nodes could not read what"
            " is registered here"
        )


@dataclass(slots=True)
class AclOutcome:
    """Result of an update: the numbers of correct znodes and of changed ones (in a dry run, those to change), and the
    failures.
    """

    right: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    """Number of changed znodes, by old and new ACL."""
    failed: dict[str, str] = field(default_factory=dict)


async def secure(store: ZooKeeperStore, acls: Acls, *, do: bool, progress: Callable[[int], None]) -> AclOutcome:
    """Set the configured ACL of each of our znodes, parents first; without `do` only compare."""
    outcome = AclOutcome()
    seen = 0
    async for batch in _walk(store, outcome):
        await asyncio.gather(*(_secure_one(store, path, acls.of(path), outcome, do=do) for path in batch))
        seen += len(batch)
        progress(seen)
    return outcome


async def _walk(store: ZooKeeperStore, outcome: AclOutcome) -> AsyncIterator[list[str]]:
    """Yield all our paths in batches, parents first. Without a chroot the root is not ours."""
    level = ["/"] if store.has_chroot else [paths.ROOT]
    while level:
        below: list[str] = []
        for begin in range(0, len(level), _AT_A_TIME):
            batch = level[begin : begin + _AT_A_TIME]
            yield batch
            found = await asyncio.gather(*(_children(store, path, outcome) for path in batch))
            below += chain.from_iterable(found)
        level = below


async def _children(store: ZooKeeperStore, path: str, outcome: AclOutcome) -> list[str]:
    try:
        names = await store.children(path)
    except AccessDeniedError as error:
        outcome.failed[path] = str(error)
        return []
    return [f"{path.removesuffix('/')}/{name}" for name in names]


async def _secure_one(store: ZooKeeperStore, path: str, wanted: list[ACL], outcome: AclOutcome, *, do: bool) -> None:
    try:
        acl = await store.get_acl(path)
        if acl is None:
            return
        if set(acl) == set(wanted):
            outcome.right += 1
        elif not do or await store.set_acl(path, wanted):
            outcome.changed[f"{render(acl)} -> {render(wanted)}"] += 1
    except StoreError as error:
        outcome.failed[path] = str(error)


async def why_locked_out(store: ZooKeeperStore, nodes: tuple[Id, ...]) -> str | None:
    """Return the reason if the update would lock us out; None otherwise."""
    who = await store.who_am_i()
    if not set(who).isdisjoint(nodes):
        return None
    known_as = ", ".join(f"{scheme}:{name}" for scheme, name in who) or "nobody"
    return f"the servers know us as {known_as}, which is none of metadataStoreNodeIds"
