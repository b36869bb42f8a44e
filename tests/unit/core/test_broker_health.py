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

SICK_AFTER_S = 180.0
BROKERS = [broker(name) for name in "abcdefghi"]
A, B, C = BROKERS[:3]
WELL, BAD = HealthFigures(10.0, 0.0, 2.0), HealthFigures(2_500.0, 0.4, 2.0)


class HealthHarness:
    """A health detector with its clock."""

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
        self.found = self.health.look(self.now_s, SICK_AFTER_S)
        return set(self.found.sick)

    def phase(self) -> HealthPhase:
        life = self.health._lives.get(A.broker)
        return HealthPhase.WELL if life is None else life.phase

    def until(self, phase: HealthPhase) -> HealthHarness:
        """Bring A to this phase."""
        if phase is not HealthPhase.WELL:
            self.say({A: BAD})
        if phase in (HealthPhase.SICK, HealthPhase.RECOVERING):
            assert self.sick(SICK_AFTER_S) == {A.broker}
        if phase is HealthPhase.RECOVERING:
            self.say({A: WELL})
        assert self.phase() is phase
        return self


@pytest.mark.parametrize(
    ("phase", "figures", "after_s", "then"),
    [
        (HealthPhase.WELL, BAD, 0.0, HealthPhase.SUSPECT),
        (HealthPhase.WELL, WELL, 10 * SICK_AFTER_S, HealthPhase.WELL),
        (HealthPhase.SUSPECT, WELL, 0.0, HealthPhase.WELL),
        (HealthPhase.SUSPECT, BAD, SICK_AFTER_S - 1, HealthPhase.SUSPECT),
        (HealthPhase.SUSPECT, BAD, SICK_AFTER_S, HealthPhase.SICK),
        (HealthPhase.SICK, BAD, 10 * SICK_AFTER_S, HealthPhase.SICK),
        (HealthPhase.SICK, WELL, 0.0, HealthPhase.RECOVERING),
        (HealthPhase.RECOVERING, BAD, 0.0, HealthPhase.SICK),
        (HealthPhase.RECOVERING, WELL, WELL_AFTER * SICK_AFTER_S - 1, HealthPhase.RECOVERING),
        (HealthPhase.RECOVERING, WELL, WELL_AFTER * SICK_AFTER_S, HealthPhase.WELL),
        (HealthPhase.SICK, None, 0.0, HealthPhase.RECOVERING),
    ],
)
def test_the_table(phase: HealthPhase, figures: HealthFigures | None, after_s: float, then: HealthPhase) -> None:
    harness = HealthHarness().until(phase)
    harness.say({A: figures})
    harness.sick(after_s)
    assert harness.phase() is then
    assert (A.broker in harness.found.sick) == (then in (HealthPhase.SICK, HealthPhase.RECOVERING))


def test_sick_verdict_states_reason_and_end() -> None:
    harness = HealthHarness().until(HealthPhase.SICK)
    harness.sick(60.0)
    verdict = harness.found.sick[A.broker]
    assert verdict.verdict is FilterReason.BROKER_SICK
    assert verdict.sentence() == (
        "Nothing is moved to it because it has been sick for 240 s: its latency was 2500 ms, that of its peers 10 ms"
    )
    assert verdict.why["well_after_s"] == WELL_AFTER * SICK_AFTER_S
    harness.say({A: WELL})
    harness.sick(100.0)
    assert harness.found.sick[A.broker].why["well_after_s"] == WELL_AFTER * SICK_AFTER_S - 100


@pytest.mark.parametrize(
    ("bad", "figure", "value"),
    [
        (HealthFigures(latency_ms=400.0), "latency", "400 ms"),
        (HealthFigures(error_share=0.2), "share of errors", "20 %"),
        (HealthFigures(queue=7_000.0), "queue", "7000"),
        (HealthFigures(150.0, 0.9, 300.0), "share of errors", "90 %"),
    ],
)
def test_each_figure_alone_makes_sick_and_the_worst_is_named(bad: HealthFigures, figure: str, value: str) -> None:
    harness = HealthHarness()
    harness.say({A: bad})
    assert harness.sick(SICK_AFTER_S) == {A.broker}
    why = harness.found.sick[A.broker].why
    assert (why["figure"], why["value"]) == (figure, value)


