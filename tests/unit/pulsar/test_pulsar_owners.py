from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from support.delays import a_memory_cluster
from support.memory_store import MemoryStore

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    abandon,
    complete,
    release,
)
from loadmanager.core.protocol.guardrails import MoveHistory, PendingMove
from loadmanager.core.protocol.leadership import Term
from loadmanager.core.protocol.move_machine import StaleStepError
from loadmanager.errors import (
    InvalidRecordError,
    NamespaceNotFoundError,
    NotLeaderError,
    OutcomeUnknownError,
    StaleEpochError,
    StoreUnavailableError,
)
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.execution.agent_calls import OwnerRefusal
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.move_log import MoveLog
from loadmanager.pulsar.pulsar_ledger import PulsarLedger
from loadmanager.pulsar.pulsar_owners import OwnerFinder, PulsarOwners
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Put
from loadmanager.wire.pulsar_records import decode_move_history

A, B, C = (Registration(BrokerId(f"{letter}:8080"), number) for number, letter in enumerate("abc", 1))
NAME = BundleName.parse("t/ns/0x00000000_0xffffffff")
RELEASED = Ownership(OwnershipState.RELEASING, A, B, 2, epoch=1, since_ms=1_000, reason="admin_unload")

Seen = Registration | Exception | None


@dataclass
class Scripted:
    """A Pulsar that is seen as a test says, one after the other and the last for ever; calls are answered so too."""

    seen: list[Seen]
    answers: list[Exception | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    is_leading: bool = True
    on_call: Callable[[], None] = lambda: None
    is_deposed: bool = False
    on_read: Callable[[str], object] = lambda _namespace: None

    @property
    def owners(self) -> Mapping[str, Registration | None]:
        return {str(NAME): C}

    async def read_owner(self, _bundle: BundleName, *_near: BrokerId | None) -> Registration | None:
        seen = self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]
        if isinstance(seen, Exception):
            raise seen
        return seen

    async def read_bundles(self, namespace: str) -> None:
        self.on_read(namespace)

    async def unload(self, _bundle: BundleName, destination: BrokerId | None) -> None:
        self._call(f"unload to {destination}")

    async def look_up(self, _bundle: BundleName) -> BrokerId | None:
        self._call("look up")
        return None

    def _call(self, what: str) -> None:
        assert self.is_leading, "the term is looked at right before"
        self.asked.append(what)
        self.on_call()
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def get_term(self) -> Term:
        if not self.is_leading:
            raise NotLeaderError("this node does not lead")
        return Term(1, 0)

    def deposed(self) -> None:
        self.is_deposed = True


def owners(pulsar: Scripted) -> PulsarOwners:
    return PulsarOwners(pulsar, pulsar, pulsar)


GONE = PulsarUnreachableError("no answer", was_not_heard=True)
BUSY = PulsarRefusedError("busy", 503)
WRONG = PulsarRefusedError("wrong", 412)


