from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId, BundleRange
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import MergeReason, Reason, SplitReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.protocol.reshape_machine import (
    AskTopics,
    OwnerSilent,
    Parts,
    ReportVerdict,
    ReshapeEnded,
    TopicsNamed,
)
from loadmanager.core.protocol.reshape_round_machine import (
    Action,
    CandidatesFound,
    DecideSplits,
    Event,
    ExecuteReshape,
    FindCandidates,
    FindMerges,
    MergesFound,
    ReshapeRoundMachine,
    RoundDue,
    RoundEnded,
    SkipInDryRun,
    SplitsDecided,
)
from loadmanager.core.strategies.merging import Merge
from loadmanager.core.strategies.splitting.split_finder import Split, SplitCandidate, Splits
from loadmanager.core.strategies.splitting.split_round import ScannedReport

A, B = broker("a"), broker("b")
TOPICS = [TopicLoad(1), TopicLoad(2)]
LOST = RuntimeError("no answer")
BY_TOPICS = PlannerSettings(namespace_bundle_split_algorithm="topic_count_equally_divide")
MERGES = PlannerSettings(auto_bundle_merge_enabled=True)


def due(settings: PlannerSettings = MERGES, **changes: object) -> RoundDue:
    return replace(RoundDue(settings, Controls(), 1, {A: None, B: None}, places_parts=True), **changes)  # type: ignore[arg-type]  # fields by name


def candidate(number: int, *, topics: int = 2_000, is_owned: bool = True) -> SplitCandidate:
    own = BundleRange(number << 24, (number + 1) << 24)
    return SplitCandidate(f"t/ns/{own}", own, topics, 5, 1.0, 1.0, is_owned)


def split_of(each: SplitCandidate) -> Split:
    assert each.range is not None
    return Split(each.name, (each.range.lower + 5,), SplitReason.TOPICS)


def found(*candidates: SplitCandidate) -> CandidatesFound:
    return CandidatesFound([ScannedReport(A, candidates, 10), ScannedReport(B, (), 7)])


def decided(*candidates: SplitCandidate, refused: tuple[SplitCandidate, ...] = ()) -> SplitsDecided:
    verdicts = [Verdict(each.name, SplitReason.TOPICS, acted=True, why={"topics": 3}) for each in candidates]
    verdicts += [Verdict(each.name, SplitReason.NO_SPLIT_BOUNDARY, acted=False) for each in refused]
    return SplitsDecided(Splits(tuple(split_of(each) for each in candidates), tuple(verdicts), {}))


def reasons(told: list[Action]) -> list[Reason]:
    """Reasons of the leading verdicts; the rest is the one action after them."""
    assert all(isinstance(each, ReportVerdict) for each in told[:-1]), told
    return [each.verdict.verdict for each in told if isinstance(each, ReportVerdict)]


def said(told: list[Action]) -> list[tuple[object, ...]]:
    """Verdicts on splits or merges: subject, reason and figures."""
    verdicts = [(each.asked, each.verdict) for each in told if isinstance(each, ReportVerdict)]
    assert not [verdict for _, verdict in verdicts if verdict.acted]
    return [(asked, verdict.subject, verdict.verdict, dict(verdict.why)) for asked, verdict in verdicts]


def a_round(
    *events: Event, settings: PlannerSettings = MERGES, **changes: object
) -> tuple[ReshapeRoundMachine, list[Action]]:
    """Run a due round through these events; return the machine and the last actions."""
    rounds = ReshapeRoundMachine()
    told = rounds.step(due(settings, **changes))
    for event in events:
        told = rounds.step(event)
    return rounds, told


