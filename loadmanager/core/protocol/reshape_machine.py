"""State machine for splits and merges: ask the owner for topics, choose the cut, write the record, place the parts.

The write of the record is the only step that must succeed. A crash before it changes nothing; the cluster recovers from
a crash after it without help.

    phase       event                       if                              then
    -----       -----                       --                              ----
    (ReshapeWanted)                         a merge, or a given boundary    CommitReshape             ─▶ WRITING
                                            else                            as WaitEnded
    SETTLING    WaitEnded                   its owner is registered         AskTopics                 ─▶ ASKED
                                            it is moving or unowned         Settle                    ─▶ SETTLING
                                            it no longer exists, or has not
                                            settled after five attempts     ReshapeEnded with an error
    ASKED       TopicsNamed                 there is a boundary             CommitReshape             ─▶ WRITING
                                            there is none                   ReportVerdict, ReshapeEnded
                OwnerSilent                 it can be cut without topics    as TopicsNamed
                                            else                            ReshapeEnded with an error
    WRITING     ReshapeCommitted            the parts are to be free        Reshaped, Release each, ReshapeEnded
                                            they are to be placed           Reshaped, as WaitEnded    ─▶ PLACING
                                            else, and after a merge         Reshaped, ReshapeEnded
    PLACING     WaitEnded                   a part with an owner is left    ChooseDestination         ─▶ PLACING
                                            none is                         ReshapeEnded
                DestinationChosen           another broker, and the limits
                                            on churn allow it               Transfer                  ─▶ PLACING
                                            else                            ReportVerdict, as WaitEnded
    any         ReshapeRefused                                              ReshapeEnded with an error

A write of unknown outcome counts as refused. If it was committed after all, averages are divided by hash range, and the
agent gets its new bundles once it reports bundles that no longer exist.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleName, BundleRange
from loadmanager.core.domain.ownership import (
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
)
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.reasons import Reason, SplitReason
from loadmanager.core.model.bundle_averages import PartLoad, loads_by_part
from loadmanager.core.protocol.state_machine import Mirror
from loadmanager.core.strategies.splitting import Divider
from loadmanager.core.strategies.splitting.split_finder import Split, SplitCandidate, divide_bundle

_MOST_LOOKS = 5
"""Maximum waits for a registered owner before the split fails."""


class ReshapePhase(enum.Enum):
    SETTLING = enum.auto()
    ASKED = enum.auto()
    WRITING = enum.auto()
    PLACING = enum.auto()
    ENDED = enum.auto()


class Parts(enum.Enum):
    """Placement of the parts after a split."""

    STAY = enum.auto()
    FREE = enum.auto()
    PLACED = enum.auto()


class BundleGoneError(IllegalTransitionError):
    """The bundle to split or merge does not exist any more."""


@dataclass(slots=True, eq=False)
class Reshaping:
    """One split or merge of the neighbouring ranges `before` into those `after`.

    `bundle` is one of those before. `after` is empty until the cut is known; `divider` finds it for a requested split.
    `because` is the verdict, `topics` the known topics of the bundle. `owner` owns the first of the parts `to_place`.
    """

    bundle: BundleName
    reason: Reason
    before: tuple[BundleRange, ...]
    after: tuple[BundleRange, ...] = ()
    because: Verdict | None = None
    divider: Divider | None = None
    parts: Parts = Parts.STAY
    topics: Sequence[TopicLoad] = ()
    phase: ReshapePhase = ReshapePhase.SETTLING
    looks: int = 0
    to_place: list[BundleName] = field(default_factory=list)
    owner: Registration | None = None

    @classmethod
    def asked_for(cls, bundle: BundleName, divider: Divider, parts: Parts = Parts.STAY) -> Reshaping:
        """Create a split that an operator requested."""
        return cls(bundle, SplitReason.ADMIN_SPLIT, (bundle.range,), divider=divider, parts=parts)

    @classmethod
    def merge(cls, bundle: BundleName, other: BundleName, because: Verdict) -> Reshaping:
        """Create a merge of a bundle with a neighbour."""
        lower, upper = sorted((bundle.range, other.range))
        return cls(bundle, because.verdict, (lower, upper), (BundleRange(lower.lower, upper.upper),), because)

    def cut(self, split: Split, because: Verdict) -> None:
        """Set the boundaries and the verdict of a split."""
        ends = (self.bundle.range.lower, *split.boundaries, self.bundle.range.upper)
        self.after = tuple(BundleRange(*pair) for pair in pairwise(ends))
        boundaries = ", ".join(f"0x{boundary:08x}" for boundary in split.boundaries)
        self.because = replace(because, why={**because.why, "boundaries": boundaries})

    @property
    def is_split(self) -> bool:
        return len(self.before) == 1

    @property
    def made(self) -> list[BundleName]:
        """Return the bundles after the change."""
        return [BundleName(self.bundle.namespace, own) for own in self.after]

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Return the hashes where the bundle is cut."""
        return tuple(own.lower for own in self.after[1:])

    def change(self, state: NamespaceState, stamp: Stamp) -> NamespaceState:
        """Return the namespace after the change. Raises `BundleGoneError`, and what `NamespaceState.split` and `merge`
        do.
        """
        index = min(_index(state, own) for own in self.before)
        return state.split(index, self.boundaries, stamp) if self.is_split else state.merge(index, stamp)


