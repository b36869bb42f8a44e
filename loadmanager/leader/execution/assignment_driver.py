"""Lookups of owners, from memory on any node, and on the leader with an assignment: the driver of
`loadmanager.core.protocol.assignment_machine`, with waiting callers, decisions of the planner service, and writes of
the ownership ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import structlog
from opentelemetry.trace import Span, get_current_span

from loadmanager.core.domain.names import BundleName, TopicName, namespace_of
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
)
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.protocol.assignment_machine import (
    Action,
    AnswerWaiters,
    AssignmentMachine,
    AssignmentMade,
    AssignmentsDecided,
    AssignmentWanted,
    BackgroundAssignmentsWanted,
    DecideAssignments,
    Event,
    HeldForBroker,
    NotDecided,
    Outcome,
)
from loadmanager.core.protocol.state_machine import Write
from loadmanager.errors import (
    BundleNotFoundError,
    HeldForOwnerError,
    LoadManagerError,
    NoBrokerAvailableError,
    NotLeaderError,
    UnloadFailedError,
)
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.machine_driver import MachineDriver, Waiters, write
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import BrokerEntry, ClusterMirror
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.net.tracing import OFF, Tracing

log = structlog.get_logger(__name__)


class AssignmentDriver:
    """Assigns owners to free bundles: lookups of one bundle share one decision, and a burst shares one batch.

    Bundles without a waiting caller use the capacity of a batch that lookups leave free.
    """

    def __init__(
        self,
        planner: PlannerService,
        mirror: ClusterMirror,
        ledger: OwnershipLedger,
        decision_log: DecisionLog,
        tracing: Tracing = OFF,
    ) -> None:
        self._planner = planner
        self._mirror = mirror
        self._ledger = ledger
        self._decision_log = decision_log
        self._tracing = tracing
        self._spans: dict[str, Span] = {}
        self._machine = AssignmentMachine(mirror)
        self._driver = MachineDriver(self._machine, self._do)
        self._waiting = Waiters[str, Ownership]()
        self.assignments = 0

    def request(self, bundle: str, *, non_persistent: bool = False) -> asyncio.Future[Ownership]:
        """Return a future of the ownership of a bundle that is free now; concurrent requests share one assignment.

        `non_persistent`: for a non-persistent topic, which not every broker serves. The future may fail with
        `NoBrokerAvailableError`, `NotLeaderError` or a `StoreError`. Raises `NotLeaderError` once the term is over,
        since the future would not complete before the next term, and `NamespaceBeingDeletedError`.
        """
        self._ledger.must_be_open(namespace_of(bundle))
        future = self._waiting.future(bundle)
        self._spans.setdefault(bundle, get_current_span())
        self._driver.step(AssignmentWanted(bundle, non_persistent))
        return future

    def place_soon(self, bundles: Sequence[str]) -> None:
        """Queue bundles without a waiting caller, behind those with one."""
        self._driver.step(BackgroundAssignmentsWanted(bundles))

    async def assign(self, name: BundleName, destination: Registration, reason: Reason) -> Ownership:
        """Assign a free bundle to this broker for an operator; return the stored ownership.

        Raises `IllegalTransitionError` when it is not free or the broker has left, and as `OwnershipLedger.apply`.
        """

        def change(current: Ownership, stamp: Stamp) -> Ownership:
            if not self._mirror.is_registered(destination):
                raise IllegalTransitionError(f"{destination} left while {name} was being given to it")
            return assign(current, destination, stamp)

        stored = await self._ledger.apply(str(name.namespace), name.range, change, reason.value)
        self.assignments += 1
        self._decision_log.moved("assign", str(name), reason, epoch=stored.epoch, source=None, destination=destination)
        return stored

    def is_assigning(self, now_s: float) -> bool:
        """Return True while assignments are in flight at this time of the monotonic clock."""
        return self._machine.is_assigning(now_s)

    async def run(self) -> None:
        """Decide and commit requested assignments, for as long as the term lasts."""
        await self._driver.run()

    def fail_waiting(self, error: Exception) -> None:
        """Fail every waiting lookup with `error`: the term is over."""
        self._machine.forget()
        self._spans.clear()
        self._waiting.fail_all(error)

    def _do(self, action: Action) -> Coroutine[Any, Any, Event] | None:
        match action:
            case DecideAssignments():
                return self._decide(action)
            case Write():
                return self._write(action)
            case AnswerWaiters(bundle, outcome):
                self._spans.pop(bundle, None)
                self._waiting.resolve(bundle, self._log_outcome(bundle, outcome))
        return None

    async def _decide(self, decide: DecideAssignments) -> Event:
        try:
            about, spans = {"bundles": len(decide.bundles)}, self._find_spans(decide.bundles)
            with self._tracing.span("decide on owners", about, spans):
                return AssignmentsDecided(decide, await self._planner.place(decide.bundles, decide.non_persistent))
        except Exception as error:
            log.exception("placement_failed", bundles=len(decide.bundles))
            return NotDecided(decide, NoBrokerAvailableError(f"the decision failed: {error}"))

    async def _write(self, action: Write) -> Event:
        with self._tracing.span("write owners", {"namespace": action.namespace}, self._find_spans(action.transitions)):
            return await write(self._ledger, action)

    def _find_spans(self, bundles: Iterable[str]) -> list[Span]:
        """Return the spans of the lookups that wait for these bundles."""
        return [self._spans[bundle] for bundle in bundles if bundle in self._spans]

    def _log_outcome(self, bundle: str, outcome: Outcome) -> Ownership | Exception:
        match outcome:
            case AssignmentMade(stored, step, why, former):
                self.assignments += 1
                self._decision_log.moved(
                    "assign",
                    bundle,
                    step.reason,
                    epoch=stored.epoch,
                    source=former,
                    destination=step.destination,
                    because=[why],
                )
                return stored
            case HeldForBroker(broker, left_s):
                waits = f"bundle {bundle} waits for {broker}, which is held off, for {left_s:.0f} s at most"
                return HeldForOwnerError(waits, left_s)
            case Verdict():
                return self._explain_refusal(bundle, outcome)
        return outcome

    def _explain_refusal(self, bundle: str, verdict: Verdict) -> Exception:
        try:
            self._mirror.bundle(BundleName.parse(bundle))
        except LoadManagerError as error:
            return error
        self._decision_log.judged("assign", verdict, epoch=self._mirror.epoch)
        return NoBrokerAvailableError(f"bundle {bundle}: {verdict.sentence()}")


LOOKUP_TIMEOUT_S = 10.0
"""Time that a lookup waits for an assignment or a leader before it answers 503: as long as a session of ZooKeeper,
after which there is another leader. Our clients wait longer for an answer, and ask again.
"""

_LOOK_AGAIN_S = 0.01


class OwnerLookups:
    """Looks up the owners of topics. `leads` returns True once this node leads and has read everything that former
    leaders wrote.
    """

    def __init__(
        self,
        mirror: ClusterMirror,
        assigner: AssignmentDriver,
        executor: Executor,
        leads: Callable[[], bool],
    ) -> None:
        self._mirror = mirror
        self._assigner = assigner
        self._executor = executor
        self._leads = leads

    def find_owner(self, topic: TopicName) -> BrokerEntry | None:
        """Return the current owner of a topic's bundle from memory; None when it has none."""
        entry, index = self._mirror.bundle_of_topic(topic)
        return self._mirror.find_owner(entry.state.ownerships[index])

    async def assign_many(self, topics: Iterable[TopicName]) -> float:
        """Assign owners to those of the topics that have none, in one batch.

        Return the deadline to pass to `lookup`, which returns or raises the outcome of each. The clock is monotonic.
        """
        deadline_s = time.monotonic() + LOOKUP_TIMEOUT_S
        asked = topics if self._leads() else ()
        waiting = [each for topic in asked if (each := self._ask(topic)) is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                for each in waiting:
                    with contextlib.suppress(LoadManagerError, IllegalTransitionError):
                        await each
        return deadline_s

    def _ask(self, topic: TopicName) -> asyncio.Future[Ownership] | None:
        """Request an owner for the topic's bundle; None if it has one, is being unloaded, or the request fails."""
        try:
            entry, index = self._mirror.bundle_of_topic(topic)
            ownership = entry.state.ownerships[index]
            if ownership.state is OwnershipState.RELEASING or self._mirror.is_registered(ownership.owner):
                return None
            return self._request(topic, entry.state.bundle_name(index))
        except LoadManagerError:
            return None

    async def lookup(self, topic: TopicName, deadline_s: float | None = None) -> BrokerEntry:
        """Return the owner of a topic's bundle, and assign one now if it has none. The leader's part of a lookup.

        Raises `NamespaceNotFoundError`, `NotLeaderError`, `NoBrokerAvailableError`, or a `StoreError`.
        """
        if deadline_s is None:
            deadline_s = time.monotonic() + LOOKUP_TIMEOUT_S
        while True:
            entry, index = self._mirror.bundle_of_topic(topic)
            owner = self._mirror.find_owner(entry.state.ownerships[index])
            if owner is not None:
                return owner
            if not self._leads():
                raise NotLeaderError("this node does not lead")
            await self._settle(topic, entry.state, index, deadline_s)

    async def _settle(self, topic: TopicName, state: NamespaceState, index: int, deadline_s: float) -> None:
        bundle, ownership = state.bundle_name(index), state.ownerships[index]
        if ownership.state is OwnershipState.RELEASING:
            waiting: Awaitable[Ownership] = self._executor.outcome_of(BundleName.parse(bundle), ownership)
        elif self._mirror.is_registered(ownership.owner):
            raise NoBrokerAvailableError(f"bundle {bundle}: the record of its owner {ownership.owner} cannot be read")
        else:
            waiting = self._request(topic, bundle)
        try:
            async with asyncio.timeout(deadline_s - time.monotonic()):
                await waiting
        except (UnloadFailedError, IllegalTransitionError, BundleNotFoundError):
            await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise NoBrokerAvailableError(f"bundle {bundle} has no owner yet: it is {ownership.state}") from None

    def _request(self, topic: TopicName, bundle: str) -> asyncio.Future[Ownership]:
        return self._assigner.request(bundle, non_persistent=topic.domain == "non-persistent")
