from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import FilterReason, ValidationReason
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.core.model.broker_health import (
    FEWEST_PEERS,
    LEAST,
    WELL_AFTER,
    HealthDetector,
    HealthPhase,
    has_changed,
)

PATIENCE_S = 180.0
BROKERS = [broker(name) for name in "abcdefghi"]
A, B, C = BROKERS[:3]
WELL, BAD = HealthFigures(10.0, 0.0, 2.0), HealthFigures(2_500.0, 0.4, 2.0)


class Told:
    """A machine, and the time."""

    def __init__(self, brokers: int = 9) -> None:
        self.health = HealthDetector()
        self.now_s = 1_000.0
        self.say(dict.fromkeys(BROKERS[:brokers], WELL))
        self.sick()

    def say(self, figures: Mapping[Registration, HealthFigures | None]) -> None:
        for registration, each in figures.items():
            self.health.hear(registration, each, self.now_s)

    def sick(self, after_s: float = 0.0) -> set[str]:
        self.now_s += after_s
        self.found = self.health.look(self.now_s, PATIENCE_S)
        return set(self.found.sick)

    def phase(self) -> HealthPhase:
        life = self.health._lives.get(A.broker)
        return HealthPhase.WELL if life is None else life.phase

    def until(self, phase: HealthPhase) -> Told:
        """Bring A to this phase."""
        if phase is not HealthPhase.WELL:
            self.say({A: BAD})
        if phase in (HealthPhase.SICK, HealthPhase.RECOVERING):
            assert self.sick(PATIENCE_S) == {A.broker}
        if phase is HealthPhase.RECOVERING:
            self.say({A: WELL})
        assert self.phase() is phase
        return self


@pytest.mark.parametrize(
    ("phase", "figures", "after_s", "then"),
    [
        (HealthPhase.WELL, BAD, 0.0, HealthPhase.SUSPECT),
        (HealthPhase.WELL, WELL, 10 * PATIENCE_S, HealthPhase.WELL),
        (HealthPhase.SUSPECT, WELL, 0.0, HealthPhase.WELL),
        (HealthPhase.SUSPECT, BAD, PATIENCE_S - 1, HealthPhase.SUSPECT),
        (HealthPhase.SUSPECT, BAD, PATIENCE_S, HealthPhase.SICK),
        (HealthPhase.SICK, BAD, 10 * PATIENCE_S, HealthPhase.SICK),
        (HealthPhase.SICK, WELL, 0.0, HealthPhase.RECOVERING),
        (HealthPhase.RECOVERING, BAD, 0.0, HealthPhase.SICK),
        (HealthPhase.RECOVERING, WELL, WELL_AFTER * PATIENCE_S - 1, HealthPhase.RECOVERING),
        (HealthPhase.RECOVERING, WELL, WELL_AFTER * PATIENCE_S, HealthPhase.WELL),
        (HealthPhase.SICK, None, 0.0, HealthPhase.RECOVERING),
    ],
)
def test_the_table(phase: HealthPhase, figures: HealthFigures | None, after_s: float, then: HealthPhase) -> None:
    told = Told().until(phase)
    told.say({A: figures})
    told.sick(after_s)
    assert told.phase() is then
    assert (A.broker in told.found.sick) == (then in (HealthPhase.SICK, HealthPhase.RECOVERING))


def test_it_says_why_and_until_when() -> None:
    told = Told().until(HealthPhase.SICK)
    told.sick(60.0)
    verdict = told.found.sick[A.broker]
    assert verdict.verdict is FilterReason.BROKER_SICK
    assert verdict.sentence() == (
        "Nothing is moved to it because it has been sick for 240 s: its latency came to 2500 ms, that of its peers to"
        " 10 ms"
    )
    assert verdict.why["well_after_s"] == WELL_AFTER * PATIENCE_S
    told.say({A: WELL})
    told.sick(100.0)
    assert told.found.sick[A.broker].why["well_after_s"] == WELL_AFTER * PATIENCE_S - 100


@pytest.mark.parametrize(
    ("bad", "figure", "value"),
    [
        (HealthFigures(latency_ms=400.0), "latency", "400 ms"),
        (HealthFigures(error_share=0.2), "share of errors", "20 %"),
        (HealthFigures(queue=7_000.0), "queue", "7000"),
        (HealthFigures(150.0, 0.9, 300.0), "share of errors", "90 %"),
    ],
)
def test_each_figure_alone_makes_sick_and_the_furthest_off_is_said(bad: HealthFigures, figure: str, value: str) -> None:
    told = Told()
    told.say({A: bad})
    assert told.sick(PATIENCE_S) == {A.broker}
    why = told.found.sick[A.broker].why
    assert (why["figure"], why["value"]) == (figure, value)