# Events


@dataclass(frozen=True, slots=True)
class ReshapeWanted:
    reshaping: Reshaping


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The awaited unload or assignment has ended, with any result."""

    reshaping: Reshaping


@dataclass(frozen=True, slots=True)
class TopicsNamed:
    reshaping: Reshaping
    topics: Sequence[TopicLoad]


@dataclass(frozen=True, slots=True)
class OwnerSilent:
    """The owner did not name its topics."""

    reshaping: Reshaping
    error: Exception


@dataclass(frozen=True, slots=True)
class ReshapeCommitted:
    reshaping: Reshaping
    stored: NamespaceState


@dataclass(frozen=True, slots=True)
class DestinationChosen:
    """Placement's choice for the part."""

    reshaping: Reshaping
    destination: Registration | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ReshapeRefused:
    """The last action failed, or the caller no longer waits for the change."""

    reshaping: Reshaping
    error: BaseException


Event = ReshapeWanted | WaitEnded | TopicsNamed | OwnerSilent | ReshapeCommitted | DestinationChosen | ReshapeRefused

# Actions


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait for the end of the bundle's unload, or assign the bundle; answered by WaitEnded or ReshapeRefused."""

    reshaping: Reshaping
    current: Ownership


@dataclass(frozen=True, slots=True)
class AskTopics:
    """Ask the owner for the topics of the bundle; answered by TopicsNamed or OwnerSilent."""

    reshaping: Reshaping
    owner: Registration


