"""The guards of the protocol, and a patch that removes each: runs without a guard must find a violation.

docs/architecture.md explains each guard. The patches replace only the line of the product's code that is the guard.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

from protocol.virtual_time import VirtualTime
from protocol.zookeeper import ModelStore

from loadmanager.agent import grants
from loadmanager.agent.grants import Claim, Grants, GrantVerdict, TopicQuestion
from loadmanager.broker.contract import Contract, Leased
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import NamespaceState
from loadmanager.core.domain.ownership import Registration as Life
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.election import ownership_ledger
from loadmanager.leader.execution.agent_calls import AgentCalls
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.mirror_intake import MirrorIntake
from loadmanager.leader.operator_commands import BundleCommands
from loadmanager.store import paths, store_session
from loadmanager.store.metadata_store import Check, Op

Without = Callable[[], contextlib.AbstractContextManager[object]]


def _no_epoch() -> contextlib.AbstractContextManager[object]:
    commit = ModelStore.commit

    async def unchecked(store: ModelStore, ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
        kept = [op for op in ops if not (isinstance(op, Check) and op.path == paths.EPOCH)]
        dropped = [0] * (len(ops) - len(kept))
        return dropped + await commit(store, kept, session_id=session_id)

    return patch.object(ModelStore, "commit", unchecked)


def _no_session_of_the_mirror() -> contextlib.AbstractContextManager[object]:
    return patch.object(Candidate, "must_be_current", lambda _: None)


def _no_fence() -> contextlib.AbstractContextManager[object]:
    return patch.object(grants._Namespace, "fences_over", lambda *_: iter(()))


def _no_void_at_agent() -> contextlib.AbstractContextManager[object]:
    answer = Grants.answer

    def as_if_just_asked(self: Grants, question: TopicQuestion, claim: Claim) -> GrantVerdict:
        return answer(self, replace(question, asked_after=self._unloads), claim)

    return patch.object(Grants, "answer", as_if_just_asked)


def _no_void_at_broker() -> contextlib.AbstractContextManager[object]:
    return patch.object(Contract, "_make_void", lambda *_: None)


def _no_incarnation() -> contextlib.AbstractContextManager[object]:
    def is_registered(mirror: ClusterMirror, life: Life | None) -> bool:
        return life is not None and life.broker in mirror.registrations

    return patch.object(ClusterMirror, "is_registered", is_registered)


def _no_answer_awaited() -> contextlib.AbstractContextManager[object]:
    async def ask(*_: object) -> None: ...

    return patch.object(AgentCalls, "ask", ask)


@contextlib.contextmanager
def _no_second_reading() -> Iterator[None]:
    notified = MirrorIntake._on_watch_event

    def only_changes(intake: MirrorIntake, path: str) -> None:
        if path != paths.ROOT or not intake._is_watching:
            notified(intake, path)

    with (
        patch.object(MirrorIntake, "_session_changed", lambda *_: None),
        patch.object(MirrorIntake, "_on_watch_event", only_changes),
    ):
        yield


def _no_last_lease() -> contextlib.AbstractContextManager[object]:
    return patch.object(grants.Leases, "lapsed_at_s", property(lambda _: 0.0))


def _no_holder() -> contextlib.AbstractContextManager[object]:
    return patch.object(grants.Leases, "ended", lambda self, _: self._lapse_at_s.clear())


def _no_lease_at_broker() -> contextlib.AbstractContextManager[object]:
    use_lease = Contract._use_lease

    def for_ever(self: Contract) -> None:
        self._next_until_s = math.inf
        use_lease(self)

    return patch.object(Contract, "_use_lease", for_ever)


def _no_session_in_lease() -> contextlib.AbstractContextManager[object]:
    return patch.object(grants, "lease_ms", lambda _now_s, _until_s, longest_ms: longest_ms)


def _no_bound_on_the_session() -> contextlib.AbstractContextManager[object]:
    return patch.object(store_session, "LEASE_RATIO", 3.0)


def _no_closing_at_new_life() -> contextlib.AbstractContextManager[object]:
    def go_on(contract: Contract, incarnation: int, _: float) -> None:
        contract.incarnation = incarnation

    return patch.object(Contract, "_close_former", go_on)


def _no_leftover() -> contextlib.AbstractContextManager[object]:
    return patch.object(grants.Leases, "assume_granted_by_predecessor", lambda *_: None)


def _no_registrations_read() -> contextlib.AbstractContextManager[object]:
    async def at_once(_: MirrorIntake) -> None: ...

    return patch.object(MirrorIntake, "settle_registrations", at_once)


def _no_moment_of_asking() -> contextlib.AbstractContextManager[object]:
    leased = Contract._on_lease_granted

    def later(self: Contract, lease: Leased, now_s: float) -> None:
        self._asked_s = now_s
        leased(self, lease, now_s)

    return patch.object(Contract, "_on_lease_granted", later)


def _no_version_remembered() -> contextlib.AbstractContextManager[object]:
    return patch.object(NamespaceState, "from_version", lambda state, _: state)


@contextlib.contextmanager
def _no_owner_asked_before_deletion() -> Iterator[None]:
    async def nobody(commands: BundleCommands, _: NamespaceName) -> None:
        commands.must_lead()

    with patch.object(BundleCommands, "unload_namespace", nobody), patch.object(ownership_ledger, "_must_all_be_free"):
        yield


def _no_suspension_counted() -> contextlib.AbstractContextManager[object]:
    return patch.object(VirtualTime, "clock_gettime", lambda clocks, _: clocks.monotonic())


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard: `taken_out` removes it, `missed_by` is a seed that fails then. None if thousands of seeds are needed
    or another guard suffices.
    """

    name: str
    taken_out: Without
    missed_by: int | None = None