def test_below_the_least_that_counts_nobody_is_sick() -> None:
    told = Told()
    told.say({A: LEAST})
    assert told.sick(PATIENCE_S) == set()


def test_where_all_are_slow_or_far_apart_only_one_that_is_far_off_these_is_sick() -> None:
    told = Told()
    slow = {each: HealthFigures(latency_ms=300.0 + 100 * number) for number, each in enumerate(BROKERS)}
    told.say(slow)
    assert told.sick(PATIENCE_S) == set()
    told.say({A: HealthFigures(latency_ms=2_500.0)})
    assert told.sick(PATIENCE_S) == set(), "more than three times the median, and within six deviations"
    told.say({A: HealthFigures(latency_ms=2_600.0)})
    assert told.sick(PATIENCE_S) == {A.broker}


def test_half_the_bar_keeps_a_broker_sick() -> None:
    told = Told().until(HealthPhase.SICK)
    told.say({A: HealthFigures(60.0, 0.0, 2.0)})
    told.sick(10 * PATIENCE_S)
    assert told.phase() is HealthPhase.SICK
    told.say({A: HealthFigures(40.0, 0.0, 2.0)})
    assert told.phase() is HealthPhase.RECOVERING


@pytest.mark.parametrize(("brokers", "sick"), [(FEWEST_PEERS - 1, set()), (FEWEST_PEERS, {A.broker})])
def test_it_takes_peers_to_be_off_them(brokers: int, sick: set[str]) -> None:
    told = Told(brokers)
    told.say({A: BAD})
    assert told.sick(PATIENCE_S) == sick
    assert told.sick(PATIENCE_S) == sick


def test_without_figures_nobody_is_ever_sick() -> None:
    health = HealthDetector()
    for each in BROKERS:
        health.hear(each, None, 0.0)
    assert health.look(1e6, 0.0).sick == {}


def test_a_common_cause_makes_nobody_sick_and_is_said() -> None:
    told = Told()
    off = BROKERS[:4]
    told.say(dict.fromkeys(off, BAD))
    assert told.sick(PATIENCE_S) == set()
    assert [each.subject for each in told.found.left_in] == [each.broker for each in off]
    first = told.found.left_in[0]
    assert first.verdict is ValidationReason.SICK_WITH_OTHERS
    assert first.sentence() == (
        "Given bundles only where no less sick broker may have them: its latency is 2500 ms, that of well brokers"
        " 10 ms; 4 of 9 brokers are sick, so the cause is probably common"
    )
    told.say({A: WELL})
    assert told.sick() == {each.broker for each in off[1:]}


@pytest.mark.parametrize(("off", "brokers"), [(2, 4), (3, 4), (2, 3), (5, 9), (8, 9)])
def test_half_of_the_fleet_or_more_is_compared_with_its_best_broker(off: int, brokers: int) -> None:
    told = Told(brokers)
    told.say(dict.fromkeys(BROKERS[:off], BAD))
    assert told.sick(PATIENCE_S - 1) == set()
    assert not told.found.left_in
    assert told.sick(1) == set()
    assert [each.subject for each in told.found.left_in] == [each.broker for each in BROKERS[:off]]
    assert {(each.why["off"], each.why["brokers"]) for each in told.found.left_in} == {(off, brokers)}


def test_a_broker_that_is_far_off_even_a_fleet_that_is_mostly_sick_is_sick_by_itself() -> None:
    told = Told()
    told.say(dict.fromkeys(BROKERS[1:5], HealthFigures(latency_ms=500.0)))
    told.say({A: HealthFigures(latency_ms=9_000.0)})
    assert told.sick(PATIENCE_S) == {A.broker}
    assert [each.subject for each in told.found.left_in] == [each.broker for each in BROKERS[1:5]]
    assert [each.why["times"] for each in told.found.left_in] == [5.0] * 4


def test_those_that_are_sick_already_stay_so_when_more_become_it() -> None:
    told = Told().until(HealthPhase.SICK)
    told.say(dict.fromkeys(BROKERS[1:4], BAD))
    assert told.sick(PATIENCE_S) == {A.broker}
    assert {each.why["off"] for each in told.found.left_in} == {4}


