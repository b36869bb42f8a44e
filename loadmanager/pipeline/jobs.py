"""The eight steps of the pipeline: from the URL of a history, a range and an output directory to tables.

    history ──▶ ingest ──▶ averages ──▶ balance, forecast, capacity, advice ──▶ what-if ──▶ report
                  │            │                       │                           │
                  └────────────┴──────────── <out>/<table>/ ───────────────────────┘

Each step reads the tables of those before it and writes its own, so that any of them can be run again alone. A step
that fails is named, and leaves every table as it was. What a run did is in `<out>/summary.json`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Protocol

import orjson
import pandas as pd
import pyarrow as pa
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as t

from loadmanager.errors import LoadManagerError, PipelineError
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.pipeline.advice import ADVICE, AdviceTables, advice
from loadmanager.pipeline.balance import (
    flapping,
    hot_bundles,
    imbalance,
    inconsistent_brokers,
    move_effects,
    namespace_skew,
    time_above,
)
from loadmanager.pipeline.capacity import Aim, capacity
from loadmanager.pipeline.costs import COST_MODELS, cost_models, fleet_cost
from loadmanager.pipeline.enough import not_enough_history
from loadmanager.pipeline.filesystems import directory_at
from loadmanager.pipeline.forecast import BACKTEST, FORECASTS, backtest, forecast_runs, forecasts, hours_known
from loadmanager.pipeline.ingest import clean_broker_reports
from loadmanager.pipeline.keeping_up import CLEAN_TABLES, MEANS, WINDOW_TABLES, KeepingUp
from loadmanager.pipeline.known_files import KnownFiles
from loadmanager.pipeline.league import (
    FEWEST_DAYS,
    FEWEST_SEEDS,
    METRICS,
    Recommendation,
    league_table,
    paired_differences,
    recommend,
    recommendation_table,
    recommended_yaml,
)
from loadmanager.pipeline.reading import (
    BadFiles,
    HistoryTables,
    cause_of,
    naming_bad_files,
    said_range,
)
from loadmanager.pipeline.recorded import Recorded, find_recorded
from loadmanager.pipeline.reporting.about import About
from loadmanager.pipeline.reporting.contents import collect
from loadmanager.pipeline.reporting.page import PAGE, make_report
from loadmanager.pipeline.schemas import TABLES, frame_of
from loadmanager.pipeline.standing import registered
from loadmanager.pipeline.whatif import OUTCOMES, configurations, plan, play
from loadmanager.pipeline.whatif_file import WhatIf, parse_whatif
from loadmanager.pipeline.writing import Format, Tables
from loadmanager.sim.cost import CostModel

Spark = SparkSession
"""The session, for those who do not import PySpark."""

SUMMARY, RECOMMENDED, REPORT = "summary.json", "recommended.yaml", "report"
WHATIF = "whatif"
_DAY_MS = 86_400_000
_TRIED = ("ThresholdShedder", "UniformLoadShedder", "AvgShedder", "TransferShedder")
_STEPS_OF_A_TRIAL = 120
_LONGEST_STEP_S = 60.0
_FIRST_ROUND_S, _FIRST_ROUND_STEPS = 30.0, 10
_CANNOT_GO_ON = (PySparkException, Py4JError, OSError, pa.ArrowException)

_STRING, _LONG, _DOUBLE, _BOOLEAN = t.StringType(), t.LongType(), t.DoubleType(), t.BooleanType()


def _struct(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


TABLES |= {
    "backtest": BACKTEST,
    "forecasts": FORECASTS,
    "cost_models": COST_MODELS,
    "scenarios": OUTCOMES,
    "league": _struct(
        fleet=_STRING,
        place=_LONG,
        configuration=_STRING,
        scenarios=_LONG,
        hours=_DOUBLE,
        **dict.fromkeys(METRICS, _DOUBLE),
        recommended=_BOOLEAN,
    ),
    "paired_differences": _struct(
        **dict.fromkeys(("fleet", "metric", "configuration", "other"), _STRING),
        **dict.fromkeys(("difference", "low", "high"), _DOUBLE),
        pairs=_LONG,
        paired_over=_STRING,
        shown=_STRING,
    ),
    "recommendation": _struct(
        **dict.fromkeys(("fleet", "configuration"), _STRING),
        **dict.fromkeys(("days", "seeds"), _LONG),
        rank_correlation=_DOUBLE,
        why=_STRING,
    ),
}


class Watch(Protocol):
    """Who is told how far a run is."""

    def began(self, step: str) -> None: ...

    def wrote(self, step: str, table: str, rows: int) -> None: ...

    def ended(self, step: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be worked on. `whatif` is what to try; None: a few strategies, with and without one broker. The
    `table_format` is that of new tables.
    """

    history: str
    out: str
    from_ms: int | None = None
    to_ms: int | None = None
    bad_files: BadFiles = "fail"
    aim: Aim = field(default_factory=Aim)
    whatif: WhatIf | None = None
    partitions: int | None = None
    table_format: Format | None = None
    anew: bool = False


