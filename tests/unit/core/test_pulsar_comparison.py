from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import MIB, broker, bundle

from loadmanager.core.diagnosis.pulsar_comparison import (
    MOVES,
    NO_LIFE,
    STALLS,
    ComparedRounds,
    ComparisonEntry,
    Event,
    PulsarComparison,
    RegistrationEnded,
    Sighted,
    Time,
    Wish,
)
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Figure, Plan, Unload, Verdict
from loadmanager.core.domain.reasons import (
    ChurnReason,
    ComparisonReason,
    PlacementReason,
    Reason,
    SheddingReason,
)
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason

A, B, C = broker("a"), broker("b"), broker("c")
HOT, OTHER, THIRD = bundle(1), bundle(2), bundle(3)
MINUTE_MS = 60_000


class Bench:
    """Comparison with its verdicts so far; the test sets its time in seconds."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.judging = PulsarComparison(lambda name: name not in self.gone)
        self.said: list[ComparisonEntry] = []

    def step(self, event: Event) -> list[ComparisonEntry]:
        said = self.judging.step(event)
        self.said += said
        return said

    def move(
        self, name: str, before: Registration | None, after: Registration | None, at_s: float, *, by_us: bool = False
    ) -> list[ComparisonEntry]:
        return self.step(Sighted(name, before, after, round(at_s * 1000), by_us, 10 * MIB))

    def plan(
        self, at_s: float, ours: Sequence[Unload] = (), *pulsars: Unload | Verdict, said: Sequence[Verdict] = ()
    ) -> list[ComparisonEntry]:
        """A round of ours, and what Pulsar's strategy would do at the same moment."""
        steps = tuple(each for each in pulsars if isinstance(each, Unload))
        verdicts = tuple(each for each in pulsars if isinstance(each, Verdict))
        loads = {step.bundle: 20.0 * MIB for step in ours}
        at_ms = round(at_s * 1000)
        return self.step(ComparedRounds(at_ms, plan_of(ours, said), plan_of(steps, verdicts), loads, MINUTE_MS))

    def wait(self, at_s: float) -> list[ComparisonEntry]:
        return self.step(Time(round(at_s * 1000)))


def plan_of(steps: Sequence[Unload], verdicts: Sequence[Verdict]) -> Plan:
    return Plan(1, 0.0, tuple(steps), tuple(verdicts))


def unload(name: str, source: Registration = A, destination: Registration | None = B) -> Unload:
    return Unload(name, source, destination, ThresholdReason.BROKER_ABOVE_AVERAGE)


def says(subject: str, reason: Reason, **why: Figure) -> Verdict:
    return Verdict(subject, reason, acted=False, why=why)


def sheds(source: str = "a:8080") -> Verdict:
    return Verdict(source, ThresholdReason.BROKER_ABOVE_AVERAGE, acted=True)


def stays(name: str, **why: Figure) -> Verdict:
    return says(name, PlacementReason.OWNER_CHOSEN, broker="a:8080", **why)


def reasons(said: Sequence[ComparisonEntry]) -> list[tuple[str, ComparisonReason]]:
    return [(entry.verdict.subject, entry.reason) for entry in said]


def only(said: Sequence[ComparisonEntry]) -> ComparisonEntry:
    (entry,) = said
    return entry


# Moves of Pulsar's


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_settled_move_that_we_wanted_counts_as_agreed(bench: Bench) -> None:
    bench.plan(0, [unload(HOT)])
    assert bench.move(HOT, A, B, 10) == []
    assert bench.judging.unjudged == 1
    entry = only(bench.wait(15))
    assert (entry.reason, entry.verdict.acted, entry.load, entry.at_ms) == (
        ComparisonReason.MOVED_AS_WE_WOULD,
        True,
        10 * MIB,
        15_000,
    )
    assert entry.verdict.sentence() == "Pulsar moved it from a:8080 to b:8080, 10 MiB/s, and so would we"
    assert (bench.judging.unjudged, bench.judging.wishes) == (0, {})


def test_move_seen_as_release_and_assignment_is_one_move(bench: Bench) -> None:
    bench.plan(0, [unload(HOT)])
    assert [bench.move(HOT, A, None, 10), bench.move(HOT, None, B, 12)] == [[], []]
    assert bench.wait(16.9) == []
    assert reasons(bench.wait(17)) == [(HOT, ComparisonReason.MOVED_AS_WE_WOULD)]
    assert bench.wait(100) == []