def answer_all(rounds: ReshapeRoundMachine, told: list[Action]) -> list[Action]:
    """Answer all requests for topics; return the last actions."""
    waiting = list(told)
    while waiting:
        ask = waiting.pop(0)
        if isinstance(ask, AskTopics):
            told = rounds.step(TopicsNamed(ask.reshaping, TOPICS))
            waiting += told
    return told


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"controls": Controls(frozen="maintenance")},
            [("split", "cluster", SplitReason.RESHAPING_FROZEN, {"frozen": "maintenance"})],
        ),
        ({"revision": 0}, []),
    ],
)
def test_no_round_while_frozen_or_without_news(changes: dict[str, object], why: list[tuple[object, ...]]) -> None:
    rounds = ReshapeRoundMachine()
    told = rounds.step(due(**changes))  # type: ignore[arg-type]  # the settings are not among them
    assert (said(told), told[-1]) == (why, RoundEnded())
    assert isinstance(rounds.step(due(revision=2))[-1], FindCandidates), "the next round is not affected"


def test_extensible_rule_runs_without_new_reports() -> None:
    extensible = replace(MERGES, load_manager_class_name="ExtensibleLoadManagerImpl")
    _, told = a_round(settings=extensible, revision=0)
    assert isinstance(told[-1], FindCandidates)


@pytest.mark.parametrize(
    ("settings", "brokers", "reason", "figure"),
    [
        (
            replace(MERGES, auto_bundle_split_enabled=False),
            {A: None, B: None},
            SplitReason.SPLITTING_DISABLED,
            ("loadBalancerAutoBundleSplitEnabled", "False"),
        ),
        (MERGES, {A: None}, SplitReason.SPLIT_NEEDS_TWO_BROKERS, ("brokers", 1)),
        (
            replace(MERGES, namespace_bundle_split_algorithm="no_such_divide"),
            {A: None, B: None},
            SplitReason.SPLIT_FAILED,
            ("error", "no_such_divide"),
        ),
    ],
)
def test_splitting_that_is_impossible_is_reported_and_merging_goes_on(
    settings: PlannerSettings, brokers: dict[object, None], reason: Reason, figure: tuple[str, object]
) -> None:
    _, told = a_round(settings=settings, brokers=brokers)
    ((*what, why),) = said(told)
    assert (what, type(told[-1])) == (["split", "cluster", reason], FindMerges)
    assert isinstance(why, dict)
    assert (list(why), str(figure[1]) in str(why[figure[0]])) == ([figure[0]], True)


def test_broker_with_a_rejected_report_is_skipped() -> None:
    rounds, told = a_round(brokers={A: "it is old", B: None})
    assert said(told) == [("split", A.broker, SplitReason.REPORT_NOT_BELIEVED, {"fault": "it is old"})]
    assert told[-1] == FindCandidates((B,), MERGES)
    rounds.step(found())
    (*_, look) = rounds.step(decided())
    assert isinstance(look, FindMerges)
    assert (look.brokers, look.controls) == ((B,), Controls())


def test_owners_of_hot_bundles_are_asked_and_all_must_answer() -> None:
    hot = [candidate(number) for number in range(12)]
    calm, foreign = candidate(20, topics=5), candidate(21, is_owned=False)
    rounds, told = a_round(found(*hot, calm, foreign))
    asked = [each for each in told if isinstance(each, AskTopics)]
    assert [str(each.reshaping.bundle) for each in asked] == [each.name for each in hot]
    assert {each.owner for each in asked} == {A}
    assert {each.reshaping.reason for each in asked} == {SplitReason.TOPICS}
    assert [each.reshaping.before for each in asked] == [(each.range,) for each in hot]
    assert rounds.step(SplitsDecided(Splits((), (), {}))) == [], "not before all have answered"
    (decide,) = answer_all(rounds, told)
    assert isinstance(decide, DecideSplits)
    assert decide.topics == {each.name: TOPICS for each in hot}
    assert ([len(each.candidates) for each in decide.looked_at], decide.settings) == ([14, 0], MERGES)


def test_held_bundle_is_reported_and_not_asked_about() -> None:
    held, other = candidate(1), candidate(2)
    _, told = a_round(found(held, other), controls=Controls(pinned={held.name: BrokerId("b:1")}))
    assert isinstance(told[0], ReportVerdict)
    assert told[0].verdict.sentence() == "No split because an operator pinned it to b:1"
    ((asked, subject, _, why),) = said(told)
    assert (asked, subject) == ("split", held.name)
    assert why == {**held.why(), "held": told[0].verdict.why["held"]}
    assert [str(each.reshaping.bundle) for each in told if isinstance(each, AskTopics)] == [other.name]