@dataclass(slots=True)
class Done:
    """What became of a step in a run: `rows` by the name of each table that it wrote; `notes` say what was left out."""

    step: str
    run: str
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    fault: str | None = None


@dataclass(slots=True)
class Summary:
    """What the last run did, and of each step that it had not, what the last one did that had it. The range is that of
    the reports that were ingested.
    """

    run: str
    history: str
    out: str
    from_ms: int | None = None
    to_ms: int | None = None
    steps: list[Done] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What was left out, a sentence each."""
        return [note for done in self.steps for note in done.notes]

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)


class StepError(PipelineError):
    """A step failed; `__cause__` is why. What other steps wrote is intact, and so is what this one wrote before."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"step {step}: {why}")
        self.step = step


class JobRun:
    """One run under way: steps read and write through it."""

    def __init__(self, spark: SparkSession, job: Job, watch: Watch) -> None:
        self.spark = spark
        self.job = job
        self.tables = Tables(spark, job.out, job.table_format)
        self.summary = _summary_after(spark, job)
        self._watch = watch
        self._done = Done("", self.summary.run)

    @cached_property
    def history(self) -> HistoryTables:
        job = self.job
        known = KnownFiles(directory_at(self.spark, job.out))
        return HistoryTables(self.spark, job.history, job.from_ms, job.to_ms, job.bad_files, known)

    @cached_property
    def keeping_up(self) -> KeepingUp:
        return KeepingUp(self.spark, self.tables, self.job.history, anew=self.job.anew)

    @cached_property
    def recorded(self) -> Recorded:
        return find_recorded(self.history.frame("events"))

    @property
    def end_ms(self) -> int:
        """After what was ingested."""
        return self.summary.to_ms or self.history.range[1]

    def write(self, table: str, frame: DataFrame) -> None:
        self._tell(table, self.tables.write(table, frame).rows)

    def tell(self, table: str) -> None:
        """How many rows a table has that was written by parts."""
        self._tell(table, self.tables.rows(table))

    def _tell(self, table: str, rows: int) -> None:
        self._done.rows[table] = rows
        self._watch.wrote(self._done.step, table, rows)

    def note(self, text: str) -> None:
        if text not in self._done.notes:
            self._done.notes.append(text)

    def require_known(self) -> None:
        """Refuse strategies and settings that cannot be tried before the other steps have taken their time."""
        if self.job.whatif is None:
            return
        base = {}
        with suppress(LoadManagerError, *_CANNOT_GO_ON):  # the step that reads it says what is wrong with the history
            base = self.recorded.values()
        try:
            configurations(self.job.whatif, base)
        except LoadManagerError as error:
            self._begin(WHATIF)
            raise self._failed(error) from error

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Carry out a step: whatever it ends in, is said of it."""
        self._begin(name)
        self._watch.began(name)
        started_s = time.monotonic()
        try:
            with naming_bad_files():
                yield
        except (LoadManagerError, *_CANNOT_GO_ON) as error:
            raise self._failed(error) from error
        finally:
            self._done.seconds = time.monotonic() - started_s
        self._watch.ended(name, self._done.seconds)

    def _begin(self, step: str) -> None:
        self._done = Done(step, self.summary.run)
        self.summary.steps = [*(each for each in self.summary.steps if each.step != step), self._done]

    def _failed(self, error: Exception) -> StepError:
        self._done.fault = str(error) if isinstance(error, LoadManagerError) else cause_of(str(error))
        return StepError(self._done.step, self._done.fault)


def run(spark: SparkSession, job: Job, steps: Sequence[str], watch: Watch) -> Summary:
    """These steps, in their order; the summary is written also when one fails. Raises `StepError`."""
    under_way = JobRun(spark, job, watch)
    try:
        if WHATIF in steps:
            under_way.require_known()
        for name in (each for each in STEPS if each in steps):
            with under_way.step(name):
                STEPS[name](under_way)
    finally:
        with suppress(*_CANNOT_GO_ON):
            put(directory_at(spark, job.out), SUMMARY, under_way.summary.encode())
    return under_way.summary


def _summary_after(spark: SparkSession, job: Job) -> Summary:
    """Of a new run: it begins with what is known of earlier ones, if they were of the same history."""
    found = Summary(_new_id(), job.history, job.out)
    with suppress(PipelineError):
        before = get_summary(spark, job.out)
        if before.history == job.history:
            found.from_ms, found.to_ms, found.steps = before.from_ms, before.to_ms, before.steps
    return found


def put(directory: Directory, path: str, data: bytes) -> None:
    """Make `data` the file at `path`, in place of the one that may be there."""
    with suppress(FileNotFoundError):
        if not isinstance(directory.filesystem, fs.LocalFileSystem):  # others do not rename over a file
            directory.filesystem.delete_file(f"{directory.root}/{path}")
    directory.write(path, pa.py_buffer(data))


def get_summary(spark: SparkSession, out: str) -> Summary:
    """What the last run into this directory said of itself. Raises `PipelineError`."""
    directory = directory_at(spark, out)
    try:
        with directory.open(f"{directory.root}/{SUMMARY}") as file:
            said = orjson.loads(file.read())
        return Summary(**{**said, "out": out, "steps": [Done(**each) for each in said["steps"]]})
    except OSError:
        raise PipelineError(f"{directory}/{SUMMARY}: cannot be read: has the pipeline been run into it?") from None
    except (ValueError, TypeError, KeyError) as error:
        raise PipelineError(f"{directory}/{SUMMARY}: not the summary of a run: {error}") from None


def ingest(run: JobRun) -> None:
    """Typed, cleaned, de-duplicated reports; what was rejected is kept with its reason."""
    run.history.require_reports()
    run.keeping_up.ingest(run.history)
    run.summary.from_ms, run.summary.to_ms = run.history.range
    for table in CLEAN_TABLES:
        run.tell(table)
    for fault in run.history.faults:
        run.note(f"left out: {fault.path}: {fault.why}")


def averages(run: JobRun) -> None:
    """Who carried what, windows per bundle, broker and namespace of it, and the running means of the leader."""
    run.keeping_up.average(run.end_ms)
    for table in (*WINDOW_TABLES, MEANS):
        run.tell(table)


def balance(run: JobRun) -> None:
    """How even the load was, and what moving bundles did."""
    read, write = run.tables.read, run.write
    planner = run.recorded.settings.planner_settings()
    overloaded = planner.broker_overloaded_threshold_percentage / 100
    moves, windows = run.history.frame("moves"), read("broker_windows")
    write("imbalance", imbalance(windows, overloaded=overloaded))
    even = read("imbalance")
    write("time_above", time_above(even, windows, overloaded=overloaded))
    write("hot_bundles", hot_bundles(read("bundle_windows")))
    write("namespace_skew", namespace_skew(read("bundle_windows")))
    write("flapping", flapping(moves, planner))
    write("move_effects", move_effects(moves, even))
    write("inconsistent_brokers", inconsistent_brokers(read("clean_broker_reports"), read("clean_bundle_reports")))


def forecast(run: JobRun) -> None:
    """What bundles and namespaces will carry, and how wrong such forecasts were so far."""
    if _is_short(run, "forecast", backtest=BACKTEST, forecasts=FORECASTS):
        return
    read = run.tables.read
    bundles = forecast_runs(read("bundle_windows"), "bundle")
    runs = bundles.unionByName(forecast_runs(read("namespace_windows"), "namespace")).persist()
    try:
        run.write("backtest", backtest(runs))
        run.write("forecasts", forecasts(runs))
    finally:
        runs.unpersist()


def _is_short(run: JobRun, step: str, **tables: t.StructType) -> bool:
    """Whether the history is too short for the step: then it says so, and these tables are empty."""
    why = not_enough_history(hours_known(run.tables.read("broker_windows")))
    if why is None:
        return False
    run.note(f"{step}: {why}")
    for name, schema in tables.items():
        run.write(name, frame_of(run.spark, schema))
    return True


def plan_capacity(run: JobRun) -> None:
    """What load costs a broker, and so how many brokers the next days need."""
    run.write("cost_models", cost_models(run.tables.read("clean_broker_reports")))
    windows, reports = run.tables.read("broker_windows"), run.tables.read("clean_broker_reports")
    there = registered(reports, run.history.frame("events"), run.end_ms)
    planned = capacity(windows, reports, there, run.job.aim, _cost(run), run.recorded.domains or None)
    _write_pandas(run, "capacity", planned.rows)
    if planned.why:
        run.note(f"capacity: {planned.why}")


def advise(run: JobRun) -> None:
    """What the history suggests to change."""
    if _is_short(run, "advice", advice=ADVICE):
        return
    read = run.tables.read
    tables = AdviceTables(
        read("bundle_windows"), read("broker_windows"), read("clean_bundle_reports"), read("clean_broker_reports")
    )
    run.write("advice", advice(tables, run.recorded.settings.planner_settings()))


def try_out(run: JobRun) -> None:
    """What the range would have looked like with other strategies, settings or brokers."""
    if not run.tables.has("cost_models"):
        cleaned = clean_broker_reports(run.history.frame("broker_reports", with_file=True))
        run.write("cost_models", cost_models(cleaned.clean))
    whatif = _whatif(run)
    history = History(directory_at(run.spark, run.job.history))
    on_fault = (lambda fault: run.note(f"left out: {fault}")) if run.history.leaves_out else None
    planned = plan(whatif, history, base=run.recorded.values(), cost=_cost(run), on_fault=on_fault)
    for each in planned.left_out:
        run.note(f"what-if: left out: {each}")
    run.write("scenarios", play(run.spark, planned, run.job.partitions))
    outcomes: pd.DataFrame = run.tables.read("scenarios").orderBy("scenario").toPandas()
    _write_pandas(run, "league", league_table(outcomes))
    _write_pandas(run, "paired_differences", paired_differences(outcomes))
    _write_pandas(run, "recommendation", recommendation_table(outcomes))
    best = recommend(outcomes, planned.recommend_for)
    source = [
        f"Learnt from {run.job.history}, {said_range(*run.history.range)}, run {run.summary.run}.",
        f"What was tried: {whatif.name}, {len(planned.cells)} scenarios.",
    ]
    put_recommended(directory_at(run.spark, run.job.out), best, planned.configurations, source)
    if best.configuration is None:
        run.note(f"what-if: {best.why[0]}")


def put_recommended(
    directory: Directory, best: Recommendation, configurations: Mapping[str, Mapping[str, Any]], source: Iterable[str]
) -> None:
    """The configuration recommended, in place of an earlier one; where none is, there is no file."""
    if best.configuration is not None:
        put(directory, RECOMMENDED, recommended_yaml(best, configurations[best.configuration], source).encode())
        return
    with suppress(FileNotFoundError):
        directory.filesystem.delete_file(f"{directory.root}/{RECOMMENDED}")


def report(run: JobRun) -> None:
    """One HTML file with all of it, and tables as CSV beside it."""
    _write_report(run.spark, run.summary)


def make_report_again(spark: SparkSession, out: str) -> str:
    """The report of the last run from the tables that are there now; where it is. Raises `PipelineError`."""
    return _write_report(spark, get_summary(spark, out))


def _write_report(spark: SparkSession, said: Summary) -> str:
    directory = directory_at(spark, said.out)
    try:
        contents = collect(Tables(spark, said.out))
        recommended = _find_text(directory, RECOMMENDED)
        notes = {done.step: done.notes for done in said.steps}
        about = About(said.run, said.history, said.out, said.from_ms, said.to_ms, notes, recommended)
        for name, data in make_report(contents, about).items():
            put(directory, f"{REPORT}/{name}", data)
    except _CANNOT_GO_ON as error:
        raise PipelineError(f"{directory}/{REPORT}: cannot be written: {cause_of(str(error))}") from error
    return f"{directory}/{REPORT}/{PAGE}"


STEPS: Mapping[str, Callable[[JobRun], None]] = {
    "ingest": ingest,
    "averages": averages,
    "balance": balance,
    "forecast": forecast,
    "capacity": plan_capacity,
    "advice": advise,
    WHATIF: try_out,
    "report": report,
}
"""By name, in their order."""


def _cost(run: JobRun) -> CostModel | None:
    """The cost model of most brokers; None when there is none."""
    rows: list[Row] = run.tables.read("cost_models").collect()
    return fleet_cost(rows).cost if rows else None


def _whatif(run: JobRun) -> WhatIf:
    """What to try, in the range of the run where it does not say its own; by default the last days."""
    if run.job.whatif is None:
        return default_whatif(*run.history.range)
    asked = {"begin": run.job.from_ms, "end": run.job.to_ms}
    missing = {
        key: _moment(at_ms)
        for key, at_ms in asked.items()
        if at_ms is not None and getattr(run.job.whatif, key) is None
    }
    return run.job.whatif.model_copy(update=missing)


def default_whatif(from_ms: int, to_ms: int) -> WhatIf:
    """A few strategies, with all brokers and without one of them; on as many days and with as many seeds as it takes to
    recommend one, or where there are fewer days on the last one.
    """
    is_enough = to_ms - from_ms >= FEWEST_DAYS * _DAY_MS
    from_ms = max(from_ms, to_ms - (FEWEST_DAYS if is_enough else 1) * _DAY_MS)
    step_s = min(_LONGEST_STEP_S, max(1.0, (to_ms - from_ms) / 1000 / _STEPS_OF_A_TRIAL))
    content = {
        "name": "strategies",
        "from": _moment(from_ms),
        "to": _moment(to_ms),
        "stepS": step_s,
        "seeds": list(range(FEWEST_SEEDS if is_enough else 1)),
        "strategies": _TRIED,
        "rules": {"statsIntervalS": step_s, "firstRoundS": min(_FIRST_ROUND_S, step_s * _FIRST_ROUND_STEPS)},
        "fleets": [{"name": "as-recorded"}, {"name": "one-less", "removedCount": 1}],
    }
    return parse_whatif(content, "what is tried by default")


def _write_pandas(run: JobRun, table: str, frame: pd.DataFrame) -> None:
    rows = [tuple(row) for row in frame.astype(object).where(frame.notna(), None).itertuples(index=False)]
    schema = t.StructType([TABLES[table][name] for name in frame.columns])
    run.write(table, frame_of(run.spark, schema, rows))


def _find_text(directory: Directory, path: str) -> str | None:
    try:
        with directory.open(f"{directory.root}/{path}") as file:
            return bytes(file.read()).decode()
    except OSError:
        return None


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