@dataclass(frozen=True, slots=True)
class CommitReshape:
    """Write the `change` of the namespace; answered by ReshapeCommitted or ReshapeRefused."""

    reshaping: Reshaping


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The change is stored: divide the averages by the topic loads of each part, and notify the owner."""

    reshaping: Reshaping
    owner: Registration | None
    loads: Mapping[str, PartLoad]


@dataclass(frozen=True, slots=True)
class Release:
    """Unload a part, so that it is placed again; not answered."""

    part: BundleName


@dataclass(frozen=True, slots=True)
class ChooseDestination:
    """Ask placement for a destination of the part; answered by DestinationChosen."""

    reshaping: Reshaping
    part: BundleName


@dataclass(frozen=True, slots=True)
class Transfer:
    """Unload a part; answered by WaitEnded."""

    reshaping: Reshaping
    step: Unload
    because: Verdict


@dataclass(frozen=True, slots=True)
class ReportVerdict:
    """Report a verdict; `asked` is "split" or "merge"."""

    asked: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ReshapeEnded:
    """The split or merge has ended: stored, nowhere to cut, or failed with this error."""

    reshaping: Reshaping
    error: BaseException | None = None


Action = (
    Settle
    | AskTopics
    | CommitReshape
    | Reshaped
    | Release
    | ChooseDestination
    | Transfer
    | ReportVerdict
    | ReshapeEnded
)


@dataclass(slots=True)
class ReshapeMachine:
    """State machine for the splits and merges of one leader. `find_excess` finds the churn limit that blocks a step."""

    mirror: Mirror
    find_excess: Callable[[Unload], Verdict | None]
    _in_progress: dict[Reshaping, None] = field(default_factory=dict)
    _actions: list[Action] = field(default_factory=list)

    @property
    def being_split(self) -> frozenset[tuple[str, BundleRange]]:
        """Return the bundles that are being split, as (namespace, range); not those whose parts are being placed."""
        return frozenset(
            (str(each.bundle.namespace), each.bundle.range)
            for each in self._in_progress
            if each.is_split and each.phase is not ReshapePhase.PLACING
        )

    def step(self, event: Event) -> list[Action]:
        """Process an event and return the actions that follow. Events of ended changes are ignored."""
        it = event.reshaping
        if isinstance(event, ReshapeWanted):
            self._in_progress[it] = None
        if it in self._in_progress:
            self._handle(it, event)
        actions, self._actions = self._actions, []
        return actions

    def _handle(self, it: Reshaping, event: Event) -> None:
        match event:
            case ReshapeWanted() if it.after:
                self._write(it)
            case WaitEnded() if it.phase is ReshapePhase.PLACING:
                it.to_place.pop(0)
                self._place(it)
            case ReshapeWanted() | WaitEnded():
                self._settle(it)
            case TopicsNamed(_, topics):
                it.topics = topics
                self._divide(it)
            case OwnerSilent() if it.divider is not None and not it.divider.needs_topics:
                self._divide(it)
            case ReshapeCommitted(_, stored):
                self._on_written(it, stored)
            case DestinationChosen(_, destination, verdict):
                self._on_chosen(it, destination, verdict)
            case _:
                self._end(it, event.error)

    def _settle(self, it: Reshaping) -> None:
        """Ask a registered owner for topics; wait while the bundle is unowned or moving."""
        current = self.mirror.find_ownership(str(it.bundle))
        if current is None:
            self._end(it, BundleGoneError(f"{it.bundle} is not a current bundle"))
        elif current.state is OwnershipState.OWNED and self.mirror.is_registered(current.owner):
            assert current.owner is not None, "nobody is not registered"
            it.phase = ReshapePhase.ASKED
            self._actions.append(AskTopics(it, current.owner))
        elif it.looks == _MOST_LOOKS:
            restless = f"bundle {it.bundle} is {current.state} again and again: its owner keeps changing"
            self._end(it, IllegalTransitionError(restless))
        else:
            it.looks += 1
            self._actions.append(Settle(it, current))

    def _divide(self, it: Reshaping) -> None:
        """Cut at the boundaries of the split algorithm, if it finds any."""
        divider = it.divider
        assert divider is not None, "of a split that is asked for, and of no other, topics are asked"
        split, verdict = divide_bundle(
            _candidate(it), SplitReason.ADMIN_SPLIT, lambda _, own: divider.divide(own, it.topics), divider.settings
        )
        if split is None:
            self._actions.append(ReportVerdict("split", verdict))
            self._end(it)
        else:
            it.cut(split, verdict)
            self._write(it)

    def _write(self, it: Reshaping) -> None:
        it.phase = ReshapePhase.WRITING
        self._actions.append(CommitReshape(it))

    def _on_written(self, it: Reshaping, stored: NamespaceState) -> None:
        it.phase = ReshapePhase.PLACING
        owner = stored.ownerships[_index(stored, it.after[0])].owner
        ranges = {str(part): part.range for part in it.made}
        self._actions.append(Reshaped(it, owner, loads_by_part(ranges, it.topics)))
        if it.parts is Parts.FREE:
            self._actions += map(Release, it.made)
        elif it.parts is Parts.PLACED:
            it.to_place = it.made
        self._place(it)

    def _place(self, it: Reshaping) -> None:
        """Ask for a destination of the next owned part. Unowned parts are placed at their next lookup."""
        while it.to_place:
            current = self.mirror.find_ownership(str(it.to_place[0]))
            if current is not None and current.state is OwnershipState.OWNED:
                it.owner = current.owner
                self._actions.append(ChooseDestination(it, it.to_place[0]))
                return
            it.to_place.pop(0)
        self._end(it)

    def _on_chosen(self, it: Reshaping, destination: Registration | None, verdict: Verdict) -> None:
        part = str(it.to_place[0])
        assert it.owner is not None, "only a part that has an owner is placed"
        if destination is None or destination == it.owner:
            reason = verdict.verdict if destination is None else SplitReason.SPLIT_PART_STAYS
            self._stays(it, Verdict(part, reason, acted=False, why=verdict.why))
            return
        step = Unload(part, it.owner, destination, SplitReason.SPLIT_PART_PLACED)
        excess = self.find_excess(step)
        if excess is None:
            self._actions.append(Transfer(it, step, Verdict(part, step.reason, acted=True, why=verdict.why)))
        else:
            self._stays(it, excess)

    def _stays(self, it: Reshaping, why: Verdict) -> None:
        self._actions.append(ReportVerdict("split", why))
        it.to_place.pop(0)
        self._place(it)

    def _end(self, it: Reshaping, error: BaseException | None = None) -> None:
        it.phase = ReshapePhase.ENDED
        del self._in_progress[it]
        self._actions.append(ReshapeEnded(it, error))


def _candidate(it: Reshaping) -> SplitCandidate:
    msg_rate, throughput = sum(each.msg_rate for each in it.topics), sum(each.throughput for each in it.topics)
    return SplitCandidate(str(it.bundle), it.bundle.range, len(it.topics), 0, msg_rate, throughput)


def _index(state: NamespaceState, own: BundleRange) -> int:
    index = state.bundles.find_index(own)
    if index is None:
        raise BundleGoneError(f"{own} is not a current bundle of namespace {state.name}")
    return index
