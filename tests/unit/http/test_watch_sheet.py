from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from support.registrations import a_record

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId, BundleRange, NamespaceName
from loadmanager.core.domain.ownership import (
    NamespaceState,
    OwnershipState,
    Registration,
    Stamp,
    assign,
    complete,
    release,
)
from loadmanager.http.watch_sheet import STEPS_KEPT, Sheet
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry

NAME = "t/ns"
STAMP = Stamp(1, 0, "test")
B1, B2 = Registration(BrokerId("b1:8080"), 11), Registration(BrokerId("b2:8080"), 12)
Event = tuple[str, str, dict[str, Any]]


def an_entry(bundles: int = 4, function: HashFunction = HashFunction.MURMUR3_32) -> NamespaceEntry:
    cut = NamespaceBundles(equal_boundaries(bundles), function)
    return NamespaceEntry(NamespaceState.unowned(NamespaceName.parse(NAME), cut), 0, czxid=1, digest=0)


def read(chunk: bytes) -> Event:
    """Decode an event: id and data."""
    length, _, frame = chunk.partition(b"\r\n")
    assert len(frame) == int(length, 16) + 2
    fields = dict(line.split(": ", 1) for line in frame.decode().strip().split("\n"))
    return fields["event"], fields["id"], orjson.loads(fields["data"])


@dataclass
class Follower:
    """A client, which does what the interface says that clients do."""

    place: int | None = None
    id: str = ""
    bundles: dict[BundleRange, Any] = field(default_factory=dict)
    brokers: dict[str, Any] = field(default_factory=dict)
    steps: int = 0

    def catch_up(self, sheet: Sheet) -> None:
        if self.place == sheet.place:
            return
        kind, self.id, data = read(sheet.since(self.place))
        self.place = sheet.place
        self.steps += 1
        if kind != "change":
            self.bundles.clear()
            self.brokers.clear()
        for text, entry in data.get("bundles", {}).items():
            new = BundleRange.parse(text)
            kept = {old: each for old, each in self.bundles.items() if old.upper <= new.lower or new.upper <= old.lower}
            self.bundles = kept | {new: entry}
        self.brokers |= data.get("brokers", {})

    @property
    def known(self) -> tuple[Any, Any]:
        """State that matters: brokers named by bundles."""
        named = {each.get(key) for each in self.bundles.values() for key in ("owner", "destination")}
        return self.bundles, {broker: each for broker, each in self.brokers.items() if broker in named}


