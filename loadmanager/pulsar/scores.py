"""Scores of each hour and each day: the imbalance under Pulsar, and the imbalance that strategies would have had.

    measured    counted live (`core.diagnosis.pulsar_tally`): highest / mean usage of brokers, and the moves with their
                load
    modelled    the simulator replays the recorded loads, from the real distribution at the start of the hour, and a
                strategy balances them. It runs in a subprocess after the hour is recorded. The real distribution is
                measured in the same model, so that both can be compared

A day is the sum of its hours; each hour starts from the real distribution. A score without a model has a reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, tzinfo
from typing import Any

import orjson
from pydantic.alias_generators import to_camel

from loadmanager.config.dynamic_settings import values_as_text
from loadmanager.config.node_settings import Settings
from loadmanager.core.diagnosis.pulsar_comparison import ComparisonEntry
from loadmanager.core.diagnosis.pulsar_tally import PeriodTotals, Tally, UsageLevel
from loadmanager.core.domain.settings import short_class_name
from loadmanager.lab.whatif.range_figures import RangeFigures
from loadmanager.lab.whatif.score_worker import MOST_MEMORY_BYTES, ScoreAnswer, ScoreQuestion, ScoringError
from loadmanager.leader.candidate import Sample
from loadmanager.pulsar.activity_log import HOUR_MS, BoundedFile, round_figure

HOUR, DAY = "hour", "day"
_STEP_S = 60.0
_FEWEST_STEPS = 5
_FLUSHED_S = 90.0
"""Delay after which a record is certainly in a file. Files are written every 60 s."""
_KEPT = 24 * 31
_MIB = 1024 * 1024
_EXPORTED = {
    "loadmanager_pulsar_hour_imbalance": (
        "Imbalance of the last whole hour by the cost model: as it was, and with each strategy."
    ),
    "loadmanager_pulsar_hour_moves": (
        "Moves of the last whole hour: as it was, by anyone, and with each strategy by the model."
    ),
    "loadmanager_pulsar_hour_moved_again_bytes_per_second": (
        "Load moved in the last whole hour that had moved within two hours before: as it was, and with each strategy."
    ),
    "loadmanager_pulsar_hour_moved_back_bytes_per_second": (
        "Load moved in the last whole hour that had been there within four hours before: as it was, and with each"
        " strategy."
    ),
}
"""Metrics of the last hour, as it was and by strategy."""
_MEANING = (
    "max/mean: the busiest broker's most used resource beside the mean of all, measured. Imbalance: the busiest"
    " broker's load beside the level of all, 1 is perfect; by the simulator's cost model of the loads that were"
    " recorded. Again: load that had moved within two hours before; back: to where it had been within four hours."
    " It is a model: it compares strategies, and promises nothing."
)


@dataclass(frozen=True, slots=True)
class RangeScore:
    """Score of an hour or a day. `imbalance` is the real one in the model. `worlds` has the modelled figures by
    strategy, the configured strategy first. `note` is the reason for a missing model, `left_out` that of a strategy.
    """

    period: str
    measured: PeriodTotals
    imbalance: float | None = None
    worlds: Mapping[str, RangeFigures] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "period": self.period,
            **{to_camel(name): value for name, value in asdict(self.measured).items()},
            "model": {
                "imbalance": self.imbalance,
                "strategies": {
                    name: {to_camel(key): value for key, value in asdict(figures).items()}
                    for name, figures in self.worlds.items()
                },
                "leftOut": dict(self.left_out),
                "note": self.note,
            },
        }


Ask = Callable[[ScoreQuestion], Awaitable[ScoreAnswer]]


class Scores:
    """Counts entries, and scores each hour and day after its end; `run` does the work.

    `settings` are the settings of our planner, with the URL of the history. `strategies` are scored beside the
    configured one. `on_score` is called with each score.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        strategies: Sequence[str],
        ask: Ask,
        on_score: Callable[[RangeScore], None],
        file: BoundedFile | None = None,
        zone: tzinfo | None = None,
    ) -> None:
        self._settings = settings
        self._strategies = strategies
        self._ask = ask
        self._on_score = on_score
        self._file = file
        self._zone = zone
        self._hour: Tally | None = None
        self._day: Tally | None = None
        self._hours: list[RangeScore] = []
        self._over: asyncio.Queue[tuple[str, PeriodTotals]] = asyncio.Queue()
        self._scores: deque[RangeScore] = deque(maxlen=_KEPT)

    # Measured figures

    def see(self, at_ms: int, level: UsageLevel | None, entries: Iterable[ComparisonEntry]) -> None:
        """Count entries, and use `level` as the imbalance from now on."""
        hour, day = self._tallies(at_ms)
        for tally in (hour, day):
            tally.count(entries)
            tally.see(at_ms, level)

    def tick(self, now_ms: int) -> None:
        """Close the hour and the day if they are over."""
        hour, day = self._tallies(now_ms)
        while now_ms >= (end_ms := (hour.from_ms // HOUR_MS + 1) * HOUR_MS):
            self._over.put_nowait((HOUR, hour.measure(end_ms)))
            self._hour = hour = hour.follow(end_ms)
            if self._date(end_ms) != self._date(day.from_ms):
                self._over.put_nowait((DAY, day.measure(end_ms)))
                self._day = day = day.follow(end_ms)

    def so_far(self, now_ms: int) -> PeriodTotals:
        """Return the totals of the current day."""
        return self._tallies(now_ms)[1].measure(now_ms)

    def _tallies(self, at_ms: int) -> tuple[Tally, Tally]:
        if self._hour is None or self._day is None:
            self._hour, self._day = Tally(at_ms), Tally(at_ms)
        return self._hour, self._day

    def _date(self, at_ms: int) -> object:
        return datetime.fromtimestamp(at_ms / 1000, self._zone).date()

    # Modelled figures

    async def run(self, flushed_s: float = _FLUSHED_S) -> None:
        """Score closed periods, one after the other, after their records are in files."""
        while True:
            period, measured = await self._over.get()
            if period == HOUR:
                await asyncio.sleep(flushed_s)
                score = await self._score_hour(measured)
                self._hours.append(score)
            else:
                score = _score_of_day(measured, self._hours)
                self._hours = []
            self._keep(score)

    async def _score_hour(self, measured: PeriodTotals) -> RangeScore:
        score = RangeScore(HOUR, measured)
        if measured.to_ms - measured.from_ms < _FEWEST_STEPS * _STEP_S * 1000:
            return replace(score, note=f"the model needs {_FEWEST_STEPS} steps of {_STEP_S:.0f} s")
        settings = self._settings()
        configured = short_class_name(settings.planner_settings().shedding_strategy)
        others = [name for name in dict.fromkeys(map(short_class_name, self._strategies)) if name != configured]
        question = ScoreQuestion(
            url=settings.history_url,
            from_ms=measured.from_ms,
            to_ms=measured.to_ms,
            settings=values_as_text(settings),
            strategies=[configured, *others],
            step_s=_STEP_S,
            memory_bytes=MOST_MEMORY_BYTES,
        )
        try:
            answer = await self._ask(question)
        except ScoringError as error:
            return replace(score, note=str(error))
        return replace(score, imbalance=answer.imbalance, worlds=answer.worlds, left_out=answer.left_out)

    def _keep(self, score: RangeScore) -> None:
        self._scores.append(score)
        if self._file is not None:
            self._file.append(f"{orjson.dumps(score.to_json()).decode()}\n")
        self._on_score(score)

    # Output

    def records(self) -> list[dict[str, Any]]:
        """Return the scores as JSON objects, the newest first."""
        return [score.to_json() for score in reversed(self._scores)]

    def text(self) -> str:
        """Return the newest hour and day as tables with an explanation."""
        newest = {score.period: score for score in self._scores}
        if not newest:
            return "There is no score yet: the first one comes when the hour is over.\n"
        tables = [table_of(newest[period], self._zone) for period in (HOUR, DAY) if period in newest]
        return "\n\n".join([*tables, _MEANING]) + "\n"

    def samples(self) -> list[Sample]:
        """Return the metric samples of the last hour."""
        hour = next((score for score in reversed(self._scores) if score.period == HOUR), None)
        if hour is None:
            return []
        measured = hour.measured
        moves = float(measured.moves + measured.our_moves)
        figures = {"as_it_was": (hour.imbalance, moves, measured.again_load, measured.back_load)}
        for name, each in hour.worlds.items():
            figures[name] = (each.imbalance, each.moves, each.again_mib_per_s * _MIB, each.back_mib_per_s * _MIB)
        return [
            (
                "loadmanager_pulsar_hour_max_over_mean",
                "The busiest broker's most used resource beside the mean of all, over the last whole hour.",
                {},
                measured.max_over_mean,
            ),
            *(
                (metric, text, {"strategy": name}, value)
                for at, (metric, text) in enumerate(_EXPORTED.items())
                for name, values in figures.items()
                if (value := values[at]) is not None
            ),
        ]


def line_of(score: RangeScore, zone: tzinfo | None = None) -> str:
    """Return the score as one sentence."""
    measured = score.measured
    parts = [f"the busiest broker had {measured.max_over_mean:.2f} times the mean"]
    if score.imbalance is not None:
        worlds = (f"with {name} {figures.imbalance:.2f}" for name, figures in score.worlds.items())
        parts.append(f"imbalance by the model {score.imbalance:.2f}, {', '.join(worlds)}")
    moved = round_figure((measured.moved_load + measured.our_moved_load) / _MIB)
    worlds = (f"with {name} {figures.moves:.0f} by the model" for name, figures in score.worlds.items())
    parts.append(", ".join([f"{measured.moves + measured.our_moves} moves of {moved} MiB/s", *worlds]))
    return f"{_head(score, zone)}: {'; '.join(parts)}."


def table_of(score: RangeScore, zone: tzinfo | None = None) -> str:
    """Return the score as a table for a terminal: the real figures first, then the strategies."""
    measured = score.measured
    rows: list[tuple[str, ...]] = [
        ("", "max/mean", "Imbalance", "Worst broker", "Moves", "MiB/s moved", "Again", "Back"),
        (
            "As it was",
            f"{measured.max_over_mean:.2f}",
            "" if score.imbalance is None else f"{score.imbalance:.2f}",
            f"{100 * measured.worst_usage:.0f} %",
            str(measured.moves + measured.our_moves),
            round_figure((measured.moved_load + measured.our_moved_load) / _MIB),
            round_figure(measured.again_load / _MIB),
            round_figure(measured.back_load / _MIB),
        ),
    ]
    for name, figures in score.worlds.items():
        loads = (figures.moved_mib_per_s, figures.again_mib_per_s, figures.back_mib_per_s)
        modelled = f"{figures.imbalance:.2f}", f"{100 * figures.worst_usage:.0f} %", f"{figures.moves:.0f}"
        rows.append((f"With {name}, modelled", "", *modelled, *map(round_figure, loads)))
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]
    return "\n".join([_head(score, zone), *lines, *_remarks(score)])


def _head(score: RangeScore, zone: tzinfo | None) -> str:
    times = (score.measured.from_ms, score.measured.to_ms)
    begin, end = (datetime.fromtimestamp(at_ms / 1000, zone).astimezone(zone) for at_ms in times)
    return f"Score of the {score.period} from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"


def _remarks(score: RangeScore) -> list[str]:
    measured = score.measured
    alone = f"{measured.alone} that we wanted were not made, {round_figure(measured.alone_load / _MIB)} MiB/s"
    found = [f"We wanted {measured.agreed} of Pulsar's {measured.moves} moves, too; {alone}."]
    if measured.our_moves:
        found.append(f"We made {measured.our_moves} moves, {round_figure(measured.our_moved_load / _MIB)} MiB/s.")
    if measured.stalled_ms:
        found.append(f"Pulsar had stalled for {measured.stalled_ms / 60_000:.0f} min.")
    found += [f"There is no model of {name}: {why}." for name, why in score.left_out.items()]
    return [*found, *([f"There is no model: {score.note}."] if score.note else [])]


def _score_of_day(measured: PeriodTotals, hours: Sequence[RangeScore]) -> RangeScore:
    """Sum the modelled hours; a strategy counts if it is in all of them."""
    modelled = [hour for hour in hours if hour.imbalance is not None]
    if not modelled:
        return RangeScore(DAY, measured, note="none of its hours has one")
    weights = [hour.measured.to_ms - hour.measured.from_ms for hour in modelled]
    names = [name for name in modelled[0].worlds if all(name in hour.worlds for hour in modelled)]
    worlds = {name: _added_up([hour.worlds[name] for hour in modelled], weights) for name in names}
    return RangeScore(DAY, measured, _mean([hour.imbalance or 1.0 for hour in modelled], weights), worlds)


def _added_up(figures: Sequence[RangeFigures], weights: Sequence[float]) -> RangeFigures:
    return RangeFigures(
        _mean([each.imbalance for each in figures], weights),
        max(each.worst_usage for each in figures),
        sum(each.moves for each in figures),
        sum(each.moved_mib_per_s for each in figures),
        sum(each.again_mib_per_s for each in figures),
        sum(each.back_mib_per_s for each in figures),
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
