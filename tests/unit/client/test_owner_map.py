from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pushing_nodes import BROKERS, ENTRIES, NAMESPACE, STAMP, PushingNode, assigned, moved_on, unowned

from loadmanager.client.owner_map import BEHIND_S, OwnerMap
from loadmanager.client.push_events import Owner, StreamEvent
from loadmanager.core.domain.bundles import HashFunction
from loadmanager.core.domain.names import InvalidNameError, TopicName
from loadmanager.core.domain.ownership import NamespaceState, OwnershipState, release
from loadmanager.errors import InvalidRecordError

TOPICS = [f"{domain}://{NAMESPACE}/k{number}" for domain in ("persistent", "non-persistent") for number in range(16)]
TOPIC = TOPICS[0]


def owners_of(state: NamespaceState) -> list[str | None]:
    """Owner of each of `TOPICS` by the server; destinations of those on their way."""
    there = (state.ownerships[state.bundles.index_of_topic(str(TopicName.parse(topic)))] for topic in TOPICS)
    found = [
        {OwnershipState.OWNED: each.owner, OwnershipState.RELEASING: each.destination}.get(each.state) for each in there
    ]
    return [None if each is None else each.broker for each in found]


def known_to(owners: OwnerMap) -> list[str | None]:
    found = [owners.resolve(topic) for topic in TOPICS]
    return [None if owner is None else owner.broker_id for owner in found]


def mark_of(owners: OwnerMap) -> str:
    return "".join(owners.marks([NAMESPACE]))


def a_map(**options: Any) -> OwnerMap:  # noqa: ANN401 - its own options
    owners = OwnerMap(**options)
    owners.follow(NAMESPACE, 0.0)
    return owners


def told(owners: OwnerMap, *history: NamespaceState, now_s: float = 0.0) -> PushingNode:
    """A node that has told the map all of the history."""
    node = PushingNode(history)
    for at in range(len(history)):
        node.look(at)
        event = node.event(mark_of(owners))
        if event is not None:
            owners.take(event, now_s)
    return node


def versions_of(owners: OwnerMap) -> list[int]:
    pushed = [owners.place_of(topic).pushed for topic in TOPICS]
    return [-1 if each is None else each.version for each in pushed]


class Walk:
    """A client that follows one of two nodes, which lag; events come twice."""

    def __init__(self, chance: random.Random, function: HashFunction) -> None:
        self.chance = chance
        self.history = [unowned(4, function)]
        self.owners = a_map(topics_kept=8)
        self.nodes = [PushingNode(self.history), PushingNode(self.history)]
        self.followed = self.nodes[0]
        self.said: StreamEvent | None = None

    def step(self, now_s: float) -> None:
        chance = self.chance
        match chance.randrange(6):
            case 0 | 1:
                self.history.append(moved_on(self.history[-1], chance))
            case 2:
                node = chance.choice(self.nodes)
                node.look(chance.randint(node.at, len(self.history) - 1))
            case 3:
                self.hear(now_s)
            case 4:
                self.followed = chance.choice(self.nodes)
                if chance.random() < 0.3:
                    self.owners.drop_marks([NAMESPACE])
            case 5 if self.said is not None:
                self.owners.take(self.said, now_s)
        self.owners.expire(now_s)

    def hear(self, now_s: float) -> None:
        event = self.followed.event(mark_of(self.owners))
        if event is not None:
            self.said = event
            self.owners.take(event, now_s)


@pytest.fixture
def owners() -> OwnerMap:
    return a_map()


@given(st.integers(0, 2**32), st.sampled_from(HashFunction))
def test_newest_state_wins_in_any_order_of_events(seed: int, function: HashFunction) -> None:
    walk = Walk(random.Random(seed), function)
    before = versions_of(walk.owners)
    for number in range(60):
        walk.step(number * BEHIND_S / 100)
        versions = versions_of(walk.owners)
        assert all(now >= then for now, then in zip(versions, before, strict=True)), "it went back in time"
        before = versions
    walk.followed.look(len(walk.history) - 1)
    walk.hear(BEHIND_S)
    assert known_to(walk.owners) == owners_of(walk.history[-1])
    assert mark_of(walk.owners) == walk.followed.sheet.id


