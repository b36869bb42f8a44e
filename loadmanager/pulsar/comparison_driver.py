"""Comparison of Pulsar's rounds with ours: drives `core.diagnosis.pulsar_comparison`, the diary and the scores.

    event                              action
    -----                              ------
    a round of ours was planned        plan Pulsar's round in a thread, compare both, write a paragraph of the diary
    an owner changed, a broker left    add an entry to the next paragraph
    time passes                        judge moves, score hours; give the first verdict, once

A failure here is logged and never delays a round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import structlog

from loadmanager.config.node_settings import Settings
from loadmanager.core.diagnosis.pulsar_comparison import (
    ComparedRounds,
    ComparisonEntry,
    PulsarComparison,
    RegistrationEnded,
    Sighted,
    Time,
)
from loadmanager.core.diagnosis.pulsar_tally import UsageLevel, level_of
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.plan import Plan, Verdict
from loadmanager.core.domain.reasons import ComparisonReason
from loadmanager.core.domain.settings import UnknownStrategyError
from loadmanager.core.model.load import THROUGHPUT_IN, THROUGHPUT_OUT
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import plan_as_pulsar
from loadmanager.leader.candidate import Sample
from loadmanager.pulsar.activity_log import ActivityLog
from loadmanager.pulsar.broker_settings import PulsarSettings
from loadmanager.pulsar.scores import HOUR, RangeScore, Scores, line_of, table_of
from loadmanager.pulsar.verdict import ServiceLocation, VerdictFacts, find_benefit, first_verdict
from loadmanager.util import clock

log = structlog.get_logger(__name__)

VERDICT_AFTER_MS = 45_000
"""Delay after the first round: every broker has reported by then, and an operator waits less than a minute."""
_TICK_S = 1.0
_UNWRITTEN_MS = 300_000
"""Maximum delay of comparison entries while no rounds are planned."""
_MS_PER_MINUTE = 60_000


class ComparisonDriver:
    """`run` does the work; the other methods queue events on the event loop and return at once.

    `is_bundle` returns True for a current bundle. The first verdict uses a new snapshot from `take_snapshot`, since the
    snapshot of the first round may have no traffic yet. `settings` are read again in each round.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        diary: ActivityLog,
        scores: Scores,
        where: ServiceLocation,
        seed: int,
        *,
        is_acting: bool,
        is_bundle: Callable[[str], bool],
        take_snapshot: Callable[[], Snapshot],
    ) -> None:
        self._settings = settings
        self._diary = diary
        self._scores = scores
        self._where = where
        self._is_acting = is_acting
        self._rng = np.random.default_rng(seed)
        self._is_bundle = is_bundle
        self._take_snapshot = take_snapshot
        self._comparison = PulsarComparison(is_bundle)
        self._state: State = {}
        self._rounds: asyncio.Queue[tuple[Plan, Snapshot]] = asyncio.Queue()
        self._snapshot: Snapshot | None = None
        self._level: UsageLevel | None = None
        self._unwritten: list[ComparisonEntry] = []
        self._written_ms = 0
        self._began_ms: int | None = None
        self._is_verdict_given = False
        self._doubt = ""
        self._counts: Counter[ComparisonReason] = Counter()

    def add_round(self, plan: Plan, snapshot: Snapshot) -> None:
        """Queue a round of ours with its snapshot."""
        self._rounds.put_nowait((plan, snapshot))

    def note_move(self, sighted: Sighted) -> None:
        """Add a change of owner."""
        known = None if self._snapshot is None else self._snapshot.bundles
        is_new = known is not None and known.find_row(sighted.bundle) is None
        self._add_entries(self._comparison.step(replace(sighted, load=self._load_of(sighted.bundle), is_new=is_new)))

    def note_departure(self, owner: Registration, at_ms: int) -> None:
        """Add the end of a broker's registration."""
        self._add_entries(self._comparison.step(RegistrationEnded(owner, at_ms)))

    def end_term(self) -> None:
        """Forget all rounds, at the end of a term."""
        self._comparison, self._state, self._snapshot = PulsarComparison(self._is_bundle), {}, None
        while not self._rounds.empty():
            self._rounds.get_nowait()

    async def run(self) -> None:
        """Compare, judge and score until the process stops."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._compare_rounds())
            group.create_task(self._tick())
            group.create_task(self._scores.run())

    def tick(self, now_ms: int) -> None:
        """Judge moves, write overdue entries, and give the first verdict once it is due."""
        self._add_entries(self._comparison.step(Time(now_ms)))
        if self._unwritten and now_ms - self._written_ms >= _UNWRITTEN_MS:
            self._write(now_ms)
        self._scores.tick(now_ms)
        began_ms = self._began_ms
        if not self._is_verdict_given and began_ms is not None and now_ms - began_ms >= VERDICT_AFTER_MS:
            self._give_verdict(now_ms)

    async def compare(self, plan: Plan, snapshot: Snapshot) -> None:
        """Compare one round with Pulsar's, and write the diary."""
        steps = [step.bundle for step in plan.unloads]
        theirs, ours, comparison = self._settings.theirs, self._settings.current, self._comparison
        pulsars, state = await self._plan_as_pulsar(snapshot, theirs, steps)
        if comparison is not self._comparison:
            return  # the term is over
        at_ms = round(snapshot.taken_at_s * 1000)
        self._state, self._snapshot = state, snapshot
        self._level = level_of(snapshot, ours.planner_settings().resource_weights)
        loads = {name: self._load_of(name) for name in steps}
        interval_ms = round(theirs.load_balancer_shedding_interval_minutes * _MS_PER_MINUTE)
        self._add_entries(comparison.step(ComparedRounds(at_ms, plan, pulsars, loads, interval_ms)))
        self._began_ms = at_ms if self._began_ms is None else self._began_ms
        doubt, self._doubt = self._doubt, self._settings.doubt
        if self._doubt not in ("", doubt):
            self._diary.remark(at_ms, self._doubt)
        self._write(at_ms)

    def _write(self, at_ms: int) -> None:
        """Write the entries since the last call to the scores and the diary."""
        entries, self._unwritten = self._unwritten, []
        self._written_ms = at_ms
        self._scores.see(at_ms, self._level, entries)
        standing = sum(wish.is_reported for wish in self._comparison.wishes.values())
        self._diary.round(at_ms, entries, self._level, standing)

    def counters(self) -> list[Sample]:
        """Return the number of entries so far, by reason."""
        text = "Entries about Pulsar's moves, and about moves that it did not make."
        return [
            ("loadmanager_pulsar_judged", text, {"reason": reason.value}, count)
            for reason, count in self._counts.items()
        ]

    def gauges(self) -> list[Sample]:
        """Return the current state, and the figures of the last full hour."""
        comparison, level = self._comparison, self._level
        figures: list[tuple[str, str, float]] = [
            ("loadmanager_pulsar_stalled", "1 while Pulsar has stalled.", comparison.stalled is not None),
            ("loadmanager_pulsar_wanted_moves", "Moves of our last round not made by Pulsar.", len(comparison.wishes)),
            ("loadmanager_pulsar_unjudged_moves", "Moves seen that have not settled yet.", comparison.unjudged),
        ]
        if level is not None:
            text = "The busiest broker's most used resource beside the mean of all."
            figures.append(("loadmanager_pulsar_max_over_mean", text, level.max_over_mean))
        gauges = [(name, text, dict[str, str](), float(value)) for name, text, value in figures]
        return [*gauges, *self._scores.samples()]

    async def _compare_rounds(self) -> None:
        while True:
            plan, snapshot = await self._rounds.get()
            try:
                await self.compare(plan, snapshot)
            except Exception:
                log.exception("round_not_judged")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self.tick(clock.now_ms())
            except Exception:
                log.exception("moves_not_judged")

    async def _plan_as_pulsar(self, snapshot: Snapshot, theirs: Settings, wanted: list[str]) -> tuple[Plan, State]:
        try:
            return await asyncio.to_thread(
                plan_as_pulsar, snapshot, theirs.planner_settings(), self._state, self._rng, wanted
            )
        except UnknownStrategyError as error:
            why = Verdict("cluster", ComparisonReason.STRATEGY_UNKNOWN, acted=False, why={"error": str(error)})
            return Plan(snapshot.revision, snapshot.taken_at_s, (), (why,)), self._state

    def _load_of(self, bundle: str) -> float:
        """Return the bytes/s of a bundle, in and out, at the last round."""
        row = None if self._snapshot is None else self._snapshot.bundles.find_row(bundle)
        if self._snapshot is None or row is None:
            return 0.0
        short = self._snapshot.bundles.short
        return float(short[row, THROUGHPUT_IN] + short[row, THROUGHPUT_OUT])

    def _add_entries(self, entries: list[ComparisonEntry]) -> None:
        """Add entries. While we act, drop those that say that Pulsar's shedding is off: we switched it off."""
        if self._is_acting:
            entries = [entry for entry in entries if entry.reason is not ComparisonReason.WE_ALONE_SHEDDING_OFF]
        self._unwritten += entries
        self._counts.update(entry.reason for entry in entries)

    def _give_verdict(self, now_ms: int) -> None:
        rounds = self._comparison.last
        if rounds is None:
            return
        self._is_verdict_given = True
        measured, snapshot, ours = self._scores.so_far(now_ms), self._take_snapshot(), self._settings.current
        level = level_of(snapshot, ours.planner_settings().resource_weights)
        benefit = find_benefit(snapshot, ours)
        facts = VerdictFacts(rounds, benefit, level, measured, self._comparison.stalled, self._is_acting)
        self._diary.note(now_ms, *first_verdict(facts, self._where))


def log_scores(diary: ActivityLog) -> Callable[[RangeScore], None]:
    """Return a callback that writes a score to the diary: an hour as a line, a day as a table."""

    def write_score(score: RangeScore) -> None:
        text = line_of(score, diary.zone) if score.period == HOUR else table_of(score, diary.zone)
        diary.remark(clock.now_ms(), *text.splitlines())

    return write_score
