"""Processes that may move a Pulsar's bundles, with all that takes a term, beside a Pulsar that is a table of owners.

For virtual time: nothing leaves the process, and what takes time takes as long as a test draws.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from support.memory_store import MemoryStore
from support.virtual_loop import network

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
)
from loadmanager.core.domain.reasons import OwnershipReason, Reason
from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import LoadManagerError
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.candidate import Candidate, MetricSamples
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.leader.planning.churn_memory import Churn
from loadmanager.net.http_client import NOBODY
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.move_log import MoveLog, Recovery
from loadmanager.pulsar.pulsar_ledger import PulsarLedger
from loadmanager.pulsar.pulsar_owners import OwnerFinder, PulsarOwners
from loadmanager.pulsar.rest_call import PulsarRefusedError
from loadmanager.store import paths

BROKERS = tuple(Registration(BrokerId(f"{letter}:8080"), number) for number, letter in enumerate("abc", 1))
NAMESPACE = NamespaceName.parse("t/ns")
CUT = NamespaceBundles(equal_boundaries(4), HashFunction.CRC32)
NAMES = [BundleName(NAMESPACE, CUT.range_at(index)) for index in range(len(CUT))]


@dataclass(slots=True)
class Call:
    """Request of a process to Pulsar, with its time and term."""

    actor: Actor
    epoch: int
    at_s: float


@dataclass(slots=True)
class TableOfOwners:
    """A Pulsar. `delay_s` is asked how long each way of a request takes; `places` where a bundle goes that is looked
    up, given where it is to go; None: not now.
    """

    delay_s: Callable[[], float]
    places: Callable[[BrokerId | None], BrokerId | None]
    owners: dict[BundleName, Registration | None] = field(default_factory=lambda: dict.fromkeys(NAMES, BROKERS[0]))
    affinity: dict[BundleName, BrokerId] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    late: set[BundleName] = field(default_factory=set)
    """Bundles whose unload arrived when the term was over in which it was sent."""
    watched_by: list[Callable[[BundleName, Registration | None], None]] = field(default_factory=list)

    def unload(self, name: BundleName, destination: BrokerId | None) -> None:
        if destination is not None:
            self.affinity[name] = destination
        self._put(name, None)

    def look_up(self, name: BundleName) -> None:
        if self.owners[name] is None:
            broker = self.places(self.affinity.pop(name, None))
            if broker is None:
                raise PulsarRefusedError("not now", 503)
            self._put(name, next(each for each in BROKERS if each.broker == broker))

    def _put(self, name: BundleName, owner: Registration | None) -> None:
        self.owners[name] = owner
        for watch in self.watched_by:
            watch(name, owner)


class Eyes:
    """View of one process: an `OwnerSource` and a `MoveClient`."""

    def __init__(self, pulsar: TableOfOwners, actor: Actor) -> None:
        self._pulsar = pulsar
        self._actor = actor
        self._on_their_way: list[asyncio.Task[None]] = []

    @property
    def owners(self) -> Mapping[str, Registration | None]:
        return {str(name): owner for name, owner in self._pulsar.owners.items()}

    async def read_owner(self, bundle: BundleName, *_: BrokerId | None) -> Registration | None:
        await asyncio.sleep(self._pulsar.delay_s())
        return self._pulsar.owners[bundle]

    async def read_bundles(self, namespace: str) -> None:
        """Do nothing: no bundle is split here."""

    async def unload(self, bundle: BundleName, destination: BrokerId | None) -> None:
        epoch = self._actor.election.get_term().epoch

        def arrive() -> None:
            term = self._actor.election.term
            if term is None or term.epoch != epoch:
                self._pulsar.late.add(bundle)
            self._pulsar.unload(bundle, destination)

        await self._ask(arrive)

    async def look_up(self, bundle: BundleName) -> BrokerId | None:
        await self._ask(lambda: self._pulsar.look_up(bundle))
        owner = self._pulsar.owners[bundle]
        return None if owner is None else owner.broker

    async def _ask(self, do: Callable[[], None]) -> None:
        """Deliver a request that is in flight, even if its sender has ended."""
        term = self._actor.election.term
        assert term is not None, "nobody asks who does not lead"
        self._pulsar.calls.append(Call(self._actor, term.epoch, network().now_s))
        self._on_their_way.append(asyncio.create_task(self._arrive(do)))
        await asyncio.shield(self._on_their_way[-1])
        await asyncio.sleep(self._pulsar.delay_s())

    async def _arrive(self, do: Callable[[], None]) -> None:
        await asyncio.sleep(self._pulsar.delay_s())
        do()


class Actor(Candidate):
    """One process. While it leads, it moves the bundles in `wants` one after the other, without a pause."""

    def __init__(
        self,
        pulsar: TableOfOwners,
        store: MemoryStore,
        number: int,
        wants: Callable[[], tuple[BundleName, Registration]],
    ) -> None:
        self._elected_mirror = ClusterMirror()
        port = 1_000 + number
        network().servers[port] = asyncio.Protocol
        super().__init__(store, self._elected_mirror, f"beside-{number}", f"http://127.0.0.1:{port}", 0.0, NOBODY)
        self.mirror = ClusterMirror()
        for broker in BROKERS:
            self.mirror.registrations[broker.broker] = broker
        unowned = NamespaceState.unowned(NAMESPACE, CUT)
        self.mirror.put_namespace(NamespaceEntry(unowned, version=0, czxid=0, digest=0))
        for name, owner in pulsar.owners.items():
            self._see(name, owner)
        self._wants = wants
        pulsar.watched_by.append(self._see)
        self.is_moving = True
        eyes, decision_log = Eyes(pulsar, self), DecisionLog(100)
        live = LiveSettings(settings_of({"namespaceBundleUnloadingTimeoutMs": 10_000}, ""))
        self.intake = MirrorIntake(store, self._elected_mirror, live, self._on_told)
        self.move_log = MoveLog(FencedRecord(store, self.election, paths.PULSAR_MOVES))
        owned = OwnerFinder(eyes, eyes, self.election)
        self.recovery = Recovery(self.move_log, owned, decision_log)
        self.ledger = PulsarLedger(
            self.mirror, eyes, owned, self.election, lambda _bundle, _released: None, self.move_log, decision_log
        )
        self.executor = Executor(
            self.mirror,
            self.ledger,
            PulsarOwners(eyes, eyes, self.election),
            decision_log,
            live,
            cast("Churn", Unnoticed()),
        )

    async def begin(self) -> None:
        self._follow_session()
        self._spawn(self.intake.run(), "intake")
        await self.intake.settled()
        self._stand()

    async def end(self) -> None:
        await self._leave()
        await self.executor.abort()

    def _on_told(self) -> None:
        self.mirror.epoch = self._elected_mirror.epoch
        self._store_changed()

    def _see(self, name: BundleName, owner: Registration | None) -> None:
        """Update the mirror of a Pulsar, without the bundles that a move of ours has under way."""
        entry, index = self.mirror.bundle(name)
        before = entry.state.ownerships[index]
        if before.state is not OwnershipState.RELEASING:
            state = OwnershipState.FREE if owner is None else OwnershipState.OWNED
            after = Ownership(state, owner, version=before.version + 1)
            self.mirror.put_namespace(replace(entry, state=entry.state.with_ownerships({index: after})))

    def scrape(self) -> MetricSamples:
        raise AssertionError("no test reads the metrics of an actor")

    async def _prepare(self, term: Term) -> None:
        del term
        await self.move_log.take_over()

    def _begin_work(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._move())

    async def _move(self) -> None:
        await self.recovery.run(self.election.get_term().epoch)
        while self.is_moving:
            name, to = self._wants()
            with contextlib.suppress(LoadManagerError, IllegalTransitionError):
                await self.executor.unload(name, to, OwnershipReason.ADMIN_UNLOAD)
            await asyncio.sleep(0.5)

    def _note_end(self, reason: str) -> None: ...

    async def _put_down(self, error: Exception) -> None:
        del error
        await self.executor.abort()
        self.ledger.put_down()


class Unnoticed:
    """Ignores unloads."""

    def began(self, name: BundleName, released: Ownership) -> None: ...

    def kept(self, name: BundleName, released: Ownership, reason: Reason, error: str) -> None: ...

    def moved(self, name: BundleName, released: Ownership, done: Ownership) -> None: ...

    def ended(self, name: BundleName, released: Ownership) -> None: ...