@pytest.mark.parametrize(
    ("seen", "asked", "answers", "refusal"),
    [
        ([A, B], ["unload to b:8080"], [], None),
        ([A, None, B], ["unload to b:8080", "look up"], [], None),
        ([A, A, None, None, B], ["unload to b:8080", "look up"], [], None),
        ([None, None, B], ["unload to b:8080", "look up"], [], None),
        ([B], [], [], None),
        ([C], [], [], None),
        ([A, C], ["unload to b:8080"], [], None),
        ([A, None, C], ["unload to b:8080", "look up"], [], None),
        ([A, None, A], ["unload to b:8080", "look up"], [], None),
        ([A, None, None, None, B], ["unload to b:8080", "look up", "look up"], [None, BUSY], None),
        ([A, None, None, None, B], ["unload to b:8080", "look up", "look up"], [None, GONE], None),
        ([A, None], ["unload to b:8080", "look up"], [None, WRONG], OwnerRefusal("wrong", is_final=True)),
        ([A], ["unload to b:8080"], [WRONG], OwnerRefusal("wrong", is_final=True)),
        ([A], ["unload to b:8080"], [BUSY], OwnerRefusal("busy")),
        ([A], ["unload to b:8080"], [PulsarRefusedError("too many", 429)], OwnerRefusal("too many")),
        ([A], ["unload to b:8080"], [PulsarRefusedError("a fault", 500)], OwnerRefusal("a fault")),
        ([A], ["unload to b:8080"], [PulsarRefusedError("odd", 499)], OwnerRefusal("odd", is_final=True)),
        ([A], ["unload to b:8080"], [GONE], OwnerRefusal("no answer")),
        ([GONE], [], [], OwnerRefusal("no answer")),
        ([InvalidRecordError("no JSON")], [], [], OwnerRefusal("no JSON")),
    ],
)
async def test_requests_depend_on_the_observed_owner(
    monkeypatch: pytest.MonkeyPatch,
    seen: list[Seen],
    asked: list[str],
    answers: list[Exception | None],
    refusal: OwnerRefusal | None,
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.pulsar_owners._LOOK_AGAIN_S", 0.0)
    pulsar = Scripted(seen, answers)
    assert await owners(pulsar).ask(NAME, RELEASED, 60.0) == refusal
    assert pulsar.asked == asked


async def test_move_without_a_destination_ends_with_the_unload() -> None:
    pulsar = Scripted([A])
    assert await owners(pulsar).ask(NAME, RELEASED._replace(destination=None), 60.0) is None
    assert pulsar.asked == ["unload to None"]


async def test_move_that_never_arrives_fails_at_its_timeout() -> None:
    pulsar = Scripted([A])
    assert await owners(pulsar).ask(NAME, RELEASED, 0.0) == OwnerRefusal("after 0.0 s c:8080 has it", is_final=True)


@pytest.mark.parametrize("owner", [A, None])
async def test_nothing_is_requested_after_the_term(owner: Registration | None) -> None:
    pulsar = Scripted([owner], is_leading=False)
    with pytest.raises(NotLeaderError):
        await owners(pulsar).ask(NAME, RELEASED, 60.0)
    assert pulsar.asked == []


async def test_lookup_is_skipped_when_the_term_ended_after_the_unload() -> None:
    pulsar = Scripted([A, None])
    pulsar.on_call = lambda: setattr(pulsar, "is_leading", False)
    with pytest.raises(NotLeaderError):
        await owners(pulsar).ask(NAME, RELEASED, 60.0)
    assert pulsar.asked == ["unload to b:8080"]


# Who owns it in the end


@pytest.mark.parametrize(
    ("seen", "asked", "answers", "owner"),
    [
        ([B], [], [], B),
        ([None, B], ["look up"], [], B),
        ([None, None, B], ["look up", "look up"], [BUSY, None], B),
        ([None], ["look up"] * 3, [BUSY, GONE, WRONG], None),
        ([GONE, B], [], [], B),
        ([InvalidRecordError("no JSON"), B], [], [], B),
    ],
)
async def test_outcome_of_a_move_is_the_observed_owner(
    monkeypatch: pytest.MonkeyPatch,
    seen: list[Seen],
    asked: list[str],
    answers: list[Exception | None],
    owner: Registration | None,
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.pulsar_owners._AGAIN_S", 0.0)
    pulsar = Scripted(seen, answers)
    assert await OwnerFinder(pulsar, pulsar, pulsar).find(NAME) == owner
    assert pulsar.asked == asked


async def test_owner_search_ends_with_the_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.pulsar.pulsar_owners._AGAIN_S", 0.0)
    pulsar = Scripted([GONE])
    finding = asyncio.create_task(OwnerFinder(pulsar, pulsar, pulsar).find(NAME))
    await asyncio.sleep(0)
    pulsar.is_leading = False
    with pytest.raises(NotLeaderError):
        await finding


# What is written down


@dataclass
class Written:
    """A store with an epoch of 1, what is remembered, and a view with one bundle that A owns."""

    store: MemoryStore
    pulsar: Scripted
    move_log: MoveLog
    mirror: ClusterMirror
    ledger: PulsarLedger
    refuse: Callable[[str, Ownership], None] | None = None

    @classmethod
    async def begin(cls, *seen: Seen) -> Written:
        store = MemoryStore(a_memory_cluster())
        await store.start()
        await store.ensure_path(paths.EPOCH)
        await store.commit([Put(paths.EPOCH, b"")])
        pulsar = Scripted(list(seen) or [B])
        pulsar.get_term = lambda: Term(1, store.session_id)  # type: ignore[method-assign]
        move_log = MoveLog(FencedRecord(store, pulsar, paths.PULSAR_MOVES))
        await move_log.take_over()
        mirror = ClusterMirror()
        cut = NamespaceBundles(equal_boundaries(1), HashFunction.CRC32)
        owned = Ownership(OwnershipState.OWNED, A, version=1)
        state = NamespaceState(NamespaceName.parse("t/ns"), cut, (owned,))
        mirror.put_namespace(NamespaceEntry(state, version=0, czxid=0, digest=0))
        found = OwnerFinder(pulsar, pulsar, pulsar)
        ledger = PulsarLedger(mirror, pulsar, found, pulsar, lambda *_: None, move_log, DecisionLog(10))
        return cls(store, pulsar, move_log, mirror, ledger)

    async def apply(self, transition: object, reason: str = "drain") -> Ownership:
        return await self.ledger.apply("t/ns", NAME.range, transition, reason)  # type: ignore[arg-type]

    async def release(self) -> Ownership:
        return await self.apply(lambda current, stamp: release(current, B, stamp))

    async def on_paper(self) -> MoveHistory:
        znode = await self.store.get(paths.PULSAR_MOVES)
        return MoveHistory() if znode is None else decode_move_history(znode.data, znode.path)


async def test_move_log_is_written_before_release_and_after_completion() -> None:
    written = await Written.begin()
    released = await written.release()
    assert written.mirror.get_ownership(NAME) == released
    move = (await written.on_paper()).in_progress[str(NAME)]
    assert (move.source, move.destination, move.is_own) == (A.broker, B.broker, False)
    done = await written.apply(complete)
    assert (done.state, done.owner, done.version) == (OwnershipState.OWNED, B, 3)
    assert written.mirror.get_ownership(NAME) == done
    assert (await written.on_paper()).in_progress == {}


@pytest.mark.parametrize("end", [complete, abandon])
async def test_mirror_has_the_observed_owner_after_a_miss(end: object) -> None:
    written = await Written.begin(C)
    await written.release()
    done = await written.apply(end)
    assert (done.state, done.owner, done.destination) == (OwnershipState.OWNED, C, None)
    assert ((await written.on_paper()).failures, written.move_log.misses) == (0, 1)


@pytest.mark.parametrize(("reason", "failures"), [("unload_cancelled", 0), ("unload_failed", 1)])
async def test_cancelled_move_is_no_failure(reason: str, failures: int) -> None:
    written = await Written.begin(A)
    await written.release()
    await written.apply(abandon, reason)
    assert (await written.on_paper()).failures == failures


@pytest.mark.parametrize(("end", "failures", "misses"), [(complete, 0, 1), (abandon, 1, 0)])
async def test_bundle_at_its_source_is_a_miss_only_after_its_unload(end: object, failures: int, misses: int) -> None:
    written = await Written.begin(A)
    await written.release()
    await written.apply(end, "unload_failed")
    assert ((await written.on_paper()).failures, written.move_log.misses) == (failures, misses)


async def test_bundle_that_moved_meanwhile_is_not_released() -> None:
    written = await Written.begin()
    entry = written.mirror.get_namespace("t/ns")
    moved = entry.state.ownerships[0]._replace(owner=C, version=2)
    releasing = asyncio.create_task(written.release())
    await asyncio.sleep(0)
    written.mirror.put_namespace(replace(entry, state=entry.state.with_ownerships({0: moved})))
    with pytest.raises(StaleStepError, match="c:8080"):
        await releasing
    assert written.mirror.get_ownership(NAME) == moved
    assert (await written.on_paper()).in_progress == written.move_log.history.in_progress == {}


async def test_bundle_cannot_start_two_moves_at_once() -> None:
    written = await Written.begin()
    first = asyncio.create_task(written.release())
    await asyncio.sleep(0)
    with pytest.raises(IllegalTransitionError, match="about to begin already"):
        await written.release()
    assert (await first).state is OwnershipState.RELEASING
    assert (await written.on_paper()).in_progress.keys() == {str(NAME)}


@pytest.mark.parametrize("when", ["before its end", "while its owner is looked for"])
async def test_missing_bundle_is_forgotten_without_a_failure(when: str) -> None:
    written = await Written.begin(None, B)
    await written.release()
    if when == "before its end":
        written.mirror.drop_namespace("t/ns")
    else:
        written.pulsar.on_call = lambda: written.mirror.drop_namespace("t/ns")
    with pytest.raises(NamespaceNotFoundError):
        await written.apply(complete)
    assert (await written.on_paper()).in_progress == {}
    assert written.move_log.history.failures == 0


async def test_bundles_are_reread_before_a_missing_owner_counts_as_failure() -> None:
    written = await Written.begin(None)
    await written.release()
    written.pulsar.on_read = written.mirror.drop_namespace
    with pytest.raises(NamespaceNotFoundError):
        await written.apply(abandon, "unload_failed")
    assert ((await written.on_paper()).in_progress, written.move_log.history.failures) == ({}, 0)


async def test_end_of_term_updates_the_mirror_and_keeps_the_open_move() -> None:
    written = await Written.begin()
    await written.release()
    written.ledger.put_down()
    seen = written.mirror.get_ownership(NAME)
    assert (seen.state, seen.owner, seen.version) == (OwnershipState.OWNED, C, 3)
    assert (await written.on_paper()).in_progress.keys() == {str(NAME)}
    written.ledger.put_down()
    assert written.mirror.get_ownership(NAME) == seen, "once"


async def test_deposed_process_writes_and_starts_nothing() -> None:
    written = await Written.begin()
    await written.store.commit([Put(paths.EPOCH, b"another")])
    with pytest.raises(StaleEpochError):
        await written.release()
    assert written.pulsar.is_deposed
    assert written.mirror.get_ownership(NAME).state is OwnershipState.OWNED
    assert written.move_log.history.in_progress == {}
    assert await written.store.get(paths.PULSAR_MOVES) is None


async def test_move_with_an_unknown_write_outcome_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.move_log._AGAIN_S", 0.0)
    written = await Written.begin()
    commit, lost = written.store.commit, [OutcomeUnknownError("no answer"), StoreUnavailableError("away")]

    async def losing(*args: object, **options: object) -> list[int]:
        versions = await commit(*args, **options)  # type: ignore[arg-type]
        if lost:
            raise lost.pop(0)
        return versions

    monkeypatch.setattr(written.store, "commit", losing)
    with pytest.raises(OutcomeUnknownError):
        await written.release()
    assert lost == []
    assert (await written.on_paper()).in_progress == written.move_log.history.in_progress == {}
    assert written.mirror.get_ownership(NAME).state is OwnershipState.OWNED


async def test_concurrent_changes_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    written = await Written.begin()
    commit, writes = written.store.commit, []

    async def counting(*args: object, **options: object) -> list[int]:
        writes.append(args)
        return await commit(*args, **options)  # type: ignore[arg-type]

    await written.store.ensure_path(paths.PULSAR)
    monkeypatch.setattr(written.store, "commit", counting)
    move = PendingMove(A.broker, B.broker, time.time(), is_own=True)
    bundles = [f"t/ns/0x{number}0000000_0x{number}fffffff" for number in range(8)]
    await asyncio.gather(*(written.move_log.begin(bundle, move) for bundle in bundles))
    assert (await written.on_paper()).in_progress.keys() == set(bundles)
    assert len(writes) == 2, "the first, and one for all that came while it was under way"


async def test_failed_write_does_not_resume_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    written = await Written.begin()
    written.move_log.history = MoveHistory(failures=3)

    async def away(*_: object, **__: object) -> list[int]:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(written.store, "commit", away)
        with pytest.raises(StoreUnavailableError):
            await written.move_log.resume()
    assert written.move_log.history.failures == 3
    await written.move_log.resume()
    assert (await written.on_paper()).failures == written.move_log.history.failures == 0