@dataclass
class ChangingMirror:
    """A view that changes, as nodes see it change."""

    mirror: ClusterMirror = field(default_factory=ClusterMirror)

    def __post_init__(self) -> None:
        self.put(an_entry().state)
        for registration in (B1, B2):
            self.come(registration)

    def come(self, registration: Registration, host: str = "") -> None:
        record = a_record(registration.broker)
        record["pulsarServiceUrl"] = f"pulsar://{host or registration.broker}"
        self.mirror.put_broker(registration, 0, record)

    def put(self, state: NamespaceState) -> None:
        before = self.mirror.namespaces.get(NAME)
        version = 0 if before is None else before.version + 1
        self.mirror.put_namespace(NamespaceEntry(state, version, czxid=1, digest=0))

    def look(self, sheet: Sheet) -> bool:
        entry = self.mirror.namespaces.get(NAME)
        return sheet.lose("there is none") if entry is None else sheet.look(entry, self.mirror.brokers)

    def change(self, what: str, where: int) -> None:
        """One thing that can happen, to the bundle or broker at a place; nothing, where it cannot."""
        broker = (B1, B2)[where % 2]
        if what == "come":
            self.come(broker._replace(incarnation=20 + where), f"host-{where}")
        elif what == "leave":
            self.mirror.drop_broker(broker.broker)
        elif what == "delete":
            self.mirror.drop_namespace(NAME)
        elif what == "create":
            self.put(an_entry(where % 3 + 1, list(HashFunction)[where % 2]).state)
        elif NAME in self.mirror.namespaces:
            self._transit(what, where)

    def _transit(self, what: str, where: int) -> None:
        state = self.mirror.namespaces[NAME].state
        index = where % len(state.bundles)
        current, own = state.ownerships[index], state.bundles.range_at(index)
        if what == "split" and current.state is not OwnershipState.RELEASING and own.upper - own.lower > 2:
            self.put(state.split(index, [(own.lower + own.upper) // 2], STAMP))
        elif what == "merge" and index + 1 < len(state.bundles):
            lower, upper = state.ownerships[index : index + 2]
            if lower.owner == upper.owner and OwnershipState.RELEASING not in (lower.state, upper.state):
                self.put(state.merge(index, STAMP))
        elif what == "move":
            live = self.mirror.registrations.get((B1, B2)[where % 2].broker, B1)
            if current.state is OwnershipState.FREE:
                after = assign(current, live, STAMP)
            elif current.state is OwnershipState.OWNED:
                after = release(current, live, STAMP)
            else:
                after = complete(current, STAMP)
            self.put(state.with_ownerships({index: after}))


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(
            ["move", "move", "move", "split", "merge", "come", "leave", "delete", "create", "look", "other"]
        ),
        st.integers(0, 7),
    ),
    max_size=60,
)


@given(HAPPENINGS, st.integers(0, 7))
def test_followers_of_any_node_converge(happenings: list[tuple[str, int]], seldom: int) -> None:
    changing, here, there = ChangingMirror(), Sheet(NAME), Sheet(NAME)
    often, rarely, wanderer = Follower(), Follower(), Follower()
    changing.look(here)
    changing.look(there)
    for number, (what, where) in enumerate([*happenings, ("look", 0), ("other", 0)]):
        if what == "look":
            changing.look(here)
            often.catch_up(here)
            if where == seldom:
                rarely.catch_up(here)
        elif what == "other":
            changing.look(there)
            node = (here, there)[number % 2]
            wanderer.place = node.place_of(wanderer.id)
            wanderer.catch_up(node)
        else:
            changing.change(what, where)
    for sheet in (here, there):
        changing.look(sheet)
    rarely.catch_up(here)
    often.catch_up(here)
    wanderer.place = there.place_of(wanderer.id)
    wanderer.catch_up(there)
    fresh = Follower()
    fresh.catch_up(there)
    assert often.known == rarely.known == wanderer.known == fresh.known
    assert here.id == there.id == fresh.id == often.id == rarely.id == wanderer.id


def test_changes_are_merged_and_their_bytes_shared() -> None:
    changing, sheet = ChangingMirror(), Sheet(NAME)
    assert changing.look(sheet)
    start = sheet.place
    for _ in range(3):
        changing.change("move", 1)
        assert changing.look(sheet)
    assert not changing.look(sheet)
    kind, _, told = read(sheet.since(start))
    assert (kind, told["version"]) == ("change", 3)
    assert list(told["bundles"].values()) == [{"state": "Owned", "version": 3, "owner": "b2:8080"}]
    assert sheet.since(start) is sheet.since(start)
    assert sheet.since(None) is sheet.since(None)


def test_follower_too_far_behind_gets_a_snapshot() -> None:
    changing, sheet = ChangingMirror(), Sheet(NAME)
    changing.look(sheet)
    start, old = sheet.place, sheet.id
    for number in range(STEPS_KEPT):
        assert sheet.place_of(old) == start
        assert number == 0 or read(sheet.since(start))[0] == "change"
        changing.change("move", 0)
        changing.look(sheet)
    assert sheet.place_of(old) is None
    assert read(sheet.since(start))[0] == "snapshot"


def test_changed_hash_function_gets_a_snapshot_and_cached_events_are_bounded() -> None:
    changing, sheet = ChangingMirror(), Sheet(NAME)
    changing.look(sheet)
    places = []
    for _ in range(40):
        places.append(sheet.place)
        changing.change("move", 0)
        changing.look(sheet)
    for place in places:
        sheet.since(place)
    assert len(sheet._made) <= 16
    start = sheet.place
    changing.put(an_entry(4, HashFunction.CRC32).state)
    changing.look(sheet)
    kind, _, told = read(sheet.since(start))
    assert (kind, told["hashFunction"]) == ("snapshot", "crc32")


def test_record_without_news_is_no_change() -> None:
    changing, sheet = ChangingMirror(), Sheet(NAME)
    changing.look(sheet)
    before = sheet.id
    state = changing.mirror.namespaces[NAME].state
    changing.put(state.with_ownerships({0: state.ownerships[0]._replace(reason="another", since_ms=5)}))
    assert not changing.look(sheet)
    assert sheet.id == before
