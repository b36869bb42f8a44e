from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker

from loadmanager.core.domain.bundles import NamespaceBundles, TopicLoad, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleName, NamespaceName
from loadmanager.core.domain.ownership import (
    FREE,
    IllegalTransitionError,
    NamespaceState,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    abandon,
    assign,
    complete,
    release,
    succession_violations,
)
from loadmanager.core.domain.plan import Unload, Verdict
from loadmanager.core.domain.reasons import ChurnReason, MergeReason, PlacementReason, SplitReason
from loadmanager.core.domain.settings import PlannerSettings
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
    ReshapePhase,
    ReshapeRefused,
    ReshapeWanted,
    Reshaping,
    Settle,
    TopicsNamed,
    Transfer,
    WaitEnded,
)
from loadmanager.core.strategies.splitting import Divider
from loadmanager.core.strategies.splitting.split_finder import Split

A, B = broker("a"), broker("b")
STAMP = Stamp(7, 1_000, "a test")
NAME = NamespaceName("t", "ns")
WHOLE, LOW, HIGH = (
    BundleName.parse(f"t/ns/{text}")
    for text in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)
BY_RANGE, BY_TOPICS = (
    Divider.of(PlannerSettings(), name) for name in ("range_equally_divide", "topic_count_equally_divide")
)
AT_THE_HALF = Divider.of(PlannerSettings(), "specified_positions_divide", [0x80000000])
TOPICS = [
    TopicLoad(1 << 20, 2.0, 20.0, "x", (1.0, 1.0, 10.0, 10.0)),
    TopicLoad(3 << 30, 6.0, 60.0, "y", (3.0, 3.0, 30.0, 30.0)),
]
WHY = Verdict(str(WHOLE), SplitReason.TOPICS, acted=True, why={"topics": 1_001})
LOST = RuntimeError("no answer")


@dataclass(slots=True)
class ReshapingsHarness:
    """Splits and merges of one namespace record, and a driver that executes each action on request."""

    state: NamespaceState
    registered: set[Registration] = field(default_factory=lambda: {A, B})
    excess: Verdict | None = None
    asked_about: list[Unload] = field(default_factory=list)
    to_do: list[Action] = field(default_factory=list)
    machine: ReshapeMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = ReshapeMachine(self, self.find_excess)

    @property
    def registrations(self) -> dict[BrokerId, Registration]:
        return {each.broker: each for each in self.registered}

    def is_registered(self, registration: Registration | None) -> bool:
        return registration in self.registered

    def holds(self) -> dict[BrokerId, float]:
        return {}

    def find_ownership(self, bundle: str) -> Ownership | None:
        index = self.state.bundles.find_index(BundleName.parse(bundle).range)
        return None if index is None else self.state.ownerships[index]

    def find_excess(self, step: Unload) -> Verdict | None:
        self.asked_about.append(step)
        return self.excess

    def put(self, name: BundleName, ownership: Ownership) -> None:
        index = self.state.bundles.find_index(name.range)
        assert index is not None
        self.state = self.state.with_ownerships({index: ownership})

    def step(self, event: Event) -> list[Action]:
        """Apply the event; returns the new actions, which also become pending."""
        told = self.machine.step(event)
        self.to_do += told
        return told

    def take(self) -> Action:
        """The next action, if it is the only one."""
        assert len(self.to_do) == 1, self.to_do
        return self.to_do.pop()

    def commit(self) -> list[Action]:
        """Execute the pending write; return the actions that follow."""
        action = self.take()
        assert isinstance(action, CommitReshape), action
        self.state = action.reshaping.change(self.state, STAMP)
        told = self.step(ReshapeCommitted(action.reshaping, self.state))
        self.to_do.clear()
        return told


def a_leader(owner: Registration | None = A, bundles: int = 1) -> ReshapingsHarness:
    state = NamespaceState.unowned(NAME, NamespaceBundles(equal_boundaries(bundles)))
    owned = FREE if owner is None else assign(FREE, owner, STAMP)
    return ReshapingsHarness(replace(state, ownerships=(owned,) * bundles))