def test_no_broker_is_sick_below_the_least_figures() -> None:
    harness = HealthHarness()
    harness.say({A: LEAST})
    assert harness.sick(SICK_AFTER_S) == set()


def test_only_an_outlier_of_a_slow_fleet_is_sick() -> None:
    harness = HealthHarness()
    slow = {each: HealthFigures(latency_ms=300.0 + 100 * number) for number, each in enumerate(BROKERS)}
    harness.say(slow)
    assert harness.sick(SICK_AFTER_S) == set()
    harness.say({A: HealthFigures(latency_ms=2_500.0)})
    assert harness.sick(SICK_AFTER_S) == set(), "more than three times the median, and within six deviations"
    harness.say({A: HealthFigures(latency_ms=2_600.0)})
    assert harness.sick(SICK_AFTER_S) == {A.broker}


def test_half_the_bar_keeps_a_broker_sick() -> None:
    harness = HealthHarness().until(HealthPhase.SICK)
    harness.say({A: HealthFigures(60.0, 0.0, 2.0)})
    harness.sick(10 * SICK_AFTER_S)
    assert harness.phase() is HealthPhase.SICK
    harness.say({A: HealthFigures(40.0, 0.0, 2.0)})
    assert harness.phase() is HealthPhase.RECOVERING


@pytest.mark.parametrize(("brokers", "sick"), [(FEWEST_PEERS - 1, set()), (FEWEST_PEERS, {A.broker})])
def test_sickness_needs_enough_peers(brokers: int, sick: set[str]) -> None:
    harness = HealthHarness(brokers)
    harness.say({A: BAD})
    assert harness.sick(SICK_AFTER_S) == sick
    assert harness.sick(SICK_AFTER_S) == sick


def test_brokers_without_figures_are_never_sick() -> None:
    health = HealthDetector()
    for each in BROKERS:
        health.hear(each, None, 0.0)
    assert health.look(1e6, 0.0).sick == {}


def test_common_cause_makes_no_broker_sick_and_is_reported() -> None:
    harness = HealthHarness()
    off = BROKERS[:4]
    harness.say(dict.fromkeys(off, BAD))
    assert harness.sick(SICK_AFTER_S) == set()
    assert [each.subject for each in harness.found.left_in] == [each.broker for each in off]
    first = harness.found.left_in[0]
    assert first.verdict is ValidationReason.SICK_WITH_OTHERS
    assert first.sentence() == (
        "Given bundles only where no healthier broker may own them: its latency is 2500 ms, that of healthy brokers"
        " 10 ms; 4 of 9 brokers are sick, so the cause is probably common"
    )
    harness.say({A: WELL})
    assert harness.sick() == {each.broker for each in off[1:]}


@pytest.mark.parametrize(("off", "brokers"), [(2, 4), (3, 4), (2, 3), (5, 9), (8, 9)])
def test_mostly_sick_fleet_is_compared_with_its_best_broker(off: int, brokers: int) -> None:
    harness = HealthHarness(brokers)
    harness.say(dict.fromkeys(BROKERS[:off], BAD))
    assert harness.sick(SICK_AFTER_S - 1) == set()
    assert not harness.found.left_in
    assert harness.sick(1) == set()
    assert [each.subject for each in harness.found.left_in] == [each.broker for each in BROKERS[:off]]
    assert {(each.why["off"], each.why["brokers"]) for each in harness.found.left_in} == {(off, brokers)}


def test_outlier_of_a_mostly_sick_fleet_is_sick() -> None:
    harness = HealthHarness()
    harness.say(dict.fromkeys(BROKERS[1:5], HealthFigures(latency_ms=500.0)))
    harness.say({A: HealthFigures(latency_ms=9_000.0)})
    assert harness.sick(SICK_AFTER_S) == {A.broker}
    assert [each.subject for each in harness.found.left_in] == [each.broker for each in BROKERS[1:5]]
    assert [each.why["times"] for each in harness.found.left_in] == [5.0] * 4