OWNED = assigned(assigned(assigned(assigned(unowned(), 0), 1), 2), 3)
"""All four bundles by the first broker."""
A, B, C = (Owner.of_json(json.loads(ENTRIES[each.broker].lookup_body), "") for each in BROKERS)


def moving(state: NamespaceState = OWNED, topic: str = TOPIC) -> NamespaceState:
    index = state.bundles.index_of_topic(topic)
    return state.with_ownerships({index: release(state.ownerships[index], BROKERS[1], STAMP)})


def test_move_changes_only_the_topics_of_its_bundle(owners: OwnerMap) -> None:
    told(owners, OWNED)
    assert known_to(owners) == owners_of(OWNED) == [A.broker_id] * len(TOPICS)
    told(owners, OWNED, moving())
    assert known_to(owners) == owners_of(moving())
    assert set(known_to(owners)) == {A.broker_id, B.broker_id}
    assert owners.place_of(TOPIC).is_moving
    assert not owners.place_of("persistent://else/where/x").is_moving


@pytest.mark.parametrize(
    "topic", ["", "orders", "persistent://t/ns", "persistent://t/nsx", "persistent://t/ns/", "file://t/ns/x"]
)
def test_invalid_topic_is_rejected(owners: OwnerMap, topic: str) -> None:
    for _ in range(2):
        with pytest.raises(InvalidNameError, match="expected"):
            owners.resolve(topic)
        told(owners, OWNED)


def test_unfollowed_namespace_has_no_owners() -> None:
    owners = OwnerMap()
    told(owners, OWNED)
    assert owners.resolve(TOPIC) is None
    assert not owners.is_settled(NAMESPACE)
    owners.take(gone(), 0.0)
    owners.forget(NAMESPACE)
    assert owners.marks([NAMESPACE]) == []


def gone() -> StreamEvent:
    return StreamEvent("gone", f"{NAMESPACE}@0", json.dumps({"namespace": NAMESPACE, "reason": "not found"}).encode())


@pytest.mark.parametrize("how", ["gone", "forget", "unheard"])
def test_removed_namespace_has_no_owner_not_even_the_last(how: str) -> None:
    owners = a_map(kept_s=60.0)
    told(owners, OWNED)
    assert owners.resolve(TOPIC) == A
    match how:
        case "gone":
            owners.take(gone(), 1.0)
            assert owners.is_settled(NAMESPACE)
        case "forget":
            owners.forget(NAMESPACE)
        case _:
            owners.heard([NAMESPACE, "t/other"], 1.0)
            owners.expire(60.9)
            assert owners.resolve(TOPIC) == A
            owners.expire(61.0)
    assert owners.resolve(TOPIC) is None
    assert owners.find_last_known(owners.place_of(TOPIC), 61.0) is None
    owners.follow(NAMESPACE, 70.0)
    told(owners, OWNED, now_s=70.0)
    assert owners.resolve(TOPIC) == A


def test_refusing_broker_is_returned_again_only_after_an_answer_or_change(owners: OwnerMap) -> None:
    told(owners, OWNED)
    owners.refused(TOPIC, "b9:8080")
    assert owners.resolve(TOPIC) == A
    owners.refused(TOPIC, A.broker_id)
    owners.refused(TOPIC, A.broker_id)
    place = owners.place_of(TOPIC)
    assert (owners.resolve(TOPIC), place.refusals) == (None, 1), "however many topics of the bundle it refuses"
    assert owners.find_last_known(place, 1e9) == A
    owners.answered(place, place.pushed, A, 0.0)
    assert (owners.resolve(TOPIC), place.refusals) == (A, 1)
    owners.refused(TOPIC, A.broker_id)
    assert place.refusals == 2
    owners.answered(place, place.pushed, B, 0.0)
    assert (owners.resolve(TOPIC), place.refusals) == (B, 0)
    told(owners, OWNED, moving())
    assert owners.resolve(TOPIC) == B


