"""`loadmanager pipeline`: forecasts, advice and a report from a fleet's history, on Spark.

Exit codes: 0 done; 1 a failure, described on standard error, after which all earlier output is intact; 2 wrong usage,
or an unusable file of scenarios; 130 interrupted. `publish` uses the exit codes of `loadmanager admin`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from loadmanager.cli.admin.node_requests import AdminRequest, put
from loadmanager.cli.admin.request_command import command, group
from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, EXIT_INTERRUPTED, fail
from loadmanager.cli.service_runner import given_settings
from loadmanager.cli.text.numbers import From, To, read_range
from loadmanager.cli.text.text_tables import write_lines
from loadmanager.config.settings_base import without_password
from loadmanager.errors import ConfigurationError, HistoryError, LoadManagerError, ScenarioError
from loadmanager.history.files import Directory
from loadmanager.history.table_schemas import BROKER_REPORTS, TABLES
from loadmanager.pipeline import KEEP_DAYS

if TYPE_CHECKING:
    from loadmanager.pipeline.job import Job
    from loadmanager.pipeline.runner import Spark
    from loadmanager.pipeline.step import Summary
    from loadmanager.pipeline.whatif_file import WhatIf

_LEARNED = "/loadbalance/v1/learned"

pipeline = group("What a fleet learns from its own history, on Spark.")

_History = Annotated[str, typer.Argument(metavar="HISTORY", help="Directory or URL of the history.")]
_Out = Annotated[str, typer.Option("--out", metavar="DIR", help="Directory or URL for the tables and the report.")]
_LeaveOut = Annotated[bool, typer.Option("--leave-out-bad-files", help="Skip unusable files.")]
_Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Spark master, such as spark://host:7077 or yarn; default: all cores of this machine."
    ),
]
_MasterTimeout = Annotated[
    float, typer.Option("--master-timeout", min=1, help="Seconds to wait for the master's answer.")
]
_KeepDays = Annotated[int, typer.Option("--keep-days", min=1, help="Days for which windows are kept.")]
_Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting; may be repeated.")]


@pipeline.command("run")
def run(
    history: _History,
    out: _Out,
    steps: Annotated[
        list[str] | None,
        typer.Option("--step", metavar="NAME", help="Run only this step; may be repeated. Default: all."),
    ] = None,
    from_: From = None,
    to: To = None,
    scenarios: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File of scenarios; default: five strategies on the last days.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="Number of days for which capacity is planned.")] = 30,
    headroom: Annotated[float, typer.Option(min=0, max=0.99, help="Part of each broker to keep free.")] = 0.3,
    anew: Annotated[bool, typer.Option("--anew", help="Recompute everything, not only what has changed.")] = False,  # noqa: FBT002 - a flag
    keep_days: _KeepDays = KEEP_DAYS,
    leave_out: _LeaveOut = False,  # noqa: FBT002 - a flag
    master: _Master = None,
    master_timeout: _MasterTimeout = 60.0,
    conf: _Conf = None,
) -> None:
    """Run ingest, balance, forecast, capacity, advice, what-if and report over a range of a history."""
    with _one_line_errors():
        wanted = _known_steps(steps)
        job = _job(
            *(history, out, from_, to),
            leave_out_bad_files=leave_out,
            days=days,
            headroom=headroom,
            whatif=None if scenarios is None else _read_whatif(scenarios),
            anew=anew,
            keep_days=keep_days,
        )
        with _session(master, conf, master_timeout, job) as spark:
            summary = _run_steps(spark, job, wanted)
            league = _league_lines(spark, job.out) if wanted == ["whatif"] else []
    write_lines(league)
    _show_summary(summary)


@pipeline.command("stream")
def stream(
    history: _History,
    out: _Out,
    every: Annotated[
        float | None,
        typer.Option(
            min=1, help="Interval in seconds at which to look for new files until SIGTERM; default: run once."
        ),
    ] = None,
    keep_days: _KeepDays = KEEP_DAYS,
    leave_out: _LeaveOut = False,  # noqa: FBT002 - a flag
    master: _Master = None,
    master_timeout: _MasterTimeout = 60.0,
    conf: _Conf = None,
) -> None:
    """Run the step ingest once, or repeatedly while a history grows."""
    with _one_line_errors():
        job = _job(history, out, leave_out_bad_files=leave_out, keep_days=keep_days)
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        with _session(master, conf, master_timeout) as spark:
            while not stop.is_set():
                next_s = time.monotonic() + (every or 0)
                _ingest_changes(spark, job)
                if every is None:
                    return
                stop.wait(next_s - time.monotonic())


@command(pipeline, "publish")
def publish(
    out: _Out, master: _Master = None, master_timeout: _MasterTimeout = 60.0, conf: _Conf = None
) -> AdminRequest:
    """Publish the learned loads to the leader, which assumes them for bundles without a report."""
    with _one_line_errors():
        from loadmanager.pipeline.delta import Tables  # noqa: PLC0415 - PySpark may not be installed
        from loadmanager.pipeline.publish import learned_from  # noqa: PLC0415 - as above
        from loadmanager.pipeline.step import get_summary  # noqa: PLC0415 - as above

        summary = get_summary(_reach("--out", out).url)
        with _session(master, conf, master_timeout) as spark:
            learned = learned_from(Tables(spark, summary.out), summary)
    profiles = sum("profile" in each for each in learned["namespaces"].values())
    count = len(learned["namespaces"])
    print(f"run {learned['run']}: loads of {count} namespaces, profiles of {profiles}", file=sys.stderr)
    return put(_LEARNED, body=learned)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Check for the packages of the pipeline, and end the command with one line on an error."""
    from loadmanager.pipeline.session import require_spark  # noqa: PLC0415 - what it imports may not be installed

    try:
        require_spark()
        yield
    except LoadManagerError as error:
        is_usage = isinstance(error, _USAGE) or isinstance(error.__cause__, _USAGE)
        fail(str(error), EXIT_CONFIGURATION if is_usage else EXIT_FAILURE)
    except KeyboardInterrupt:
        fail("interrupted; what was written before is intact", EXIT_INTERRUPTED)