def test_late_check_judges_a_move_once(bench: Bench) -> None:
    bench.move(HOT, A, None, 10)
    bench.move(HOT, None, B, 12)
    assert len(bench.wait(100)) == 1


def test_move_to_another_destination_than_ours(bench: Bench) -> None:
    bench.plan(0, [unload(HOT, A, C)])
    bench.move(HOT, A, B, 10)
    entry = only(bench.wait(15))
    assert entry.reason is ComparisonReason.MOVED_ELSEWHERE
    assert entry.verdict.sentence() == "Pulsar moved it from a:8080 to b:8080, 10 MiB/s; so would we, but to c:8080"


def test_move_of_a_wish_without_a_destination(bench: Bench) -> None:
    bench.plan(0, [unload(HOT, A, None)])
    bench.move(HOT, A, B, 10)
    assert only(bench.wait(15)).verdict.why["ours"] == "another broker"


def test_move_of_another_bundle_of_the_same_broker(bench: Bench) -> None:
    bench.plan(0, [unload(OTHER), unload(THIRD)])
    bench.move(HOT, A, B, 10)
    entry = only(bench.wait(15))
    assert entry.reason is ComparisonReason.MOVED_ANOTHER
    assert entry.verdict.sentence().endswith(f"we would have taken others from there (2), {OTHER} first")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([says("a:8080", SheddingReason.NO_BUNDLES)], SheddingReason.NO_BUNDLES),
        ([says("cluster", SheddingReason.SHEDDING_FROZEN, frozen="tonight")], SheddingReason.SHEDDING_FROZEN),
        (
            [says("a:8080", SheddingReason.NO_BUNDLES), says(HOT, ChurnReason.NO_RETURN)],
            ChurnReason.NO_RETURN,
        ),
    ],
)
def test_unwanted_move_has_our_reason(bench: Bench, said: list[Verdict], expected: Reason) -> None:
    bench.plan(0, [unload(OTHER, C, B)], unload(HOT), said=said)
    bench.move(HOT, A, B, 10)
    entry = only(bench.wait(15))
    assert entry.reason is ComparisonReason.MOVED_AGAINST_US
    assert [verdict.verdict for verdict in entry.because] == [expected]


def test_move_not_selected_by_pulsars_strategy(bench: Bench) -> None:
    bench.plan(0)
    bench.move(HOT, A, B, 10)
    entry = only(bench.wait(15))
    assert (entry.reason, entry.because) == (ComparisonReason.MOVED_UNSELECTED, ())


def test_move_under_an_unknown_strategy_is_not_called_unselected(bench: Bench) -> None:
    bench.plan(0, [], UNKNOWN)
    bench.move(HOT, A, B, 10)
    assert reasons(bench.wait(15)) == [(HOT, ComparisonReason.MOVED_AGAINST_US)]


def test_move_before_our_first_round(bench: Bench) -> None:
    bench.move(HOT, A, B, 10)
    bench.plan(12, [unload(OTHER)])
    assert reasons(bench.wait(15)) == [(HOT, ComparisonReason.MOVED_BEFORE_OUR_ROUND)]


def test_move_is_compared_with_the_last_round_before_it(bench: Bench) -> None:
    bench.plan(0, said=[says("a:8080", SheddingReason.NO_BUNDLES)])
    bench.move(HOT, A, B, 10)
    bench.plan(12, [unload(HOT), unload(OTHER)])
    assert OTHER in bench.judging.wishes
    assert HOT not in bench.judging.wishes
    assert [verdict.verdict for verdict in only(bench.wait(15)).because] == [SheddingReason.NO_BUNDLES]


def test_bundle_that_returns_to_its_owner_came_back(bench: Bench) -> None:
    bench.plan(0, said=[says("a:8080", SheddingReason.NO_BUNDLES)])
    bench.move(HOT, A, None, 10)
    bench.move(HOT, None, A, 10.4)
    entry = only(bench.wait(16))
    assert (entry.reason, entry.verdict.why["seconds"], len(entry.because)) == (ComparisonReason.CAME_BACK, 0.4, 1)


def test_bundle_without_lookups_is_left_without_an_owner(bench: Bench) -> None:
    bench.move(HOT, A, None, 10)
    assert bench.wait(39.9) == []
    entry = only(bench.wait(40))
    assert (entry.reason, entry.verdict.why["seconds"], entry.because) == (ComparisonReason.LEFT_WITHOUT_OWNER, 30, ())
    assert bench.move(HOT, None, B, 50) == []
    assert reasons(bench.wait(55)) == [(HOT, ComparisonReason.FIRST_OWNER)]