def test_the_last_to_become_sick_are_let_in_again_when_brokers_have_gone() -> None:
    told = Told().until(HealthPhase.SICK)
    told.say({B: BAD})
    assert told.sick(PATIENCE_S) == {A.broker, B.broker}
    for each in BROKERS[5:]:
        told.health.forget(each.broker)
    assert told.sick() == {A.broker}
    assert [each.subject for each in told.found.left_in] == [B.broker]
    told.say({B: WELL})
    assert told.sick() == {A.broker}
    assert told.found.left_in == ()


def test_a_broker_that_is_gone_or_registers_again_is_well() -> None:
    told = Told().until(HealthPhase.SICK)
    told.health.forget(A.broker)
    assert (told.sick(), told.phase()) == (set(), HealthPhase.WELL)
    told.until(HealthPhase.SICK)
    told.say({broker("a", incarnation=2): WELL})
    assert (told.sick(), told.phase()) == (set(), HealthPhase.WELL)


def test_without_patience_nobody_is_sick_any_more() -> None:
    told = Told().until(HealthPhase.SICK)
    assert told.health.look(told.now_s, None).sick == {}
    assert told.phase() is HealthPhase.WELL


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        (None, None, False),
        (None, WELL, True),
        (WELL, HealthFigures(latency_ms=10.0), True),
        (WELL, HealthFigures(40.0, 0.0, 9.0), False),
        (WELL, HealthFigures(60.0, 0.0, 2.0), True),
        (HealthFigures(60.0), HealthFigures(10.0), True),
        (HealthFigures(500.0), HealthFigures(700.0), False),
        (HealthFigures(500.0), HealthFigures(800.0), True),
    ],
)
def test_report_rule_for_changes(before: HealthFigures | None, now: HealthFigures | None, *, changed: bool) -> None:
    assert has_changed(before, now) is changed
    assert has_changed(now, before) is changed


_STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(BROKERS[:6]),
            st.sampled_from([WELL, BAD, BAD, HealthFigures(60.0), HealthFigures(queue=1e18), None, "gone"]),
        ),
        st.tuples(st.sampled_from([0.0, 30.0, PATIENCE_S, 400.0]), st.sampled_from([PATIENCE_S] * 9 + [None])),
    ),
    max_size=60,
)


class Watched:
    """Verdicts on brokers, times since when they are far from well or close to it, and the sick ones."""

    def __init__(self) -> None:
        self.health = HealthDetector()
        self.now_s = 0.0
        self.figures: dict[str, HealthFigures | None] = {}
        self.bad_since_s: dict[str, float] = {}
        self.good_since_s: dict[str, float] = {}
        self.sick: set[str] = set()

    def hear(self, registration: Registration, figures: HealthFigures | None) -> None:
        name = registration.broker
        self.health.hear(registration, figures, self.now_s)
        self.figures[name] = figures
        highest = self._times_least(figures)
        for since_s, holds in ((self.bad_since_s, highest > 1.0), (self.good_since_s, highest <= 0.5)):
            if holds:
                since_s.setdefault(name, self.now_s)
            else:
                since_s.pop(name, None)

    def forget(self, name: BrokerId) -> None:
        self.health.forget(name)
        for known in (self.figures, self.bad_since_s, self.good_since_s):
            known.pop(name, None)
        self.sick.discard(name)

    def look(self, patience_s: float | None) -> None:
        found = self.health.look(self.now_s, patience_s)
        assert len(found.sick) <= sum(each is not None for each in self.figures.values()) // 3, "never above a third"
        assert found.sick.keys() <= self.figures.keys()
        assert not found.sick.keys() & {each.subject for each in found.left_in}
        assert patience_s is not None or not found.sick
        for name in found.sick.keys() - self.sick:
            assert self.now_s - self.bad_since_s[name] >= PATIENCE_S, "it has been far off for that long"
        for name in found.sick.keys() & self.good_since_s.keys():
            assert self.now_s - self.good_since_s[name] < WELL_AFTER * PATIENCE_S, "it comes back by itself"
        self.sick = set(found.sick)

    @staticmethod
    def _times_least(figures: HealthFigures | None) -> float:
        said = {} if figures is None else figures.by_name()
        return max((value / LEAST.by_name()[name] for name, value in said.items()), default=0.0)


@given(steps=_STEPS)
def test_whatever_comes_its_rules_hold(steps: list[tuple[object, object]]) -> None:
    watched = Watched()
    for registration in BROKERS[:6]:
        watched.hear(registration, WELL)
    for what, how in steps:
        if not isinstance(what, Registration):
            assert isinstance(what, float)
            watched.now_s += what
            watched.look(how if isinstance(how, float) else None)
        elif how == "gone":
            watched.forget(what.broker)
        else:
            watched.hear(what, how if isinstance(how, HealthFigures) else None)
