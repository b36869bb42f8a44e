"""Poison bundles: each line of the table, and what holds whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker
from support.pictures import APicture

from loadmanager.core.leading.poison import (
    Condemned,
    Died,
    Instruction,
    Lift,
    Memory,
    Poison,
    Remember,
    Rules,
    Spared,
)
from loadmanager.core.ownership import (
    FREE,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    assign,
    inherit,
    owner_gone,
    release,
)

BUNDLE, OTHER = "t/ns/b", "t/ns/c"
RULES = Rules(deaths=3, soon_s=120.0, most=2)
BROKERS = [broker(f"b{number}") for number in range(6)]


@dataclass(slots=True)
class Fleet(APicture):
    """Bundles with their records, a clock, and the machine."""

    rules: Rules = RULES
    now_s: float = 10_000.0
    machine: Poison = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Poison(self, lambda: self.rules)
        self.records = dict.fromkeys([BUNDLE, OTHER], FREE)

    def gives(self, owner: Registration, *bundles: str) -> None:
        """These get an owner, in place of one that has died if there was any."""
        stamp = Stamp(1, round(self.now_s * 1000), "lookup")
        for bundle in bundles or (BUNDLE,):
            current = self.records[bundle]
            give = assign if current.owner is None else inherit
            self.records[bundle] = give(current, owner, stamp)

    def dies(self, owner: Registration, after_s: float = 5.0) -> list[Instruction]:
        self.now_s += after_s
        own = tuple(bundle for bundle, each in self.records.items() if each.owner == owner)
        return self.machine.step(Died(owner, own), self.now_s)

    def kills(self, *owners: Registration, after_s: float = 5.0) -> list[Instruction]:
        """Each gets the bundle, and dies."""
        done: list[Instruction] = []
        for owner in owners:
            self.gives(owner)
            done = self.dies(owner, after_s)
        return done

    @property
    def poison(self) -> set[str]:
        return set(self.machine.memory.poison)

    @property
    def deaths(self) -> int:
        """Of which the bundle is suspected."""
        suspect = self.machine.memory.suspects.get(BUNDLE)
        return 0 if suspect is None else len(suspect.deaths)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_the_third_owner_in_a_row_that_dies_soon_makes_it_poison(fleet: Fleet) -> None:
    assert fleet.kills(*BROKERS[:2]) == [Remember()]
    assert (fleet.deaths, fleet.poison) == (2, set())
    condemned, remember = fleet.kills(BROKERS[2])
    assert isinstance(condemned, Condemned)
    assert [death.broker for death in condemned.deaths] == [each.broker for each in BROKERS[:3]]
    assert {death.held_s for death in condemned.deaths} == {5.0}
    assert (condemned.bundle, remember, fleet.poison, fleet.deaths) == (BUNDLE, Remember(), {BUNDLE}, 0)


def test_the_next_one_may_have_got_it_in_one_step(fleet: Fleet) -> None:
    for owner in BROKERS[:3]:
        stamp = Stamp(1, round(fleet.now_s * 1000), "lookup")
        fleet.records[BUNDLE] = assign(Ownership(version=fleet.records[BUNDLE].version), owner, stamp)
        fleet.dies(owner)
    assert fleet.poison == {BUNDLE}


def test_an_owner_that_lived_with_it_makes_it_clean(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    assert fleet.kills(BROKERS[2], after_s=RULES.soon_s + 1) == [Remember()]
    assert (fleet.deaths, fleet.poison) == (0, set())


def test_an_owner_that_gave_it_away_alive_has_the_count_begin_anew(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    fleet.gives(BROKERS[2])
    stamp = Stamp(1, round(fleet.now_s * 1000), "shed")
    released = release(fleet.records[BUNDLE], BROKERS[3], stamp)
    fleet.records[BUNDLE] = assign(Ownership(version=released.version), BROKERS[3], stamp)
    fleet.dies(BROKERS[3])
    assert (fleet.deaths, fleet.poison) == (1, set())


def test_a_registration_counts_once(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    assert fleet.dies(BROKERS[1]) == [], "it is seen again by the next leader"
    fleet.kills(BROKERS[1])
    assert (fleet.deaths, fleet.poison) == (2, set()), "it cannot die twice"
    fleet.kills(replace(BROKERS[1], incarnation=9))
    assert fleet.poison == {BUNDLE}, "another life of the same broker can"


def test_one_that_dies_while_it_is_leaving_says_nothing(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    fleet.gives(BROKERS[2])
    fleet.records[BUNDLE] = release(fleet.records[BUNDLE], None, Stamp(1, round(fleet.now_s * 1000), "shed"))
    assert fleet.dies(BROKERS[2]) == []
    assert fleet.records[BUNDLE].state is OwnershipState.RELEASING


def test_where_many_bundles_would_be_poison_none_is_until_few_are_left(fleet: Fleet) -> None:
    bundles = [f"t/ns/{number}" for number in range(4)]
    fleet.records = dict.fromkeys([BUNDLE, *bundles], FREE)
    for owner in BROKERS[:3]:
        fleet.gives(owner, *fleet.records)
        done = fleet.dies(owner)
    assert done == [Spared(BROKERS[2], tuple(fleet.records)), Remember()]
    assert fleet.poison == set()
    fleet.gives(BROKERS[3], BUNDLE, *bundles[:1])
    fleet.gives(BROKERS[4], *bundles[1:])
    fleet.dies(BROKERS[3])
    assert fleet.poison == {BUNDLE, bundles[0]}


def test_it_stays_poison_until_it_is_lifted(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:3])
    assert fleet.kills(*BROKERS[3:]) == [], "whoever has it in spite of it"
    assert fleet.machine.step(Lift(OTHER), fleet.now_s) == []
    assert fleet.poison == {BUNDLE}
    assert fleet.machine.step(Lift(BUNDLE), fleet.now_s) == [Remember()]
    assert (fleet.poison, fleet.deaths) == (set(), 0)
    fleet.kills(*[replace(each, incarnation=7) for each in BROKERS[:3]])
    assert fleet.machine.step(Lift(None), fleet.now_s) == [Remember()]
    assert fleet.poison == set()


def test_it_is_never_poison_where_no_deaths_are_enough() -> None:
    fleet = Fleet(rules=RULES._replace(deaths=0))
    assert fleet.kills(*BROKERS) == []
    assert fleet.machine.memory == Memory()


def test_what_is_no_more_and_what_was_long_ago_is_forgotten(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:3])
    fleet.gives(BROKERS[0], OTHER)
    fleet.dies(BROKERS[0])
    del fleet.records[BUNDLE]
    assert fleet.dies(BROKERS[4]) == [], "not at once"
    assert fleet.dies(BROKERS[4], after_s=60.0) == [Remember()]
    assert fleet.poison == set()
    assert fleet.machine.memory.suspects.keys() == {OTHER}
    fleet.dies(BROKERS[4], after_s=86_401.0)
    assert fleet.machine.memory == Memory()
    assert fleet.machine.step(Died(BROKERS[0], ("t/ns/gone",)), fleet.now_s) == []


def test_of_very_many_suspects_those_are_kept_of_which_most_owners_died(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    many = [f"t/ns/{number}" for number in range(2_100)]
    fleet.records |= dict.fromkeys(many, FREE)
    fleet.gives(BROKERS[2], *many)
    fleet.dies(BROKERS[2])
    assert len(fleet.machine.memory.suspects) == 2_101
    fleet.dies(BROKERS[4])
    assert len(fleet.machine.memory.suspects) == 1_000
    assert fleet.deaths == 2


def test_the_next_one_may_have_got_it_after_it_was_free(fleet: Fleet) -> None:
    fleet.kills(BROKERS[0])
    fleet.records[BUNDLE] = owner_gone(fleet.records[BUNDLE], Stamp(1, 1000, "owner_gone"))
    fleet.kills(BROKERS[1])
    assert fleet.deaths == 2


def test_a_death_that_two_leaders_have_seen_counts_once_and_those_before_are_remembered(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    stored, fleet.machine.memory = fleet.machine.memory, Memory()
    fleet.dies(BROKERS[1])
    assert fleet.deaths == 1
    assert stored.joined(fleet.machine.memory) == stored


def test_what_two_leaders_have_seen_is_put_together(fleet: Fleet) -> None:
    fleet.kills(*BROKERS[:2])
    stored, fleet.machine.memory = fleet.machine.memory, Memory(poison={OTHER: ()})
    fleet.kills(BROKERS[2])
    assert fleet.deaths == 1
    fleet.machine.memory = stored.joined(fleet.machine.memory)
    assert (fleet.deaths, fleet.poison) == (3, {OTHER})
    assert fleet.machine.memory.joined(Memory()) == fleet.machine.memory
    assert Memory().joined(stored) == stored
    fleet.kills(BROKERS[3])
    assert fleet.poison == {BUNDLE, OTHER}


@dataclass(slots=True)
class Watched(Fleet):
    """With all deaths of owners as they were: of each bundle, who in a row died soon after it got it."""

    rows: dict[str, list[Registration]] = field(default_factory=dict)
    lives: int = 0

    def run(self, what: str, number: int, after_s: float) -> None:
        owner = replace(BROKERS[number], incarnation=100 + self.lives)
        bundles = [BUNDLE, OTHER][: 1 + number % 2]
        match what:
            case "die":
                self.lives += 1
                self.gives(owner, *bundles)
                self.dies(owner, after_s)
                for bundle in bundles:
                    self.rows[bundle] = [*self.rows.get(bundle, []), owner] if after_s <= RULES.soon_s else []
            case "live":
                self.lives += 1
                self.gives(owner, *bundles)
                stamp = Stamp(1, round(self.now_s * 1000), "shed")
                for bundle in bundles:
                    self.records[bundle] = replace(
                        release(self.records[bundle], None, stamp), state=OwnershipState.FREE, owner=None
                    )
                    self.records[bundle] = replace(self.records[bundle], version=self.records[bundle].version + 1)
                    self.rows[bundle] = []
            case "again" if self.rows:
                self.dies(replace(owner, incarnation=99 + self.lives), after_s)
            case "lift":
                self.machine.step(Lift(None), self.now_s)
                self.rows.clear()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["die", "die", "die", "live", "again", "lift"]),
            st.integers(0, 5),
            st.sampled_from([0.0, 5.0, 5.0, 119.0, 121.0]),
        ),
        max_size=40,
    )
)
def test_nothing_is_poison_for_fewer_deaths_than_that(steps: list[tuple[str, int, float]]) -> None:
    rules = RULES._replace(most=1)
    watched = Watched(rules=rules)
    for step in steps:
        before = watched.poison
        watched.run(*step)
        for bundle in watched.poison - before:
            last = watched.rows[bundle][-RULES.deaths :]
            assert len(set(last)) >= RULES.deaths, "so many registrations in a row"
            deaths = watched.machine.memory.poison[bundle][-RULES.deaths :]
            assert [death[:2] for death in deaths] == [(each.broker, each.incarnation) for each in last]
            assert all(death.held_s <= RULES.soon_s for death in deaths)
        assert len(watched.poison - before) <= rules.most
        assert not watched.poison & watched.machine.memory.suspects.keys()
        assert step[0] == "lift" or before <= watched.poison, "only an operator lifts it"