_USAGE = (ConfigurationError, ScenarioError)


def _job(history: str, out: str, from_: str | None = None, to: str | None = None, **options: Any) -> Job:  # noqa: ANN401 - of `Job`
    """Return a job after a check of its input and output directories."""
    from loadmanager.pipeline.job import Job  # noqa: PLC0415 - PySpark may not be installed

    range_ms = read_range(from_, to)
    return Job(find_history(history), find_output(out), *range_ms, **options)


@contextmanager
def _session(
    master: str | None, conf: Sequence[str] | None, timeout_s: float, job: Job | None = None
) -> Iterator[Spark]:
    from loadmanager.pipeline.session import are_few, spark_session  # noqa: PLC0415 - may not be installed

    settings = given_settings(conf or (), "--conf")
    warnings.filterwarnings("ignore", module="pyspark")  # warnings about PySpark's own use of pandas
    for_few = job is not None and are_few(job.history)
    spark = spark_session(master, settings=settings, answer_timeout_s=timeout_s, for_few=for_few)
    try:
        yield spark
    finally:
        spark.stop()


def _read_whatif(path: Path) -> WhatIf:
    from loadmanager.cli.simulate_command import read_scenario_file  # noqa: PLC0415 - only for this option
    from loadmanager.pipeline.whatif_file import WhatIf  # noqa: PLC0415 - as above

    return read_scenario_file(WhatIf, path)


def _known_steps(steps: Sequence[str] | None) -> list[str]:
    from loadmanager.pipeline.steps import STEPS  # noqa: PLC0415 - PySpark may not be installed

    for name in steps or ():
        if name not in STEPS:
            fail(f"--step {name!r}: expected one of {', '.join(STEPS)}", EXIT_CONFIGURATION)
    return list(steps or STEPS)


