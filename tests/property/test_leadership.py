from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadmanager.core.protocol.leadership import (
    Campaign,
    Knowledge,
    LeaderZnode,
    Reassure,
    StepDown,
    Term,
    Vacate,
    Wait,
    choose_action,
    open_since,
)

SMALL = st.integers(min_value=0, max_value=3)
NODES = st.sampled_from(["n1:1", "n2:1"])
LEADERS = st.builds(LeaderZnode, NODES, st.just("http://n2:1"), epoch=SMALL, session_id=SMALL, czxid=SMALL)
TURN_S = 1.0
MARGINS_S = st.sampled_from([-1.0, 0.0, 0.5, 3.0])


@st.composite
def knowledge(draw: st.DrawFn, *, leads: bool) -> Knowledge:
    """Draw any knowledge of a node; its session and epoch often match the mirror."""
    now_s = draw(st.floats(min_value=0, max_value=10))
    session_id, epoch = draw(SMALL), draw(SMALL)
    return Knowledge(
        now_s=now_s,
        node_id=draw(NODES),
        session_id=session_id,
        lease_valid_until_s=now_s + draw(MARGINS_S),
        mirror_is_fresh=draw(st.booleans()),
        epoch_version=epoch,
        leader=draw(st.none() | LEADERS),
        term=Term(draw(st.just(epoch) | SMALL), draw(st.just(session_id) | SMALL)) if leads else None,
        ended_czxid=draw(st.none() | SMALL),
        silent_czxid=draw(st.none() | SMALL),
        is_suspected=draw(st.booleans()),
        open_since_s=draw(st.none() | st.sampled_from([now_s - 3.0, now_s - 0.5, now_s])),
        unsound_until_s=now_s + draw(MARGINS_S),
        turn_s=draw(st.sampled_from([0.0, 1.0])),
    )


@given(knowledge(leads=False))
def test_node_campaigns_only_with_a_valid_lease_and_a_fresh_mirror(known: Knowledge) -> None:
    action = choose_action(known)
    may_act = known.mirror_is_fresh and known.now_s < known.lease_valid_until_s
    assert may_act or action == Wait(None)
    if isinstance(action, Campaign):
        assert (action.epoch_version, action.replaces_leader) == (known.epoch_version, known.leader is not None)
        if action.on_suspicion:
            assert known.leader is not None
            assert known.leader.czxid == known.silent_czxid
            assert isinstance(choose_action(replace(known, silent_czxid=None)), Wait), "nothing else allows it"
    elif isinstance(action, Vacate):
        assert known.leader is not None
        assert known.node_id == known.leader.node_id or known.session_id == known.leader.session_id
        assert action == Vacate(known.epoch_version)
    else:
        assert isinstance(action, Wait), "a node without a term has nothing to step down from"
        assert action.until_s is None or action.until_s > known.now_s


@given(knowledge(leads=False))
def test_fresh_node_waits_indefinitely_only_while_a_leader_exists(known: Knowledge) -> None:
    if known.mirror_is_fresh and known.now_s < known.lease_valid_until_s:
        assert (choose_action(known) == Wait(None)) == (open_since(known) is None)


@given(knowledge(leads=False))
def test_node_with_a_recently_broken_link_defers_for_a_bounded_time(known: Knowledge) -> None:
    begun_s = known.now_s if known.open_since_s is None else known.open_since_s
    is_others_turn = known.now_s < min(known.unsound_until_s, begun_s + known.turn_s)
    action = choose_action(known)
    if isinstance(action, Campaign):
        assert not is_others_turn
    elif isinstance(action, Vacate):
        assert is_others_turn, "with a sound link, or alone, it campaigns at once"
    sound = replace(known, unsound_until_s=known.now_s)
    alone = replace(known, turn_s=0.0)
    assert choose_action(sound) == choose_action(alone), "a single node does not defer"
    if isinstance(choose_action(sound), Campaign):
        later = replace(known, now_s=begun_s + known.turn_s, lease_valid_until_s=math.inf)
        assert isinstance(action, Campaign | Vacate | Wait)
        assert isinstance(choose_action(replace(later, open_since_s=begun_s)), Campaign), "its own turn comes"


@given(knowledge(leads=False))
def test_open_since_is_kept_until_a_leader_is_seen(known: Knowledge) -> None:
    since_s = open_since(known)
    if not known.mirror_is_fresh:
        assert since_s == known.open_since_s
        return
    sound = replace(known, unsound_until_s=known.now_s, lease_valid_until_s=math.inf)
    may_campaign = isinstance(choose_action(sound), Campaign)
    assert (since_s is not None) == may_campaign
    if may_campaign:
        assert since_s == (known.now_s if known.open_since_s is None else known.open_since_s)
    assert open_since(replace(known, term=Term(known.epoch_version, known.session_id))) is None


@given(knowledge(leads=True), st.floats(min_value=0, max_value=10))
def test_leader_continues_only_in_its_session_lease_and_epoch(known: Knowledge, later_s: float) -> None:
    assert known.term is not None
    action = choose_action(known)
    has_to_go = (
        known.now_s >= known.lease_valid_until_s
        or known.session_id != known.term.session_id
        or (known.mirror_is_fresh and known.epoch_version > known.term.epoch)
    )
    if isinstance(action, Reassure):
        assert not has_to_go
        assert known.is_suspected
        assert action.epoch == known.term.epoch
    elif isinstance(action, Wait):
        assert not has_to_go
        assert action.until_s is not None
        assert action.until_s > known.now_s
        later = replace(known, now_s=known.now_s + later_s)
        assert isinstance(choose_action(later), Wait) == (later.now_s < action.until_s)
    else:
        assert isinstance(action, StepDown), "a leader neither campaigns nor probes"


