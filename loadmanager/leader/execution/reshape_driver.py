"""Driver of `loadmanager.core.protocol.reshape_machine`: executes splits and merges with the ledger, the owners' agents
and the executor.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np
import structlog

from loadmanager.core.domain.bundles import BoundariesError, TopicLoad
from loadmanager.core.domain.names import BundleName, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import IllegalTransitionError, Ownership, OwnershipState, Registration
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import Reason, SplitReason
from loadmanager.core.domain.settings import UnknownStrategyError
from loadmanager.core.model.load import THROUGHPUT_IN, THROUGHPUT_OUT
from loadmanager.core.protocol.reshape_machine import (
    Action,
    AskTopics,
    BundleGoneError,
    ChooseDestination,
    CommitReshape,
    DestinationChosen,
    Event,
    OwnerSilent,
    Parts,
    Release,
    ReportVerdict,
    ReshapeCommitted,
    Reshaped,
    ReshapeEnded,
    ReshapeMachine,
    ReshapeRefused,
    ReshapeWanted,
    Reshaping,
    Settle,
    TopicsNamed,
    Transfer,
    WaitEnded,
)
from loadmanager.core.protocol.state_machine import find_gone_owner
from loadmanager.core.strategies.splitting import Divider, is_splittable
from loadmanager.errors import (
    BundleNotFoundError,
    LoadManagerError,
    NotLeaderError,
    OwnerSilentError,
    SplitRefusedError,
    UnloadFailedError,
)
from loadmanager.leader.audit.decision_log import DecisionLog
from loadmanager.leader.election.ownership_ledger import OwnershipLedger
from loadmanager.leader.execution.agent_calls import AgentCalls
from loadmanager.leader.execution.assignment_driver import AssignmentDriver
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_service import PlannerService
from loadmanager.wire.bundle_bodies import HOT
from loadmanager.wire.http_bodies import OpenTopic

log = structlog.get_logger(__name__)


class ReshapeDriver:
    """Executes splits and merges of the current leader, for operators and for rounds."""

    def __init__(
        self,
        mirror: ClusterMirror,
        planner: PlannerService,
        ledger: OwnershipLedger,
        assigner: AssignmentDriver,
        executor: Executor,
        agents: AgentCalls,
        decision_log: DecisionLog,
        live: LiveSettings,
        on_reshaped: Callable[[str, Registration | None], None],
    ) -> None:
        self._mirror = mirror
        self._planner = planner
        self._ledger = ledger
        self._assigner = assigner
        self._executor = executor
        self._agents = agents
        self._decision_log = decision_log
        self._live = live
        self._on_reshaped = on_reshaped
        self._machine = ReshapeMachine(mirror, planner.find_excess)
        self._tasks: set[asyncio.Task[None]] = set()
        self.splits: Counter[Reason] = Counter()
        self.splits_failed = 0
        self.merges: Counter[Reason] = Counter()

    @property
    def in_progress(self) -> frozenset[tuple[str, BundleRange]]:
        """Bundles that are being split, by namespace and range."""
        return self._machine.being_split

    async def abort(self) -> None:
        """Cancel all work at the end of the term. Unloads that follow a committed split may not happen."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def split(
        self, name: BundleName, *, algorithm: str = "", positions: Sequence[int] = (), unload: bool = False
    ) -> list[BundleName]:
        """Split a bundle for an operator; return its parts, none when the algorithm finds no split position.

        A bundle without an owner gets one first, and the call waits for an unload in flight. Raises
        `SplitRefusedError`, and as `carry_out`.
        """
        self._mirror.bundle(name)
        try:
            divider = Divider.of(self._live.planner, algorithm, positions)
        except UnknownStrategyError as error:
            raise SplitRefusedError(str(error)) from None
        if not is_splittable(name.range):
            raise SplitRefusedError(f"{name.range} cannot be split: there is no hash between its ends")
        split = Reshaping.asked_for(name, divider, Parts.FREE if unload else Parts.STAY)
        await self.carry_out(split)
        return split.made

    async def merge(self, name: BundleName, with_: BundleRange | None, reason: Reason) -> BundleName:
        """Merge two neighbours of one owner: this bundle and `with_`, by default the one above it.

        Bundles whose owner has left are freed first. Raises `BoundariesError` for bundles that are not neighbours, and
        as `carry_out`.
        """
        other = BundleName(name.namespace, self._neighbour(name, with_))
        for each in (name, other):
            if find_gone_owner(self._mirror, self._mirror.get_ownership(each)) is not None:
                await self._executor.unload(each, None, reason)
        merge = Reshaping.merge(name, other, Verdict(str(name), reason, acted=True, why={"with": str(other)}))
        await self.carry_out(merge)
        return merge.made[0]

    async def carry_out(self, it: Reshaping) -> None:
        """Execute a split or merge; cancelling the call before the commit cancels it.

        Raises `BundleNotFoundError`, `OwnerSilentError` when the algorithm needs topics that the owner does not list,
        and as an assignment and `OwnershipLedger.reshape` do.
        """
        event: Event | None = ReshapeWanted(it)
        try:
            while event is not None:
                actions, event = self._machine.step(event), None
                for action in actions:
                    event = await self._do(action) or event
        except BaseException as error:
            self._machine.step(ReshapeRefused(it, error))
            raise

    async def ask_topics(self, it: Reshaping, owner: Registration) -> TopicsNamed | OwnerSilent:
        """Ask the owner of a bundle for its topics."""
        try:
            topics = await self._agents.get_topics(owner, it.bundle)
        except OwnerSilentError as error:
            log.info("topics_not_known", bundle=str(it.bundle), error=str(error))
            return OwnerSilent(it, error)
        return TopicsNamed(it, [_load_of(topic) for topic in topics])

    def tell(self, broker: Registration, namespace: str) -> None:
        """Send the broker's agent the bundles of a namespace, if it can be reached."""
        self._later(self._tell(broker, namespace))

    def find_bundle(self, namespace: NamespaceName, which: str) -> BundleName | None:
        """Return the bundle that `LARGEST` or `HOT` stands for; None when none has a topic, or any throughput."""
        snapshot = self._planner.snapshot()
        position = snapshot.find_namespace(str(self._mirror.get_namespace(str(namespace)).state.name))
        if position is None:
            return None
        bundles, rows = snapshot.bundles, snapshot.bundles.rows_of_namespace(position)
        figures = bundles.topics[rows].astype(np.float64)
        if which == HOT:
            throughput = bundles.long[rows, THROUGHPUT_IN] + bundles.long[rows, THROUGHPUT_OUT]
            figures = np.where(figures > 0, throughput, 0.0)
        best = int(np.argmax(figures))
        return BundleName.parse(bundles.names[rows][best]) if figures[best] > 0 else None

    def _neighbour(self, name: BundleName, with_: BundleRange | None) -> BundleRange:
        entry, index = self._mirror.bundle(name)
        bundles = entry.state.bundles
        if with_ is None:
            bundles.merge(index)  # raises for the last bundle
            return bundles.range_at(index + 1)
        other = self._mirror.bundle(BundleName(name.namespace, with_))[1]
        if abs(other - index) != 1:
            raise BoundariesError(f"with: {with_} is no neighbour of {name.range}")
        return with_

    async def _do(self, action: Action) -> Event | None:
        match action:
            case Settle(it, current):
                return await self._settle(it, current)
            case AskTopics(it, owner):
                return await self.ask_topics(it, owner)
            case CommitReshape(it):
                return await self._commit(it)
            case Reshaped():
                self._on_reshaping_done(action)
            case Release(part):
                self._later(self._unload(part, None, SplitReason.ADMIN_SPLIT))
            case ChooseDestination(it, part):
                return DestinationChosen(it, *await self._planner.choose(str(part)))
            case Transfer(it, step, because):
                await self._unload(BundleName.parse(step.bundle), step.destination, step.reason, [because])
                return WaitEnded(it)
            case ReportVerdict(asked, verdict):
                self._decision_log.judged(asked, verdict, epoch=self._mirror.epoch)
            case ReshapeEnded(_, error) if error is not None:
                raise BundleNotFoundError(str(error)) if isinstance(error, BundleGoneError) else error
        return None

    async def _settle(self, it: Reshaping, current: Ownership) -> Event:
        try:
            if current.state is OwnershipState.RELEASING:
                await self._executor.outcome_of(it.bundle, current)
            else:
                await self._assigner.request(str(it.bundle))
        except (UnloadFailedError, IllegalTransitionError) as error:
            log.info("owner_not_settled", bundle=str(it.bundle), error=str(error))
        return WaitEnded(it)

    async def _commit(self, it: Reshaping) -> Event:
        try:
            return ReshapeCommitted(
                it, await self._ledger.reshape(str(it.bundle.namespace), it.change, it.reason.value)
            )
        except BundleGoneError as error:
            return ReshapeRefused(it, error)

    def _on_reshaping_done(self, done: Reshaped) -> None:
        it, owner, namespace = done.reshaping, done.owner, str(done.reshaping.bundle.namespace)
        self._mirror.model.redistribute(done.loads)
        (self.splits if it.is_split else self.merges)[it.reason] += 1
        self._on_reshaped(namespace, owner)
        if owner is not None and self._mirror.is_registered(owner):
            self.tell(owner, namespace)
        assert it.because is not None, "what is done has a reason"
        self._decision_log.moved(
            "split" if it.is_split else "merge",
            str(it.bundle),
            it.reason,
            epoch=self._mirror.epoch,
            source=owner,
            destination=owner,
            because=[it.because],
        )
        what, made = "bundle_split" if it.is_split else "bundles_merged", ", ".join(map(str, it.after))
        log.info(what, bundle=str(it.bundle), made=made, reason=it.reason, owner=str(owner))

    async def _tell(self, broker: Registration, namespace: str) -> None:
        entry = self._mirror.namespaces.get(namespace)
        if entry is None:
            return
        try:
            await self._agents.tell_bundles(broker, entry.state)
        except OwnerSilentError as error:
            log.info("boundaries_not_sent", broker=str(broker), namespace=namespace, error=str(error))

    async def _unload(
        self, part: BundleName, destination: Registration | None, reason: Reason, because: Sequence[Verdict] = ()
    ) -> None:
        """Unload a part; a failure does not undo the split."""
        try:
            await self._executor.unload(part, destination, reason, because)
        except NotLeaderError:
            raise
        except (LoadManagerError, IllegalTransitionError) as error:
            log.warning("part_not_unloaded", bundle=str(part), error=str(error))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background until the term ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_ended)

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotLeaderError):
            log.error("reshaping_task_failed", exc_info=error)


def _load_of(topic: OpenTopic) -> TopicLoad:
    load = (topic.msg_rate_in, topic.msg_rate_out, topic.msg_throughput_in, topic.msg_throughput_out)
    return TopicLoad(topic.hash, load[0] + load[1], load[2] + load[3], topic.topic, load)