def decided(parts: Parts = Parts.STAY, topics: list[TopicLoad] | None = None) -> Reshaping:
    """Return a split decided by a round."""
    split = Reshaping(WHOLE, SplitReason.TOPICS, (WHOLE.range,), parts=parts, topics=topics or [])
    split.cut(Split(str(WHOLE), (0x80000000,), SplitReason.TOPICS), WHY)
    return split


def said(verdict: Verdict) -> tuple[object, ...]:
    return verdict.subject, verdict.verdict, verdict.acted, verdict.why


# Splits and merges on request


def test_split_asks_the_owner_for_topics_and_uses_the_algorithm() -> None:
    leader, split = a_leader(), Reshaping.asked_for(WHOLE, BY_TOPICS)
    leader.step(ReshapeWanted(split))
    assert (leader.take(), split.phase) == (AskTopics(split, A), ReshapePhase.ASKED)
    assert leader.machine.being_split == {("t/ns", WHOLE.range)}
    leader.step(TopicsNamed(split, TOPICS))
    assert split.phase is ReshapePhase.WRITING
    reshaped, ended = leader.commit()
    assert isinstance(reshaped, Reshaped)
    assert (reshaped.reshaping, split.reason) == (split, SplitReason.ADMIN_SPLIT)
    assert (reshaped.owner, split.made) == (A, [BundleName(NAME, own) for own in leader.state.bundles.ranges()])
    assert [(each.topics, each.load.tolist()) for each in reshaped.loads.values()] == [
        (1, [1.0, 1.0, 10.0, 10.0]),
        (1, [3.0, 3.0, 30.0, 30.0]),
    ]
    assert ended == ReshapeEnded(split)
    assert (split.phase, leader.machine.being_split) == (ReshapePhase.ENDED, frozenset())
    assert split.because is not None
    assert (split.because.verdict, split.because.why["topics"]) == (SplitReason.ADMIN_SPLIT, 2)
    assert split.because.why["boundaries"] == f"0x{split.boundaries[0]:08x}"


def test_split_without_a_boundary_writes_nothing() -> None:
    leader, split = a_leader(), Reshaping.asked_for(WHOLE, BY_TOPICS)
    leader.step(ReshapeWanted(split))
    leader.to_do.clear()
    judge, ended = leader.step(TopicsNamed(split, TOPICS[:1]))
    assert isinstance(judge, ReportVerdict)
    assert (judge.asked, judge.verdict.verdict) == ("split", SplitReason.NO_SPLIT_BOUNDARY)
    assert judge.verdict.subject == str(WHOLE)
    assert (ended, split.made) == (ReshapeEnded(split), [])


@pytest.mark.parametrize(("divider", "is_cut"), [(BY_RANGE, True), (AT_THE_HALF, True), (BY_TOPICS, False)])
def test_silent_owner_stops_only_algorithms_with_topics(divider: Divider, *, is_cut: bool) -> None:
    leader, split = a_leader(), Reshaping.asked_for(WHOLE, divider)
    leader.step(ReshapeWanted(split))
    leader.to_do.clear()
    (told,) = leader.step(OwnerSilent(split, LOST))
    assert told == (CommitReshape(split) if is_cut else ReshapeEnded(split, LOST))


def test_decided_split_asks_for_no_topics() -> None:
    leader, split = a_leader(), decided()
    leader.step(ReshapeWanted(split))
    assert leader.step(OwnerSilent(split, LOST)) == [ReshapeEnded(split, LOST)]
    leader.step(ReshapeWanted(another := decided()))
    with pytest.raises(AssertionError):
        leader.step(TopicsNamed(another, TOPICS))