def test_moves_from_a_lost_broker_are_not_shedding_decisions(bench: Bench) -> None:
    bench.plan(0)
    bench.move(HOT, A, B, 10)
    bench.move(OTHER, C, B, 10)
    bench.step(RegistrationEnded(A, 12_000))
    bench.move(THIRD, A, None, 13)
    said = [*bench.wait(20), *bench.wait(43)]
    assert dict(reasons(said)) == {
        HOT: ComparisonReason.OWNER_LEFT,
        OTHER: ComparisonReason.MOVED_UNSELECTED,
        THIRD: ComparisonReason.OWNER_LEFT,
    }
    assert said[-1].verdict.sentence().startswith("a:8080, its owner, left; nobody has looked it up since then")


@pytest.mark.parametrize(("before", "after"), [(A, broker("a", 2)), (broker("a", NO_LIFE), B)])
def test_move_from_a_former_registration_means_that_the_owner_left(
    bench: Bench, before: Registration, after: Registration
) -> None:
    bench.move(HOT, before, after, 10)
    assert reasons(bench.wait(15)) == [(HOT, ComparisonReason.OWNER_LEFT)]


def test_lost_broker_is_forgotten_after_an_hour(bench: Bench) -> None:
    bench.step(RegistrationEnded(A, 0))
    bench.plan(3_600)
    bench.move(HOT, A, B, 3_600)
    bench.plan(3_601)
    bench.move(OTHER, A, B, 3_602)
    assert [reason for _, reason in reasons(bench.wait(3_700))] == [
        ComparisonReason.OWNER_LEFT,
        ComparisonReason.MOVED_UNSELECTED,
    ]


def test_own_moves_are_marked_as_ours(bench: Bench) -> None:
    bench.plan(0, [unload(HOT)])
    bench.move(HOT, A, None, 10)
    bench.move(HOT, None, B, 11, by_us=True)
    bench.move(OTHER, A, None, 11, by_us=True)
    assert reasons([*bench.wait(16), *bench.wait(41)]) == [
        (HOT, ComparisonReason.MOVED_BY_US),
        (OTHER, ComparisonReason.MOVED_BY_US),
    ]
    assert bench.judging.wishes == {}


def test_vanished_bundle_was_split(bench: Bench) -> None:
    bench.gone.add(HOT)
    bench.move(HOT, A, None, 10)
    bench.move(OTHER, A, None, 10)
    assert reasons(bench.wait(40)) == [
        (HOT, ComparisonReason.PULSAR_SPLIT),
        (OTHER, ComparisonReason.LEFT_WITHOUT_OWNER),
    ]


def test_move_of_a_new_bundle_counts_as_a_split(bench: Bench) -> None:
    bench.step(Sighted(HOT, A, B, 10_000, by_us=False, is_new=True))
    bench.step(Sighted(OTHER, None, B, 10_000, by_us=False, is_new=True))
    assert reasons(bench.wait(15)) == [(HOT, ComparisonReason.PULSAR_SPLIT), (OTHER, ComparisonReason.FIRST_OWNER)]


def test_second_move_before_settling_ends_the_first(bench: Bench) -> None:
    bench.move(HOT, A, B, 10)
    assert reasons(bench.move(HOT, B, None, 11)) == [(HOT, ComparisonReason.MOVED_BEFORE_OUR_ROUND)]
    said = bench.move(HOT, C, A, 12)  # that it came to c was not seen
    assert only(said).verdict.why["destination"] == "c:8080"
    assert only(bench.wait(17)).verdict.why["source"] == "c:8080"


def test_move_back_within_an_hour_is_reported(bench: Bench) -> None:
    bench.plan(0, [unload(OTHER)], said=[says("b:8080", SheddingReason.NO_BUNDLES)])
    bench.move(HOT, A, B, 10)
    bench.move(HOT, B, A, 130)
    bench.move(HOT, A, B, 190)
    bench.move(HOT, B, C, 250)
    bench.wait(255)
    assert [reason for _, reason in reasons(bench.said)] == [
        ComparisonReason.MOVED_ANOTHER,
        ComparisonReason.MOVED_BACK,
        ComparisonReason.MOVED_BACK,
        ComparisonReason.MOVED_UNSELECTED,
    ]
    assert bench.said[1].verdict.sentence() == (
        "Pulsar moved it back from b:8080 to a:8080, which it had left 2 min before, 10 MiB/s, and we would not"
    )
    assert [each.verdict for each in bench.said[1].because] == [SheddingReason.NO_BUNDLES]