@pytest.mark.parametrize(("settings", "is_left_alone"), [(MERGES, False), (BY_TOPICS, True)])
def test_silent_owner_holds_back_only_some_splits(settings: PlannerSettings, *, is_left_alone: bool) -> None:
    rounds, (ask,) = a_round(found(candidate(1)), settings=settings)
    assert isinstance(ask, AskTopics)
    told = rounds.step(OwnerSilent(ask.reshaping, LOST))
    decide = told[-1]
    assert isinstance(decide, DecideSplits)
    silent = ("split", candidate(1).name, SplitReason.OWNER_SILENT, {**candidate(1).why(), "error": "no answer"})
    assert said(told) == ([silent] if is_left_alone else [])
    assert decide.topics == ({} if is_left_alone else {candidate(1).name: ()})
    assert len(decide.looked_at[0].candidates) == len(decide.topics)
    told = rounds.step(decided())
    assert (SplitReason.NOTHING_TO_SPLIT in reasons(told)) is not is_left_alone, "something was looked at"


def test_splits_run_one_by_one_before_merges() -> None:
    first, second, third = (candidate(number) for number in range(3))
    rounds, told = a_round(found(first, second, third))
    answer_all(rounds, told)
    told = rounds.step(decided(first, second, refused=(third,)))
    carry_out = told[-1]
    assert said(told) == [("split", third.name, SplitReason.NO_SPLIT_BOUNDARY, {})]
    assert isinstance(carry_out, ExecuteReshape)
    it = carry_out.reshaping
    assert it.reason is SplitReason.TOPICS
    assert (str(it.bundle), it.boundaries, it.parts, it.topics) == (first.name, (5,), Parts.PLACED, TOPICS)
    told = rounds.step(ReshapeEnded(it, LOST))
    judge, carry_out = told
    why = {"topics": 3, "boundaries": "0x00000005", "error": "no answer"}
    assert said([judge]) == [("split", first.name, SplitReason.SPLIT_FAILED, why)]
    assert isinstance(carry_out, ExecuteReshape)
    (look,) = rounds.step(ReshapeEnded(carry_out.reshaping))
    assert isinstance(look, FindMerges)


def test_split_of_a_foreign_bundle_has_no_topics() -> None:
    foreign = candidate(1, is_owned=False)
    _, (carry_out,) = a_round(found(foreign), decided(foreign))
    assert isinstance(carry_out, ExecuteReshape)
    assert carry_out.reshaping.topics == ()


def test_parts_stay_unless_placement_is_on() -> None:
    rounds, told = a_round(found(candidate(1)), places_parts=False)
    answer_all(rounds, told)
    (carry_out,) = rounds.step(decided(candidate(1)))
    assert isinstance(carry_out, ExecuteReshape)
    assert carry_out.reshaping.parts is Parts.STAY


def test_dry_run_skips_splits_and_merges() -> None:
    rounds, told = a_round(found(candidate(1), candidate(2)), controls=Controls(dry_run=True))
    answer_all(rounds, told)
    *refrains, look = rounds.step(decided(candidate(1), candidate(2)))
    assert [type(each) for each in refrains] == [SkipInDryRun, SkipInDryRun]
    assert isinstance(look, FindMerges)
    *refrains, over = rounds.step(MergesFound([a_merge(1)], []))
    assert ([type(each) for each in refrains], over) == ([SkipInDryRun], RoundEnded())


def a_merge(number: int) -> Merge:
    lower, upper = candidate(number).name, candidate(number + 1).name
    return Merge(lower, upper, Verdict(lower, MergeReason.COLD_NEIGHBOURS, acted=True, why={"with": upper}))