def test_vanished_part_is_skipped() -> None:
    leader, split = a_leader(), decided(Parts.PLACED)
    leader.step(ReshapeWanted(split))
    leader.commit()
    leader.state = a_leader().state
    assert leader.step(WaitEnded(split)) == [ReshapeEnded(split)]


def test_split_waits_for_a_registered_owner() -> None:
    leader, split = a_leader(None), Reshaping.asked_for(WHOLE, BY_RANGE)
    leader.step(ReshapeWanted(split))
    assert leader.take() == Settle(split, FREE)
    leader.put(WHOLE, release(assign(FREE, B, STAMP), None, STAMP))
    leader.step(WaitEnded(split))
    action = leader.take()
    assert isinstance(action, Settle)
    assert action.current.state is OwnershipState.RELEASING
    leader.put(WHOLE, assign(FREE, broker("gone"), STAMP))
    leader.step(WaitEnded(split))
    assert isinstance(leader.take(), Settle), "its owner has gone"
    leader.put(WHOLE, assign(FREE, B, STAMP))
    leader.step(WaitEnded(split))
    assert leader.take() == AskTopics(split, B)


def test_split_gives_up_after_five_waits() -> None:
    leader, split = a_leader(None), Reshaping.asked_for(WHOLE, BY_RANGE)
    leader.step(ReshapeWanted(split))
    for _ in range(5):
        assert isinstance(leader.take(), Settle)
        leader.step(WaitEnded(split))
    ended = leader.take()
    assert isinstance(ended, ReshapeEnded)
    assert isinstance(ended.error, IllegalTransitionError)
    assert "Free again and again" in str(ended.error)


def test_split_of_an_unknown_bundle_fails() -> None:
    leader = a_leader(bundles=2)
    (told,) = leader.step(ReshapeWanted(Reshaping.asked_for(WHOLE, BY_RANGE)))
    assert isinstance(told, ReshapeEnded)
    assert isinstance(told.error, BundleGoneError)
    assert str(WHOLE) in str(told.error)


def test_free_parts_are_released_without_waiting() -> None:
    leader, split = a_leader(), Reshaping.asked_for(WHOLE, AT_THE_HALF, Parts.FREE)
    leader.step(ReshapeWanted(split))
    leader.to_do.clear()
    leader.step(TopicsNamed(split, ()))
    reshaped, *rest = leader.commit()
    assert isinstance(reshaped, Reshaped)
    assert rest == [Release(LOW), Release(HIGH), ReshapeEnded(split)]


# Splits and merges decided by a round


def test_parts_are_placed_in_order_and_free_ones_skipped() -> None:
    leader, split = a_leader(), decided(Parts.PLACED)
    (commit,) = leader.step(ReshapeWanted(split))
    assert commit == CommitReshape(split)
    reshaped, choose = leader.commit()
    assert isinstance(reshaped, Reshaped)
    assert (choose, leader.machine.being_split) == (ChooseDestination(split, LOW), frozenset())
    chosen = Verdict(str(LOW), PlacementReason.PINNED_TO_BROKER, acted=True, why={"broker": "b:1"})
    (transfer,) = leader.step(DestinationChosen(split, B, chosen))
    assert isinstance(transfer, Transfer)
    assert transfer.step == Unload(str(LOW), A, B, SplitReason.SPLIT_PART_PLACED)
    assert said(transfer.because) == (str(LOW), SplitReason.SPLIT_PART_PLACED, True, {"broker": "b:1"})
    leader.put(HIGH, FREE)
    assert leader.step(WaitEnded(split)) == [ReshapeEnded(split)]