def test_moves_that_do_not_count_as_moved_back(bench: Bench) -> None:
    bench.plan(0)
    bench.move(HOT, A, B, 10)
    bench.move(OTHER, A, B, 10, by_us=True)
    bench.move(THIRD, A, B, 10)
    bench.plan(60, [unload(HOT, B, A)])
    bench.move(HOT, B, A, 70)
    bench.move(OTHER, B, A, 70)
    bench.plan(3_700)
    bench.move(THIRD, B, A, 3_710)
    bench.wait(3_715)
    assert [reason for _, reason in reasons(bench.said[3:])] == [
        ComparisonReason.MOVED_AS_WE_WOULD,
        ComparisonReason.MOVED_ANOTHER,
        ComparisonReason.MOVED_UNSELECTED,
    ]


def test_assignment_after_an_unseen_release_is_a_first_owner(bench: Bench) -> None:
    bench.move(HOT, A, B, 10)
    assert reasons(bench.move(HOT, None, C, 11)) == [(HOT, ComparisonReason.MOVED_BEFORE_OUR_ROUND)]
    assert reasons(bench.wait(16)) == [(HOT, ComparisonReason.FIRST_OWNER)]


def test_clock_set_back_delays_no_verdict(bench: Bench) -> None:
    bench.move(HOT, A, B, 100)
    bench.move(OTHER, A, B, 50)
    assert len(bench.wait(105)) == 2


# Moves that Pulsar does not make


def test_unmet_wish_is_reported_after_a_grace_period(bench: Bench) -> None:
    not_hot = says("a:8080", SheddingReason.BELOW_THRESHOLD)
    assert [bench.plan(at_s, [unload(HOT)], not_hot) for at_s in (0, 60)] == [[], []]
    entry = only(bench.plan(120, [unload(HOT)], not_hot))
    assert (entry.reason, entry.because, entry.verdict.acted) == (
        ComparisonReason.WE_ALONE_NOT_SELECTED,
        (not_hot,),
        False,
    )
    assert entry.verdict.sentence() == (
        "We would move it from a:8080 to b:8080, 20 MiB/s, and Pulsar does not: its strategy does not select it"
    )
    assert bench.plan(180, [unload(HOT)], not_hot) == []
    over = only(bench.plan(240))
    assert (over.reason, over.verdict.why["minutes"]) == (ComparisonReason.NO_LONGER_WANTED, 4)


def test_late_move_after_an_unmet_wish_is_agreed(bench: Bench) -> None:
    for at_s in (0, 60, 120):
        bench.plan(at_s, [unload(HOT)])
    bench.move(HOT, A, B, 180)
    assert only(bench.wait(185)).verdict.sentence() == (
        "Pulsar moved it from a:8080 to b:8080, 10 MiB/s, and so would we, 3 min before"
    )


def test_wish_with_another_source_is_a_new_wish(bench: Bench) -> None:
    bench.plan(0, [unload(HOT, A)])
    assert reasons(bench.plan(60, [unload(HOT, C)])) == [(HOT, ComparisonReason.NO_LONGER_WANTED)]
    assert bench.judging.wishes[HOT].since_ms == MINUTE_MS
    bench.move(HOT, A, B, 61)  # it was not seen to come to a
    assert reasons(bench.wait(66)) == [(HOT, ComparisonReason.MOVED_UNSELECTED)]
    assert list(bench.judging.wishes) == [HOT]


UNKNOWN = says("cluster", ComparisonReason.STRATEGY_UNKNOWN)
OFF = says("cluster", SheddingReason.SHEDDING_DISABLED)
IDLE = says("cluster", ThresholdReason.CLUSTER_IDLE)
GRACE = says(HOT, SheddingReason.RECENTLY_UNLOADED)
EXCLUDED = says(HOT, SheddingReason.NAMESPACE_EXCLUDED)