def test_disabled_merging_is_reported_and_ends_the_round() -> None:
    rounds, told = a_round(found(), decided(), settings=PlannerSettings())
    assert said(told) == [
        ("split", "cluster", SplitReason.NOTHING_TO_SPLIT, {"bundles": 17, "brokers": 2}),
        ("merge", "cluster", MergeReason.MERGING_DISABLED, {"loadBalancerAutoBundleMergeEnabled": "False"}),
    ]
    assert told[-1] == RoundEnded()
    assert rounds.step(due(PlannerSettings())) == [RoundEnded()], "nothing is new since"


def test_merges_run_one_by_one() -> None:
    why = Verdict("t/other", MergeReason.NO_COLD_NEIGHBOURS, acted=False)
    rounds, told = a_round(found(), decided(), MergesFound([a_merge(1), a_merge(5)], [why]))
    assert said(told) == [("merge", "t/other", MergeReason.NO_COLD_NEIGHBOURS, {})]
    for is_last in (False, True):
        carry_out = told[-1]
        assert isinstance(carry_out, ExecuteReshape)
        assert (carry_out.reshaping.is_split, carry_out.reshaping.reason) == (False, MergeReason.COLD_NEIGHBOURS)
        told = rounds.step(ReshapeEnded(carry_out.reshaping, LOST))
        merge = a_merge(5 if is_last else 1)
        assert said(told) == [("merge", merge.lower, MergeReason.MERGE_FAILED, {**merge.why.why, "error": "no answer"})]
        assert (told[-1] == RoundEnded()) is is_last


def test_abandoned_round_does_not_affect_the_next_one() -> None:
    rounds, (answered, silent, ask, *_) = a_round(
        found(*(candidate(number) for number in range(12))), settings=BY_TOPICS
    )
    assert isinstance(answered, AskTopics)
    assert isinstance(silent, AskTopics)
    assert isinstance(ask, AskTopics)
    assert rounds.step(TopicsNamed(answered.reshaping, TOPICS)) == []
    assert reasons(rounds.step(OwnerSilent(silent.reshaping, LOST))) == [SplitReason.OWNER_SILENT]
    rounds.forget()
    assert rounds.step(TopicsNamed(ask.reshaping, TOPICS)) == []
    assert isinstance(rounds.step(due())[-1], FindCandidates), "the reports are still new"
    (decide,) = rounds.step(found())
    assert isinstance(decide, DecideSplits)
    assert decide.topics == {}
    told = rounds.step(decided())
    assert reasons(told) == [SplitReason.NOTHING_TO_SPLIT], "no silent owner is remembered"


@given(st.data())
def test_splits_run_once_one_at_a_time(data: st.DataObject) -> None:
    """Covers silent owners, answers in any order, any choice of candidates, and failed splits."""
    rounds = ReshapeRoundMachine()
    hot = [candidate(number) for number in range(data.draw(st.integers(0, 20)))]
    chosen = [each for each in hot if data.draw(st.booleans())]
    to_do: list[Action] = rounds.step(due())
    carried_out: list[str] = []
    for _ in range(200):
        action = to_do.pop(data.draw(st.integers(0, len(to_do) - 1)))
        match action:
            case FindCandidates():
                to_do += rounds.step(found(*hot))
            case AskTopics(asked):
                silent = data.draw(st.booleans())
                to_do += rounds.step(OwnerSilent(asked, LOST) if silent else TopicsNamed(asked, TOPICS))
            case DecideSplits():
                assert set(action.topics) == {each.name for each in hot}, "silence is no reason not to cut"
                to_do += rounds.step(decided(*chosen))
            case ExecuteReshape(it):
                assert not [each for each in to_do if not isinstance(each, ReportVerdict)], "nothing else is under way"
                carried_out.append(str(it.bundle))
                to_do += rounds.step(ReshapeEnded(it, data.draw(st.sampled_from([None, LOST]))))
            case FindMerges():
                to_do += rounds.step(MergesFound([a_merge(30)], []))
        if isinstance(action, RoundEnded):
            break
    assert carried_out == [*(each.name for each in chosen), a_merge(30).lower]
    assert rounds.step(ReshapeEnded(it)) == [], "no reshape is awaited"