@pytest.mark.parametrize(
    ("destination", "excess", "reason"),
    [
        (A, None, SplitReason.SPLIT_PART_STAYS),
        (None, None, PlacementReason.NO_OTHER_BROKER),
        (B, Verdict(str(LOW), ChurnReason.MOVED_ENOUGH_THIS_HOUR, acted=False), ChurnReason.MOVED_ENOUGH_THIS_HOUR),
    ],
)
def test_part_that_stays(destination: Registration | None, excess: Verdict | None, reason: object) -> None:
    leader, split = a_leader(), decided(Parts.PLACED)
    leader.excess = excess
    leader.step(ReshapeWanted(split))
    leader.commit()
    chosen = Verdict(str(LOW), PlacementReason.NO_OTHER_BROKER, acted=False, why={"broker": "a:1"})
    judge, choose = leader.step(DestinationChosen(split, destination, chosen))
    assert isinstance(judge, ReportVerdict)
    assert judge.asked == "split"
    assert said(judge.verdict) == (str(LOW), reason, False, chosen.why if excess is None else {})
    assert leader.asked_about == ([] if excess is None else [Unload(str(LOW), A, B, SplitReason.SPLIT_PART_PLACED)])
    assert choose == ChooseDestination(split, HIGH)


def test_refused_write_ends_the_split() -> None:
    leader, split = a_leader(), decided()
    leader.step(ReshapeWanted(split))
    assert leader.step(ReshapeRefused(split, LOST)) == [ReshapeEnded(split, LOST)]
    assert leader.step(ReshapeCommitted(split, leader.state)) == []
    assert leader.step(ReshapeRefused(split, LOST)) == []


def test_change_of_a_vanished_bundle_is_refused() -> None:
    leader = a_leader(bundles=2)
    with pytest.raises(BundleGoneError, match="not a current bundle"):
        decided().change(leader.state, STAMP)


def test_neighbours_are_merged_in_either_order() -> None:
    leader = a_leader(bundles=2)
    because = Verdict(str(HIGH), MergeReason.ADMIN_MERGE, acted=True, why={"with": str(LOW)})
    merge = Reshaping.merge(HIGH, LOW, because)
    assert leader.step(ReshapeWanted(merge)) == [CommitReshape(merge)]
    assert leader.machine.being_split == frozenset()
    reshaped, ended = leader.commit()
    assert isinstance(reshaped, Reshaped)
    assert (reshaped.owner, ended, merge.made, merge.is_split) == (A, ReshapeEnded(merge), [WHOLE], False)
    assert (merge.reason, merge.because) == (MergeReason.ADMIN_MERGE, because)
    assert [each.version for each in leader.state.ownerships] == [2]


def test_bundle_may_be_cut_at_several_places() -> None:
    split = Reshaping(WHOLE, SplitReason.TOPICS, (WHOLE.range,))
    split.cut(Split(str(WHOLE), (0x40000000, 0x80000000), SplitReason.TOPICS), WHY)
    assert split.because is not None
    assert split.because.why["boundaries"] == "0x40000000, 0x80000000"
    assert [str(each.range) for each in split.made] == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xffffffff",
    ]


def test_topics_of_unknown_load_divide_no_history() -> None:
    leader, split = a_leader(), decided(topics=[TopicLoad(5, 1.0, 2.0)])
    leader.step(ReshapeWanted(split))
    reshaped, _ = leader.commit()
    assert isinstance(reshaped, Reshaped)
    assert not np.any([each.load for each in reshaped.loads.values()])


@given(st.data())
def test_bundles_are_conserved_versions_grow_and_every_reshape_ends(data: st.DataObject) -> None:
    """Covers actions in any order, lost owners, bundles under way, and failed writes."""
    leader = a_leader(bundles=4)
    in_progress: list[Reshaping] = []
    ended: list[Reshaping] = []
    for _ in range(data.draw(st.integers(1, 40))):
        before = leader.state
        match data.draw(st.sampled_from(["want", "want", "do", "do", "do", "do", "go", "move", "drop"])):
            case "want":
                in_progress.append(_draw_reshaping(leader, data))
                leader.step(ReshapeWanted(in_progress[-1]))
            case "do" if leader.to_do:
                _do_any_action(leader, data, ended)
            case "go" if len(leader.registered) > 1:
                leader.registered.discard(data.draw(st.sampled_from([A, B])))
            case "drop" if in_progress:
                leader.step(ReshapeRefused(data.draw(st.sampled_from(in_progress)), LOST))
            case _:
                _change_owner(leader, data)
        assert succession_violations(before, leader.state) == []
        alive = {each for each in in_progress if each.phase is not ReshapePhase.ENDED}
        assert leader.machine.being_split == {
            ("t/ns", each.bundle.range) for each in alive if each.is_split and each.phase is not ReshapePhase.PLACING
        }
    for _ in range(1_000):
        if not leader.to_do:
            break
        _do_any_action(leader, data, ended)
    assert {each for each in in_progress if each.phase is not ReshapePhase.ENDED} == set()
    assert len(ended) == len(set(ended)) == len(in_progress), "each ends exactly once"