@pytest.mark.parametrize(
    ("pulsars", "reason", "because"),
    [
        ([OFF], ComparisonReason.WE_ALONE_SHEDDING_OFF, [OFF]),
        ([UNKNOWN], ComparisonReason.WE_ALONE_UNKNOWN, [UNKNOWN]),
        ([IDLE], ComparisonReason.WE_ALONE_NOT_SELECTED, [IDLE]),
        ([GRACE, sheds()], ComparisonReason.WE_ALONE_WAITS, [GRACE]),
        ([stays(HOT), sheds()], ComparisonReason.WE_ALONE_STAYS, [stays(HOT)]),
        ([EXCLUDED], ComparisonReason.WE_ALONE_STAYS, [EXCLUDED]),
        ([unload(HOT), sheds()], ComparisonReason.WE_ALONE_UNEXPLAINED, []),
        ([], ComparisonReason.WE_ALONE_NOT_SELECTED, []),
    ],
)
def test_reason_of_an_unmet_wish(
    bench: Bench, pulsars: list[Unload | Verdict], reason: ComparisonReason, because: list[Verdict]
) -> None:
    for at_s in (0, 75):
        bench.plan(at_s, [unload(HOT)], *pulsars)
    entry = only(bench.said)
    assert (entry.reason, [each.verdict for each in entry.because]) == (reason, [each.verdict for each in because])


def test_unmet_wish_during_a_stall_names_the_stall(bench: Bench) -> None:
    for at_s in (0, 60, 120):
        bench.plan(at_s, [unload(OTHER)] if at_s else [], stays(HOT), sheds())
    said = bench.plan(180, [unload(OTHER)], stays(HOT), sheds())
    assert reasons(said) == [(OTHER, ComparisonReason.WE_ALONE_STALLED)]
    assert [each.verdict for each in only(said).because] == [ComparisonReason.STALLED_ON_OWNER]


# Stalls


def test_two_rounds_without_effect_are_a_stall(bench: Bench) -> None:
    kept = stays(HOT, owns_more_of_namespace=2)
    assert [bench.plan(at_s, [], kept, sheds()) for at_s in (0, 60)] == [[], []]
    entry = only(bench.plan(120, [], kept, sheds()))
    assert (entry.reason, entry.because, bench.judging.stalled) == (ComparisonReason.STALLED_ON_OWNER, (kept,), entry)
    assert entry.load == 0
    assert entry.verdict.sentence() == (
        "Pulsar has stalled: for 2 rounds its strategy selected 1 of the bundles of a:8080, and its placement chose"
        " their present owner each time. Nothing moves, and every round repeats this"
    )
    assert entry.verdict.remedy() == (
        "set loadBalancerDistributeBundlesEvenlyEnabled to false on Pulsar's brokers, because it excludes 2 brokers;"
        " or let us act"
    )
    assert bench.plan(180, [], kept, sheds()) == []


def test_stall_tolerates_rounds_a_tenth_early(bench: Bench) -> None:
    assert [bench.plan(at_s, [], stays(HOT)) for at_s in (0, 54, 113)] == [[], [], []]
    assert reasons(bench.plan(114, [], stays(HOT))) == [("pulsar", ComparisonReason.STALLED_ON_OWNER)]


def test_frequent_rounds_do_not_shorten_a_stall(bench: Bench) -> None:
    for at_s in range(0, 108, 10):
        assert bench.plan(at_s, [], stays(HOT)) == []
    assert reasons(bench.plan(120, [], stays(HOT))) == [("pulsar", ComparisonReason.STALLED_ON_OWNER)]


@pytest.mark.parametrize(
    ("pulsars", "reason"),
    [
        ([stays(HOT), says(OTHER, PlacementReason.NO_OTHER_BROKER)], ComparisonReason.STALLED_WITHOUT_DESTINATION),
        ([stays(HOT), unload(OTHER)], ComparisonReason.STALLED_UNEXPLAINED),
    ],
)
def test_reason_of_a_stall(bench: Bench, pulsars: list[Unload | Verdict], reason: ComparisonReason) -> None:
    for at_s in (0, 60, 120):
        bench.plan(at_s, [], *pulsars)
    entry = only(bench.said)
    assert (entry.reason, entry.verdict.why["source"], entry.verdict.why["bundles"]) == (reason, "its brokers", 2)


def test_stall_ends_with_a_move(bench: Bench) -> None:
    for at_s in (0, 60, 120):
        bench.plan(at_s, [], stays(HOT))
    bench.move(OTHER, A, B, 177)
    over = only(bench.plan(180, [], stays(HOT)))
    assert (over.reason, over.verdict.why, bench.judging.stalled) == (ComparisonReason.STALL_OVER, {"minutes": 3}, None)
    bench.wait(185)
    assert [bench.plan(at_s, [], stays(HOT)) for at_s in (240, 300)] == [[], []]
    assert reasons(bench.plan(360, [], stays(HOT))) == [("pulsar", ComparisonReason.STALLED_ON_OWNER)]