@dataclass
class Candidate:
    """A node with its last view of the cluster, which may be stale."""

    node_id: str
    session_id: int
    known_epoch: int = 0
    known_leader: LeaderZnode | None = None
    fresh: bool = True
    lease_valid_until_s: float = 5.0
    term: Term | None = None
    ended: int | None = None
    open_since_s: float | None = None
    unsound_until_s: float = -math.inf
    terms: list[Term] = field(default_factory=list)


class Elections(RuleBasedStateMachine):
    """Three nodes on one store; reads, leases and process exits come in any order, and a campaign is a transaction."""

    @initialize()
    def start(self) -> None:
        self.now_s = 0.0
        self.epoch = 0
        self.leader: LeaderZnode | None = None
        self.zxid = 0
        self.nodes = [Candidate(f"n{i}:1", i + 1) for i in range(3)]
        self.won: list[Term] = []

    @rule(index=st.integers(0, 2))
    def look(self, index: int) -> None:
        node = self.nodes[index]
        node.known_epoch, node.known_leader, node.fresh = self.epoch, self.leader, True

    @rule(index=st.integers(0, 2))
    def heartbeat_answered(self, index: int) -> None:
        self.nodes[index].lease_valid_until_s = self.now_s + 5.0

    @rule(seconds=st.floats(0.0, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(index=st.integers(0, 2))
    def session_expires(self, index: int) -> None:
        node = self.nodes[index]
        if self.leader is not None and self.leader.session_id == node.session_id:
            self.leader = None
        node.session_id += 3
        node.fresh = False

    @rule(index=st.integers(0, 2))
    def link_breaks(self, index: int) -> None:
        node = self.nodes[index]
        node.fresh, node.unsound_until_s = False, self.now_s + 5.0

    @precondition(lambda self: self.leader is not None)
    @rule()
    def leader_znode_is_spoiled(self) -> None:
        assert self.leader is not None
        self.leader = replace(self.leader, node_id="", service_url="", epoch=0)

    @rule(index=st.integers(0, 2))
    def leaders_process_seems_to_have_ended(self, index: int) -> None:
        """Also a false alarm: the epoch still prevents writes by two leaders."""
        node = self.nodes[index]
        node.ended = None if node.known_leader is None else node.known_leader.czxid

    @rule(index=st.integers(0, 2))
    def act(self, index: int) -> None:
        node = self.nodes[index]
        node.open_since_s = open_since(self._knowledge(node))
        action = choose_action(self._knowledge(node))
        if isinstance(action, StepDown):
            node.term = None
        elif isinstance(action, Campaign):
            self._campaign(node, action)
        elif isinstance(action, Vacate) and action.epoch_version == self.epoch:
            assert self.leader is None or self.leader.node_id in {node.node_id, ""}, "it is another's"
            self.leader = None

    @rule()
    def all_nodes_recover_and_one_leads(self) -> None:
        """A cluster of live processes finds a leader from any state."""
        for _ in range(4):
            self.time_passes(TURN_S)
            for index in range(len(self.nodes)):
                self.heartbeat_answered(index)
                self.look(index)
                self.act(index)
        assert [n for n in self.nodes if n.term is not None and n.term.epoch == self.epoch]

    @invariant()
    def no_epoch_is_won_twice(self) -> None:
        epochs = [term.epoch for term in self.won]
        assert epochs == sorted(set(epochs))

    @invariant()
    def a_term_is_acted_on_only_in_its_own_session_and_within_the_lease(self) -> None:
        for node in self.nodes:
            trusted = node.term is not None and not isinstance(choose_action(self._knowledge(node)), StepDown)
            if trusted:
                assert node.term is not None
                assert node.term.session_id == node.session_id
                assert self.now_s < node.lease_valid_until_s

    def _knowledge(self, node: Candidate) -> Knowledge:
        return Knowledge(
            now_s=self.now_s,
            node_id=node.node_id,
            session_id=node.session_id,
            lease_valid_until_s=node.lease_valid_until_s,
            mirror_is_fresh=node.fresh,
            epoch_version=node.known_epoch,
            leader=node.known_leader,
            term=node.term,
            ended_czxid=node.ended,
            open_since_s=node.open_since_s,
            unsound_until_s=node.unsound_until_s,
            turn_s=TURN_S,
        )

    def _campaign(self, node: Candidate, campaign: Campaign) -> None:
        """Commit a campaign; refuse it if epoch or leader differ from the candidate's view."""
        if campaign.epoch_version != self.epoch or campaign.replaces_leader != (self.leader is not None):
            return
        self.epoch += 1
        self.zxid += 1
        self.leader = LeaderZnode(node.node_id, f"http://{node.node_id}", self.epoch, node.session_id, self.zxid)
        node.term = Term(self.epoch, node.session_id)
        self.won.append(node.term)


TestElections = Elections.TestCase