def test_moving_bundle_has_owner_and_destination(owners: OwnerMap) -> None:
    told(owners, OWNED, moving())
    owners.refused(TOPIC, A.broker_id)
    assert owners.resolve(TOPIC) == B, "it says what is known already"
    owners.refused(TOPIC, B.broker_id)
    place = owners.place_of(TOPIC)
    assert (owners.resolve(TOPIC), place.refusals) == (None, 1)
    assert owners.find_last_known(place, 0.0) == A
    change(owners, {str(place.pushed.range): {"state": "Owned", "version": 3, "owner": B.broker_id}})  # type: ignore[union-attr]  # it was pushed
    assert (owners.resolve(TOPIC), place.refusals) == (B, 0)


def test_answer_counts_unless_a_newer_push_arrived(owners: OwnerMap) -> None:
    told(owners, unowned())
    place = owners.place_of(TOPIC)
    asked = place.pushed
    told(owners, unowned(), OWNED)
    owners.answered(place, asked, C, 0.0)
    assert owners.resolve(TOPIC) == A
    split = OWNED.split(
        OWNED.bundles.index_of_topic(TOPIC),
        [OWNED.bundles.range_at(OWNED.bundles.index_of_topic(TOPIC)).lower + 1],
        STAMP,
    )
    told(owners, OWNED, split)
    owners.answered(place, asked, C, 0.0)
    assert owners.resolve(TOPIC) == A


def test_answer_for_an_unfollowed_namespace_is_a_temporary_last_resort() -> None:
    owners = OwnerMap(kept_s=60.0)
    place = owners.place_of(TOPIC)
    owners.answered(place, None, B, 10.0)
    assert owners.resolve(TOPIC) is None
    assert owners.place_of(TOPIC) is place
    assert owners.find_last_known(place, 69.9) == B
    assert owners.find_last_known(place, 70.0) is None
    owners.refused(TOPIC, B.broker_id)
    owners.answered(place, None, B, 10.0)
    assert place.refusals == 1
    told(owners, OWNED)
    owners.follow(NAMESPACE, 10.0)
    told(owners, OWNED, now_s=10.0)
    assert owners.resolve(TOPIC) == A


def test_lagging_node_is_ignored_until_it_has_caught_up(owners: OwnerMap) -> None:
    newest = moving()
    told(owners, OWNED, newest)
    owners.drop_marks([NAMESPACE])
    lagging = told(owners, unowned(), now_s=1.0)
    assert known_to(owners) == owners_of(newest)
    owners.expire(BEHIND_S)
    assert known_to(owners) == owners_of(newest)
    lagging.history = [unowned(), OWNED, newest]
    for at in (1, 2):
        lagging.look(at)
        event = lagging.event(mark_of(owners))
        assert event is not None
        owners.take(event, 2.0)
        assert known_to(owners) == owners_of(newest)
    owners.expire(1e3)
    assert known_to(owners) == owners_of(newest)


def test_older_state_is_accepted_after_a_while(owners: OwnerMap) -> None:
    told(owners, OWNED)
    owners.drop_marks([NAMESPACE])
    told(owners, unowned(), now_s=1.0)
    owners.expire(1.0 + BEHIND_S)
    assert known_to(owners) == owners_of(unowned())


def test_change_to_an_older_version_is_not_accepted_at_once(owners: OwnerMap) -> None:
    told(owners, OWNED)
    (text,) = {str(each.range) for each in [owners.place_of(TOPIC).pushed] if each}
    change(owners, {text: {"state": "Free", "version": 0}}, now_s=5.0)
    assert owners.resolve(TOPIC) == A
    owners.expire(5.0 + BEHIND_S)
    assert owners.resolve(TOPIC) is None