def _any(leader: ReshapingsHarness, data: st.DataObject) -> BundleName:
    return BundleName(NAME, data.draw(st.sampled_from(leader.state.bundles.ranges())))


def _draw_reshaping(leader: ReshapingsHarness, data: st.DataObject) -> Reshaping:
    """Draw a requested split, a decided split, or a merge."""
    own, parts = _any(leader, data), data.draw(st.sampled_from(Parts))
    kind = data.draw(st.sampled_from(["asked for", "decided", "merge"]))
    if kind == "merge" and own.range.upper != WHOLE.range.upper:
        index = leader.state.bundles.index_of_hash(own.range.upper)
        upper = BundleName(NAME, leader.state.bundles.range_at(index))
        return Reshaping.merge(own, upper, Verdict(str(own), MergeReason.ADMIN_MERGE, acted=True))
    middle = (own.range.lower + own.range.upper) // 2
    if kind == "decided" and own.range.lower < middle:
        it = Reshaping(own, SplitReason.TOPICS, (own.range,), parts=parts)
        it.cut(Split(str(own), (middle,), SplitReason.TOPICS), WHY)
        return it
    return Reshaping.asked_for(own, data.draw(st.sampled_from([BY_RANGE, BY_TOPICS])), parts)


def _change_owner(leader: ReshapingsHarness, data: st.DataObject) -> None:
    """Assign or release a bundle, or end its release, outside the machine."""
    own = _any(leader, data)
    current = leader.find_ownership(str(own))
    assert current is not None
    match current.state:
        case OwnershipState.FREE:
            leader.put(own, assign(current, data.draw(st.sampled_from([A, B])), STAMP))
        case OwnershipState.OWNED:
            leader.put(own, release(current, None, STAMP))
        case _:
            leader.put(own, data.draw(st.sampled_from([complete, abandon]))(current, STAMP))


def _do_any_action(leader: ReshapingsHarness, data: st.DataObject, ended: list[Reshaping]) -> None:
    """Execute one drawn action."""
    action = leader.to_do.pop(data.draw(st.integers(0, len(leader.to_do) - 1)))
    match action:
        case Settle(it, current):
            if leader.find_ownership(str(it.bundle)) == current and current.state is OwnershipState.FREE:
                leader.put(it.bundle, assign(current, A, STAMP))
            leader.step(WaitEnded(it))
        case AskTopics(it):
            answer = data.draw(st.sampled_from([TOPICS, (), None]))
            leader.step(OwnerSilent(it, LOST) if answer is None else TopicsNamed(it, answer))
        case CommitReshape(it):
            try:
                leader.state = it.change(leader.state, STAMP)
            except IllegalTransitionError as error:
                leader.step(ReshapeRefused(it, error))
            else:
                leader.step(ReshapeCommitted(it, leader.state))
        case ChooseDestination(it, part):
            leader.step(
                DestinationChosen(
                    it,
                    data.draw(st.sampled_from([A, B, None])),
                    Verdict(str(part), PlacementReason.NO_OTHER_BROKER, acted=False),
                )
            )
        case Transfer(it):
            leader.step(WaitEnded(it))
        case ReshapeEnded(it):
            ended.append(it)
