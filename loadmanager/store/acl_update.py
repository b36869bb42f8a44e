"""Access lists of what exists: whether they are as they should be, and making them so.

A secure cluster and an open one look the same to who may do everything; `refuse_strangers` finds, at the start of a
process, that it is taken for somebody else than it is meant to be, before its writes fail one after the other.
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
    """What a process needs of the znodes."""

    NODE = enum.auto()
    AGENT = enum.auto()


async def refuse_strangers(store: ZooKeeperStore, process: AclProcess) -> None:
    """Raise `ConfigurationError` if what is there belongs to others than the configuration says, and warn when it is
    open.
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
    """Of how many znodes it is right, changed (or would be, in a dry run), and why of which it could not be."""

    right: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    """By what they had and get."""
    failed: dict[str, str] = field(default_factory=dict)


async def secure(store: ZooKeeperStore, acls: Acls, *, do: bool, progress: Callable[[int], None]) -> AclOutcome:
    """Give each znode of ours the list that it should have, folders before what is in them; without `do` only look."""
    outcome = AclOutcome()
    seen = 0
    async for batch in _walk(store, outcome):
        await asyncio.gather(*(_secure_one(store, path, acls.of(path), outcome, do=do) for path in batch))
        seen += len(batch)
        progress(seen)
    return outcome


async def _walk(store: ZooKeeperStore, outcome: AclOutcome) -> AsyncIterator[list[str]]:
    """All paths of ours, some at a time, folders before what is in them. Without a chroot the root is not ours."""
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
    """Why nothing should be secured: it would be closed to ourselves. None when it would not."""
    who = await store.who_am_i()
    if not set(who).isdisjoint(nodes):
        return None
    known_as = ", ".join(f"{scheme}:{name}" for scheme, name in who) or "nobody"
    return f"the servers know us as {known_as}, which is none of metadataStoreNodeIds"