def change(
    owners: OwnerMap, bundles: dict[str, Any], brokers: dict[str, Any] | None = None, now_s: float = 0.0
) -> None:
    said = {"namespace": NAMESPACE, "version": 9, "bundles": bundles, "brokers": brokers or {}}
    owners.take(StreamEvent("change", f"{NAMESPACE}@9", json.dumps(said).encode()), now_s)


@pytest.mark.parametrize(
    ("bundles", "wrong"),
    [
        ({"0x00000000_0x10000000": {"state": "Free", "version": 9}}, "begins|ends at 0x10000000"),
        ({"0x00000000_0x50000000": {"state": "Free", "version": 9}}, "ends at 0x50000000"),
    ],
)
def test_change_with_a_gap_is_refused(owners: OwnerMap, bundles: dict[str, Any], wrong: str) -> None:
    told(owners, OWNED)
    with pytest.raises(InvalidRecordError, match=wrong):
        change(owners, bundles)
    assert known_to(owners) == owners_of(OWNED)


def test_change_without_a_snapshot_is_rejected() -> None:
    with pytest.raises(InvalidRecordError, match="before any snapshot"):
        change(a_map(), {})


def test_unknown_events_are_ignored(owners: OwnerMap) -> None:
    owners.take(StreamEvent("weather", "", b"rain"), 0.0)
    assert not owners.is_settled(NAMESPACE)


def test_changed_broker_address_is_applied(owners: OwnerMap) -> None:
    told(owners, assigned(unowned(2), 0), assigned(assigned(unowned(2), 0), 1, BROKERS[1]))
    elsewhere = {"brokerId": A.broker_id, "brokerUrl": "pulsar://elsewhere:1"}
    change(owners, {}, {A.broker_id: {"incarnation": 1, "lookup": elsewhere}})
    assert {each and each.broker_url for each in map(owners.resolve, TOPICS)} == {B.broker_url, "pulsar://elsewhere:1"}


def test_unnamed_brokers_are_forgotten(owners: OwnerMap) -> None:
    told(owners, moving())
    for number in range(40):
        name = f"c{number}:1"
        change(owners, {}, {name: {"lookup": {"brokerId": name}}})
    bundles = owners._shown[f"persistent://{NAMESPACE}"]
    assert len(bundles.brokers) <= 2 * 4 + 1
    assert {A.broker_id, B.broker_id} <= bundles.brokers.keys()


def test_addresses_are_those_of_the_requested_listener() -> None:
    owners = a_map(listener="inside")
    lookup = {"brokerId": "b:1", "brokerUrl": "pulsar://outside:1"}
    with_it = {"lookup": lookup, "listeners": {"inside": {"brokerId": "b:1", "brokerUrl": "pulsar://inside:1"}}}
    said = {
        "namespace": NAMESPACE,
        "hashFunction": "crc32",
        "bundles": {"0x00000000_0xffffffff": {"state": "Owned", "version": 1, "owner": "b:1"}},
        "brokers": {"b:1": with_it},
    }
    owners.take(StreamEvent("snapshot", "m", json.dumps(said).encode()), 0.0)
    assert owners.resolve(TOPIC) == Owner("b:1", "pulsar://inside:1")
    change(owners, {}, {"b:1": {"lookup": lookup}})
    assert owners.resolve(TOPIC) is None


def test_topic_cache_is_bounded() -> None:
    owners = a_map(topics_kept=10)
    told(owners, OWNED)
    for number in range(1_000):
        assert owners.resolve(f"persistent://{NAMESPACE}/many-{number}") == A
    assert len(owners._topics) <= 10
    assert owners.resolve(f"persistent://{NAMESPACE}/many-0") == A