GUARDS = {
    guard.name: guard
    for guard in (
        Guard("epoch: every write of a leader checks that it has not been replaced", _no_epoch, missed_by=74),
        Guard(
            "release: the owner's answer is awaited before anybody else gets the bundle",
            _no_answer_awaited,
            missed_by=1,
        ),
        Guard("fence: an agent believes no answer from before an unload", _no_fence, missed_by=106),
        Guard("question: an unload makes void what the agent has asked", _no_void_at_agent),
        Guard(
            "question: an unload, or a lease's end, makes void what the broker has asked",
            _no_void_at_broker,
            missed_by=200_038,
        ),
        Guard("incarnation: a broker that registered again is another one", _no_incarnation, missed_by=1),
        Guard("lease: a broker without one serves nothing", _no_lease_at_broker, missed_by=2),
        Guard("lease: it counts from the moment of asking", _no_moment_of_asking),
        Guard(
            "lease: its clock counts the time for which the machine was suspended", _no_suspension_counted, missed_by=31
        ),
        Guard("lease: it never outlives what is certain of the agent's session", _no_session_in_lease, missed_by=3),
        Guard(
            "session: trusted for two thirds of its timeout after a request was sent",
            _no_bound_on_the_session,
            missed_by=8,
        ),
        Guard("lease: a registration is taken back only once the last one has lapsed", _no_last_lease),
        Guard("lease: with a process that died those end that it was given, and no others", _no_holder),
        Guard("lease: one of another incarnation closes everything first", _no_closing_at_new_life),
        Guard("lease: a left-over registration stands until the former life's last has lapsed", _no_leftover),
        Guard(
            "deletion: every owner of a namespace has let go before its record goes",
            _no_owner_asked_before_deletion,
            missed_by=6,
        ),
        Guard(
            "deletion: a namespace that is created anew goes on at higher versions", _no_version_remembered, missed_by=6
        ),
        Guard("view: everything is read again after a reconnection", _no_second_reading, missed_by=1),
        Guard("view: a node whose session may be over tells agents nothing", _no_session_of_the_mirror),
        Guard("view: a new leader reads the registrations before it takes anything away", _no_registrations_read),
    )
}
"""By name; docs/architecture.md has them as a table."""