def test_sick_brokers_stay_sick_when_more_become_sick() -> None:
    harness = HealthHarness().until(HealthPhase.SICK)
    harness.say(dict.fromkeys(BROKERS[1:4], BAD))
    assert harness.sick(SICK_AFTER_S) == {A.broker}
    assert {each.why["off"] for each in harness.found.left_in} == {4}


def test_latest_sick_broker_is_let_in_when_the_fleet_shrinks() -> None:
    harness = HealthHarness().until(HealthPhase.SICK)
    harness.say({B: BAD})
    assert harness.sick(SICK_AFTER_S) == {A.broker, B.broker}
    for each in BROKERS[5:]:
        harness.health.forget(each.broker)
    assert harness.sick() == {A.broker}
    assert [each.subject for each in harness.found.left_in] == [B.broker]
    harness.say({B: WELL})
    assert harness.sick() == {A.broker}
    assert harness.found.left_in == ()


def test_removed_or_re_registered_broker_is_well() -> None:
    harness = HealthHarness().until(HealthPhase.SICK)
    harness.health.forget(A.broker)
    assert (harness.sick(), harness.phase()) == (set(), HealthPhase.WELL)
    harness.until(HealthPhase.SICK)
    harness.say({broker("a", incarnation=2): WELL})
    assert (harness.sick(), harness.phase()) == (set(), HealthPhase.WELL)


def test_sickness_ends_when_detection_is_switched_off() -> None:
    harness = HealthHarness().until(HealthPhase.SICK)
    assert harness.health.look(harness.now_s, None).sick == {}
    assert harness.phase() is HealthPhase.WELL


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
        st.tuples(st.sampled_from([0.0, 30.0, SICK_AFTER_S, 400.0]), st.sampled_from([SICK_AFTER_S] * 9 + [None])),
    ),
    max_size=60,
)


class HealthModel:
    """Check the detector's rules; keeps since when each broker's figures are bad or good."""

    def __init__(self) -> None:
        self.health = HealthDetector()
        self.now_s = 0.0
        self.figures: dict[str, HealthFigures | None] = {}
        self.bad_since_s: dict[str, float] = {}
        self.good_since_s: dict[str, float] = {}
        self.sick: set[str] = set()

    def report(self, registration: Registration, figures: HealthFigures | None) -> None:
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

    def evaluate(self, sick_after_s: float | None) -> None:
        found = self.health.look(self.now_s, sick_after_s)
        assert len(found.sick) <= sum(each is not None for each in self.figures.values()) // 3, "never above a third"
        assert found.sick.keys() <= self.figures.keys()
        assert not found.sick.keys() & {each.subject for each in found.left_in}
        assert sick_after_s is not None or not found.sick
        for name in found.sick.keys() - self.sick:
            assert self.now_s - self.bad_since_s[name] >= SICK_AFTER_S, "it has been far off for that long"
        for name in found.sick.keys() & self.good_since_s.keys():
            assert self.now_s - self.good_since_s[name] < WELL_AFTER * SICK_AFTER_S, "it comes back by itself"
        self.sick = set(found.sick)

    @staticmethod
    def _times_least(figures: HealthFigures | None) -> float:
        said = {} if figures is None else figures.by_name()
        return max((value / LEAST.by_name()[name] for name, value in said.items()), default=0.0)


@given(steps=_STEPS)
def test_rules_hold_for_any_sequence_of_figures(steps: list[tuple[object, object]]) -> None:
    watched = HealthModel()
    for registration in BROKERS[:6]:
        watched.report(registration, WELL)
    for what, how in steps:
        if not isinstance(what, Registration):
            assert isinstance(what, float)
            watched.now_s += what
            watched.evaluate(how if isinstance(how, float) else None)
        elif how == "gone":
            watched.forget(what.broker)
        else:
            watched.report(what, how if isinstance(how, HealthFigures) else None)
