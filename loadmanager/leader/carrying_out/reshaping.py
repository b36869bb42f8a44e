"""Splits and merges bundles: where to cut is asked, one write of the namespace's record does it, and all who are
concerned are told.

    owner found ──▶ its topics asked ──▶ boundaries ──▶ record committed ──▶ history divided, owner told,
    (or assigned)   (if needed)          (or none:      (compare-and-set)    parts unloaded if that is wanted
                                          why not)

Nothing but the record counts: who dies before the write has changed nothing, and after it nothing is missing that does
not come by itself. An agent that was not told of new boundaries is told when it reports bundles that are no more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import structlog

from loadmanager.core.bundles import BoundariesError
from loadmanager.core.controls import Controls
from loadmanager.core.inheritance import PartLoad
from loadmanager.core.load import MSG_RATE_IN, MSG_RATE_OUT, THROUGHPUT_IN, THROUGHPUT_OUT
from loadmanager.core.names import BundleName, BundleRange, NamespaceName
from loadmanager.core.ownership import IllegalTransitionError, NamespaceState, OwnershipState, Registration, Stamp
from loadmanager.core.plan import Verdict
from loadmanager.core.reasons import Reason, SplitReason
from loadmanager.core.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.snapshot import Snapshot
from loadmanager.core.splitting import SPECIFIED_POSITIONS, split_algorithm
from loadmanager.core.splitting.base import SplitAlgorithm, TopicLoad, is_splittable
from loadmanager.core.splitting.finder import Split, SplitCandidate, divide_bundle
from loadmanager.core.splitting.specified_positions_divide import divide_at
from loadmanager.errors import (
    BundleNotFoundError,
    LoadManagerError,
    NotLeaderError,
    OwnerSilentError,
    SplitRefusedError,
    UnloadFailedError,
)
from loadmanager.leader.carrying_out.agents import Agents
from loadmanager.leader.carrying_out.assigning import Assigner
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.deciding.desk import Desk
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.ledger import Ledger
from loadmanager.wire.bundles import HOT
from loadmanager.wire.http import OpenTopic

log = structlog.get_logger(__name__)

CLUSTER = "cluster"
"""The subject of a verdict about a whole round."""

_WITHOUT_TOPICS = frozenset({"range_equally_divide", SPECIFIED_POSITIONS})
"""Algorithms that cut whatever topics there are; the others cannot be asked without."""
_LOOKS = 5
"""How often an owner is looked for before it is said that the bundle does not come to rest."""

Topics = Sequence[OpenTopic] | None
"""None: nobody knows."""


@dataclass(frozen=True, slots=True)
class Divider:
    """The algorithm that was asked for, or is configured, with what it is asked besides the bundle."""

    name: str
    algorithm: SplitAlgorithm
    positions: tuple[int, ...]
    settings: PlannerSettings

    @classmethod
    def of(cls, settings: PlannerSettings, asked: str = "", positions: Sequence[int] = ()) -> Divider:
        """Raises `SplitRefusedError` for an algorithm that is not supported, or lacks what it needs."""
        try:
            name, algorithm = split_algorithm(settings, asked, "splitAlgorithmName")
        except UnknownStrategyError as error:
            raise SplitRefusedError(str(error)) from None
        if name == SPECIFIED_POSITIONS and not positions:
            raise SplitRefusedError(f"{SPECIFIED_POSITIONS} needs positions: a list of hashes as the body")
        if name != SPECIFIED_POSITIONS and positions:
            raise SplitRefusedError(f"{name} takes no positions: they go with {SPECIFIED_POSITIONS}")
        return cls(name, algorithm, tuple(positions), settings)

    @property
    def needs_topics(self) -> bool:
        return self.name not in _WITHOUT_TOPICS

    def divide(self, own: BundleRange, topics: Topics) -> list[int] | None:
        if self.name == SPECIFIED_POSITIONS:
            return divide_at(own, self.positions)
        return self.algorithm(own, loads_of(topics), (), self.settings)


class Reshaper:
    """Splits and merges of the current leader. `under_way` are the bundles that are being split."""

    def __init__(
        self,
        view: ClusterView,
        desk: Desk,
        ledger: Ledger,
        assigner: Assigner,
        executor: Executor,
        agents: Agents,
        journal: Journal,
        live: LiveSettings,
        on_reshaped: Callable[[str, Registration | None], None],
    ) -> None:
        self._view = view
        self._desk = desk
        self._ledger = ledger
        self._assigner = assigner
        self._executor = executor
        self._agents = agents
        self._journal = journal
        self._live = live
        self._on_reshaped = on_reshaped
        self._tasks: set[asyncio.Task[None]] = set()
        self.under_way: set[tuple[str, BundleRange]] = set()
        self.splits: Counter[Reason] = Counter()
        self.splits_failed = 0
        self.merges: Counter[Reason] = Counter()

    async def abort(self) -> None:
        """The term is over: what remains to be done after a commit is left to the next leader, or to nobody."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def split(
        self, name: BundleName, *, algorithm: str = "", positions: Sequence[int] = (), unload: bool = False
    ) -> list[BundleName]:
        """Split a bundle at an operator's word; its parts, none when the algorithm finds no place to cut.

        A bundle without an owner gets one first, and an unload under way is waited for. Raises `BundleNotFoundError`,
        `SplitRefusedError`, `OwnerSilentError` when the algorithm needs topics that nobody names, what an assignment
        raises, or what `Ledger.reshape` does.
        """
        self._view.bundle(name)
        divider = Divider.of(self._live.planner, algorithm, positions)
        if not is_splittable(name.range):
            raise SplitRefusedError(f"{name.range} cannot be split: there is no hash between its ends")
        with self.splitting(name):
            owner = await self._settled_owner(name)
            topics = await self.topics_for(divider, owner, name)
            split, verdict = divide_bundle(
                candidate_of(name, topics),
                SplitReason.ADMIN_SPLIT,
                lambda _, own: divider.divide(own, topics),
                self._live.planner,
            )
            if split is None:
                self._journal.judged("split", verdict, epoch=self._view.epoch)
                return []
            parts = await self.carry_out(split, verdict, topics)
        if unload:
            self._later(self._unload(parts))
        return parts

    async def carry_out(self, split: Split, verdict: Verdict, topics: Topics) -> list[BundleName]:
        """Commit a split; its parts. Raises `BundleNotFoundError` and what `Ledger.reshape` does."""
        name = BundleName.parse(split.bundle)

        def cut(state: NamespaceState, stamp: Stamp) -> NamespaceState:
            return state.split(_index(state, name.range), split.boundaries, stamp)

        after = await self._ledger.reshape(str(name.namespace), cut, split.reason.value)
        ends = (name.range.lower, *split.boundaries, name.range.upper)
        parts = [BundleName(name.namespace, BundleRange(*pair)) for pair in pairwise(ends)]
        if topics:
            self._view.model.redistribute(_loads_by_part(parts, topics))
        self.splits[split.reason] += 1
        owner = self._reshaped(after, parts[0])
        boundaries = ", ".join(f"0x{boundary:08x}" for boundary in split.boundaries)
        because = replace(verdict, why={**verdict.why, "boundaries": boundaries})
        self._journal.moved(
            "split", str(name), split.reason, epoch=self._view.epoch, source=owner, destination=owner, because=[because]
        )
        log.info("bundle_split", bundle=str(name), boundaries=boundaries, reason=split.reason, owner=str(owner))
        return parts

    async def merge(
        self, name: BundleName, with_: BundleRange | None, reason: Reason, because: Verdict | None = None
    ) -> BundleName:
        """Make one bundle of two neighbours of one owner: of this one and `with_`, by default the one above it.

        Raises `BundleNotFoundError`, `BoundariesError` for bundles that are no neighbours, and what `Ledger.reshape`
        does.
        """
        lower, upper = self._neighbours(name, with_)

        def join(state: NamespaceState, stamp: Stamp) -> NamespaceState:
            _index(state, upper)
            return state.merge(_index(state, lower), stamp)

        after = await self._ledger.reshape(str(name.namespace), join, reason.value)
        merged = BundleName(name.namespace, BundleRange(lower.lower, upper.upper))
        self.merges[reason] += 1
        owner = self._reshaped(after, merged)
        other = f"{name.namespace}/{upper if name.range == lower else lower}"
        verdict = because or Verdict(str(name), reason, acted=True, why={"with": other})
        self._journal.moved(
            "merge", str(name), reason, epoch=self._view.epoch, source=owner, destination=owner, because=[verdict]
        )
        log.info("bundles_merged", bundle=str(merged), reason=reason, owner=str(owner))
        return merged

    def find_bundle(self, namespace: NamespaceName, which: str) -> BundleName | None:
        """The bundle that `LARGEST` or `HOT` stands for; None when none has a topic, or any throughput."""
        snapshot = self._desk.snapshot()
        position = snapshot.find_namespace(str(self._view.get_namespace(str(namespace)).state.name))
        if position is None:
            return None
        bundles, rows = snapshot.bundles, snapshot.bundles.rows_of_namespace(position)
        figures = bundles.topics[rows].astype(np.float64)
        if which == HOT:
            throughput = bundles.long[rows, THROUGHPUT_IN] + bundles.long[rows, THROUGHPUT_OUT]
            figures = np.where(figures > 0, throughput, 0.0)
        best = int(np.argmax(figures))
        return BundleName.parse(bundles.names[rows][best]) if figures[best] > 0 else None

    @contextmanager
    def splitting(self, name: BundleName) -> Iterator[None]:
        """Note meanwhile that the bundle is being split."""
        key = (str(name.namespace), name.range)
        self.under_way.add(key)
        try:
            yield
        finally:
            self.under_way.discard(key)

    async def topics_for(self, divider: Divider, owner: Registration, name: BundleName) -> Topics:
        """The topics of a bundle; `OwnerSilentError` only when the algorithm cannot be asked without them."""
        try:
            return await self._agents.get_topics(owner, name)
        except OwnerSilentError as error:
            if divider.needs_topics:
                raise
            log.info("topics_not_known", bundle=str(name), error=str(error))
            return None

    def tell(self, broker: Registration, namespace: str) -> None:
        """Have the broker's agent know the bundles of the namespace as they are now, if it can be reached."""
        self._later(self._tell(broker, namespace))

    async def _settled_owner(self, name: BundleName) -> Registration:
        """The registered owner of a bundle that is not on its way, assigned now if it has none."""
        for _ in range(_LOOKS):
            entry, index = self._view.bundle(name)
            current = entry.state.ownerships[index]
            try:
                if current.state is OwnershipState.RELEASING:
                    await self._executor.outcome_of(name, current)
                elif current.owner is not None and self._view.is_registered(current.owner):
                    return current.owner
                else:
                    await asyncio.shield(self._assigner.request(str(name)))
            except (UnloadFailedError, IllegalTransitionError) as error:
                log.info("owner_looked_for_again", bundle=str(name), error=str(error))
        raise IllegalTransitionError(f"bundle {name} is {current.state} again and again: its owner keeps changing")

    def _reshaped(self, after: NamespaceState, part: BundleName) -> Registration | None:
        """Tell everybody whom it concerns; the owner of the part."""
        owner = after.ownerships[_index(after, part.range)].owner
        self._on_reshaped(str(after.name), owner)
        if owner is not None and self._view.is_registered(owner):
            self.tell(owner, str(after.name))
        return owner

    def _neighbours(self, name: BundleName, with_: BundleRange | None) -> tuple[BundleRange, BundleRange]:
        entry, index = self._view.bundle(name)
        bundles = entry.state.bundles
        if with_ is None:
            bundles.merge(index)  # says what is wrong with the last one
            return name.range, bundles.range_at(index + 1)
        other = self._view.bundle(BundleName(name.namespace, with_))[1]
        if abs(other - index) != 1:
            raise BoundariesError(f"with: {with_} is no neighbour of {name.range}")
        return (name.range, with_) if index < other else (with_, name.range)

    async def _tell(self, broker: Registration, namespace: str) -> None:
        entry = self._view.namespaces.get(namespace)
        if entry is None:
            return
        try:
            await self._agents.tell_bundles(broker, entry.state)
        except OwnerSilentError as error:
            log.info("boundaries_not_told", broker=str(broker), namespace=namespace, error=str(error))

    async def _unload(self, parts: Sequence[BundleName]) -> None:
        outcomes = await asyncio.gather(
            *(self._executor.unload(part, None, SplitReason.ADMIN_SPLIT) for part in parts), return_exceptions=True
        )
        for part, outcome in zip(parts, outcomes, strict=True):
            if isinstance(outcome, LoadManagerError | IllegalTransitionError):
                log.warning("part_not_unloaded", bundle=str(part), error=str(outcome))
            elif isinstance(outcome, BaseException):
                raise outcome

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for, unless the term ends before."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NotLeaderError):
            log.error("reshaping_task_failed", exc_info=error)