def test_stall_ends_when_nothing_is_selected(bench: Bench) -> None:
    for at_s in (0, 60, 120):
        bench.plan(at_s, [], stays(HOT))
    over = only(bench.plan(180))
    assert over.verdict.sentence() == "Pulsar's strategy no longer selects a bundle, after 3 min without a move"


@pytest.mark.parametrize(
    "move",
    [
        [(OTHER, A, None, 30), (OTHER, None, A, 31)],
        [(OTHER, None, A, 30)],
        [(OTHER, A, broker("a", 2), 30)],
    ],
)
def test_ineffective_moves_do_not_end_a_stall(
    bench: Bench,
    move: list[tuple[str, Registration | None, Registration | None, float]],
) -> None:
    bench.plan(0, [], stays(HOT))
    for each in move:
        bench.move(*each)
    bench.wait(40)
    bench.plan(60, [], stays(HOT))
    assert reasons(bench.plan(120, [], stays(HOT))) == [("pulsar", ComparisonReason.STALLED_ON_OWNER)]


# Properties

OWNERS = (A, B, C)
NAMES = (HOT, OTHER, THIRD)
_owners = st.sampled_from((None, *OWNERS))
_moved = st.tuples(st.just("move"), st.sampled_from(NAMES), _owners, st.booleans())
_left = st.tuples(st.just("left"), st.sampled_from(OWNERS))
_round = st.tuples(
    st.just("round"),
    st.dictionaries(st.sampled_from(NAMES), st.tuples(st.sampled_from(OWNERS), _owners), max_size=3),
    st.sets(st.sampled_from(NAMES), max_size=2),
)
_events = st.lists(
    st.tuples(st.one_of(_moved, _left, _round, st.tuples(st.just("time"))), st.integers(-2_000, 90_000)), max_size=40
)


class ComparisonModel:
    """Random events in a consistent order of owners, with the verdicts that must follow."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.owners: dict[str, Registration | None] = dict.fromkeys(NAMES)
        self.at_ms = 0
        self.departures: Counter[str] = Counter()
        self.wishes: list[Wish] = []
        self.wishes_taken = 0

    def apply(self, happened: tuple[object, ...], at_ms: int) -> None:
        self.at_ms = at_ms
        before = list(self.bench.judging.wishes.values())
        match happened:
            case ("move", str(name), after, bool(by_us)):
                assert after is None or isinstance(after, Registration)
                self._move(name, after, by_us=by_us)
            case ("left", Registration() as owner):
                self.bench.step(RegistrationEnded(owner, at_ms))
            case ("round", dict(ours), set(selected)):
                steps = [unload(name, source, destination) for name, (source, destination) in ours.items()]
                self.bench.plan(at_ms / 1000, steps, *map(stays, sorted(selected)))
            case _:
                self.bench.step(Time(at_ms))
        now = list(self.bench.judging.wishes.values())
        self.wishes += [wish for wish in now if wish not in before]
        self.wishes_taken += happened[0] == "move" and len(before) - len(now)

    def _move(self, name: str, after: Registration | None, *, by_us: bool) -> None:
        before, self.owners[name] = self.owners[name], after
        self.bench.step(Time(self.at_ms))
        if before == after:
            return
        is_second_part = before is None and self.departures[name] > self.judged()[name]
        self.departures[name] += not is_second_part
        self.bench.step(Sighted(name, before, after, self.at_ms, by_us))

    def judged(self) -> Counter[str]:
        """Count the moves of each bundle that have a verdict."""
        return Counter(entry.verdict.subject for entry in self.bench.said if entry.reason in MOVES)

    def count(self, reason: ComparisonReason) -> int:
        return sum(entry.reason is reason for entry in self.bench.said)


@given(_events)
def test_each_move_is_judged_once_and_each_wish_has_one_end(happened: list[tuple[tuple[object, ...], int]]) -> None:
    model = ComparisonModel()
    judging = model.bench.judging
    for each, later_ms in happened:
        model.apply(each, max(0, model.at_ms + later_ms))
        assert model.judged() <= model.departures
        assert (judging.stalled is not None) == (
            sum(entry.reason in STALLS for entry in model.bench.said) > model.count(ComparisonReason.STALL_OVER)
        )
    model.bench.step(Time(10**9))
    assert model.judged() == +model.departures
    assert judging.unjudged == 0
    ended = model.count(ComparisonReason.NO_LONGER_WANTED) + model.wishes_taken
    assert len(model.wishes) == ended + len(judging.wishes)