def _run_steps(spark: Spark, job: Job, steps: Sequence[str]) -> Summary:
    from loadmanager.pipeline import runner  # noqa: PLC0415 - PySpark may not be installed

    console = Console(stderr=True, highlight=False)
    with console.status("running"):
        return runner.run(spark, job, steps, console.print)


def _league_lines(spark: Spark, out: str) -> list[str]:
    """Format the league, one line per configuration."""
    from loadmanager.pipeline.delta import Tables  # noqa: PLC0415 - PySpark may not be installed

    rows = Tables(spark, out).read_rows("league").sort_by([("fleet", "ascending"), ("place", "ascending")])
    return [
        f"{row['fleet']}  {row['place']}.  {row['configuration']}: {row['time_full']:.1%} of the time above 100 %,"
        f" {row['time_hot']:.1%} above 85 %, regret {row['regret']:.3f}, {row['moves']:.1f} moves,"
        f" {row['moved_again']:.1%} of all load again and {row['returns']:.1f} returns an hour"
        f"{'  (recommended)' if row['recommended'] else ''}"
        for row in rows.to_pylist()
    ]


def _show_summary(summary: Summary) -> None:
    for note in summary.notes:
        print(note, file=sys.stderr)
    print(f"{summary.out}/{_result_of(summary)}")


def _result_of(summary: Summary) -> str:
    """Return the file to open first."""
    from loadmanager.pipeline.league import NOTHING  # noqa: PLC0415 - PySpark may not be installed

    steps = {done.step for done in summary.steps if done.run == summary.run}
    is_recommended = "whatif" in steps and not any(NOTHING in note for note in summary.notes)
    return "report/index.html" if "report" in steps else "recommended.yaml" if is_recommended else "summary.json"


def _ingest_changes(spark: Spark, job: Job) -> None:
    """Run the step ingest, unless the history has no reports yet."""
    from loadmanager.pipeline import runner  # noqa: PLC0415 - PySpark may not be installed

    if not Directory.of(job.history).list_files(BROKER_REPORTS)[0]:
        return
    summary = runner.run(spark, job, ["ingest"])
    hours = next(done.hours for done in summary.steps if done.step == "ingest")
    if hours:
        print(f"made the windows of {hours} hours", file=sys.stderr, flush=True)


def find_history(url: str) -> str:
    """Return the absolute path or the URL. Raises `ConfigurationError` for no history, or if it cannot be reached."""
    directory = _reach("HISTORY", url)
    is_local = directory.filesystem.type_name == "local"
    if not directory.exists():
        is_file = is_local and Path(directory.root).exists()
        why = "is a file, and a history is a directory" if is_file else "there is no such directory"
        raise ConfigurationError(f"HISTORY {without_password(url)}: {why}")
    if is_local and not any(Path(directory.root, table).is_dir() for table in TABLES):
        raise ConfigurationError(f"HISTORY {url}: not a history: it has none of the directories {', '.join(TABLES)}")
    return directory.url


def find_output(out: str) -> str:
    """Return the absolute path or the URL. Raises `ConfigurationError` if it is not writable or cannot be reached."""
    directory = _reach("--out", out)
    if directory.filesystem.type_name != "local":
        return directory.url
    path = Path(directory.root)
    there = next(each for each in (path, *path.parents) if os.path.exists(each))  # noqa: PTH110 - where nothing may be looked at, Path raises
    if not there.is_dir():
        raise ConfigurationError(f"--out {out}: {there} is a file: expected a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--out {out}: nothing may be written in {there}")
    return directory.url


def _reach(name: str, url: str) -> Directory:
    """Return the directory. Raises `ConfigurationError` for an unknown scheme, missing permissions or no answer."""
    try:
        directory = Directory.of(url)
        directory.exists()
    except (HistoryError, OSError) as error:
        why = without_password(" ".join(str(error).split()))
        raise ConfigurationError(f"{name} {without_password(url)}: cannot be reached: {why[:300]}") from None
    return directory