def find_hand(controls: Controls, bundle: str) -> str | None:
    """What an operator did that keeps a bundle in its shape; None when nothing does."""
    if bundle in controls.pinned:
        return f"pinned it to {controls.pinned[bundle]}"
    if bundle in controls.frozen_bundles:
        return f"froze it: {controls.frozen_bundles[bundle]}"
    return None


def long_term(snapshot: Snapshot, name: str) -> tuple[float, float]:
    """Messages/s and bytes/s of a bundle, in and out together; 0 of one that the snapshot does not have."""
    row = snapshot.bundles.find_row(name)
    if row is None:
        return 0.0, 0.0
    load = snapshot.bundles.long[row].tolist()
    return load[MSG_RATE_IN] + load[MSG_RATE_OUT], load[THROUGHPUT_IN] + load[THROUGHPUT_OUT]


def candidate_of(name: BundleName, topics: Topics) -> SplitCandidate:
    """A bundle that somebody wants to be split, by what its topics say."""
    loads = loads_of(topics)
    return SplitCandidate(
        str(name),
        name.range,
        topics=len(loads),
        sessions=0,
        msg_rate=sum(each.msg_rate for each in loads),
        throughput=sum(each.throughput for each in loads),
    )


def loads_of(topics: Topics) -> list[TopicLoad]:
    """Topics as split algorithms take them."""
    return [
        TopicLoad(
            each.hash,
            each.msg_rate_in + each.msg_rate_out,
            each.msg_throughput_in + each.msg_throughput_out,
            each.topic,
        )
        for each in topics or ()
    ]


def _loads_by_part(parts: Sequence[BundleName], topics: Sequence[OpenTopic]) -> Mapping[str, PartLoad]:
    found: dict[str, PartLoad] = {}
    for part in parts:
        inside = [each for each in topics if each.hash in part.range]
        rows = [
            (each.msg_rate_in, each.msg_rate_out, each.msg_throughput_in, each.msg_throughput_out) for each in inside
        ]
        found[str(part)] = PartLoad(np.array(rows, dtype=np.float64).reshape(-1, 4).sum(axis=0), len(inside))
    return found


def _index(state: NamespaceState, bundle_range: BundleRange) -> int:
    index = state.bundles.find_index(bundle_range)
    if index is None:
        raise BundleNotFoundError(f"{bundle_range} is not a current bundle of namespace {state.name}")
    return index
