"""The step `whatif`: replay the range with other strategies, settings or brokers, and compare them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pandas as pd
import pyarrow as pa

from loadmanager.errors import LoadManagerError
from loadmanager.history.files import DAY_MS, HOUR_MS, Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BROKER_REPORTS
from loadmanager.lab.simulate.scenario import parse_as
from loadmanager.pipeline.costs import cost_models, known_cost
from loadmanager.pipeline.history_tables import ENGINE_ERRORS, format_range
from loadmanager.pipeline.job import JobRun
from loadmanager.pipeline.league import (
    FEWEST_DAYS,
    FEWEST_SEEDS,
    NOTHING,
    league_table,
    paired_differences,
    recommendation_table,
    recommendations,
    recommended_yaml,
)
from loadmanager.pipeline.minimum_history import WHOLE_DAY_HOURS
from loadmanager.pipeline.ranges import Ranges
from loadmanager.pipeline.step import Step
from loadmanager.pipeline.whatif_file import WhatIf
from loadmanager.pipeline.whatif_plan import WhatIfPlan, configurations, plan, play

RECOMMENDED = "recommended.yaml"

_TRIED = ("ThresholdShedder", "UniformLoadShedder", "AvgShedder", "TransferShedder", "Level")
_FIRST_ROUND_S = 30.0


def replay_scenarios(run: JobRun) -> None:
    from_ms, to_ms = run.summary.from_ms, run.summary.to_ms = run.history.range
    if run.job.whatif is None and (missing := missing_day(to_ms - from_ms)):
        _skip(run, missing)
        return
    whatif = _whatif(run)
    on_fault = (lambda fault: run.done.note(f"left out: {fault}")) if run.history.leaves_out else None
    ranges = Ranges(run.spark, run.job.history, on_fault)
    planned = _plan(run, whatif, History(run.job.history), ranges)
    if missing := missing_day(planned.replayed_ms):
        _skip(run, missing)
        return
    run.write("scenarios", play(planned, ranges))
    outcomes: pd.DataFrame = run.read_rows("scenarios").sort_by("scenario").to_pandas()
    found = recommendations(outcomes)
    best, text = next(each for each in found if each.fleet == planned.recommend_for), None
    run.write("league", league_table(outcomes, best))
    run.write("paired_differences", paired_differences(outcomes))
    run.write("recommendation", recommendation_table(found))
    if best.configuration is None:
        run.done.note(f"what-if: {best.why[0]}")
    else:
        source = [
            f"Learnt from {run.job.history}, {format_range(from_ms, to_ms)}, run {run.summary.run}.",
            f"What was tried: {whatif.name}, {len(planned.cells)} scenarios.",
        ]
        text = recommended_yaml(best, planned.configurations[best.configuration], source)
    write_recommended(Directory.of(run.job.out), text)


def missing_day(replayed_ms: int) -> str | None:
    """Return how much history is missing for a comparison, in a sentence; None for a whole day or more."""
    hours = replayed_ms / HOUR_MS
    if hours >= WHOLE_DAY_HOURS:
        return None
    return f"{NOTHING}: needs 1 day of history (at least {WHOLE_DAY_HOURS} hours), has {hours:.1f} hours."


def _skip(run: JobRun, why: str) -> None:
    for table in ("scenarios", "league", "paired_differences", "recommendation"):
        run.clear(table)
    write_recommended(Directory.of(run.job.out), None)
    run.done.note(f"what-if: {why}")


def _plan(run: JobRun, whatif: WhatIf, history: History, ranges: Ranges) -> WhatIfPlan:
    """Plan the trials, by the costs that are known or those of the range."""
    if not run.tables.has("cost_models"):
        run.write("cost_models", cost_models(run.history.usable_reports(BROKER_REPORTS)))
    cost = known_cost(run.read_rows("cost_models"))
    planned = plan(whatif, history, ranges, base=run.recorded.values(), cost=cost)
    for each in planned.left_out:
        run.done.note(f"what-if: left out: {each}")
    return planned


def write_recommended(directory: Directory, text: str | None) -> None:
    """Replace the recommended configuration; without one, there is no file."""
    if text is not None:
        directory.write(RECOMMENDED, pa.py_buffer(text.encode()))
        return
    with suppress(FileNotFoundError):
        directory.filesystem.delete_file(f"{directory.root}/{RECOMMENDED}")


def _whatif(run: JobRun) -> WhatIf:
    """Return the scenarios, by default of the last days, in the range of the run unless they have their own."""
    whatif, begin, end = run.job.whatif, _moment(run.job.from_ms), _moment(run.job.to_ms)
    if whatif is None:
        return default_whatif(*run.history.range)
    return whatif.model_copy(update={"begin": whatif.begin or begin, "end": whatif.end or end})


def default_whatif(from_ms: int, to_ms: int) -> WhatIf:
    """Return a few strategies, with all brokers and without one of them.

    They are tried on as many days and seeds as a recommendation needs, or with fewer days on the last one.
    """
    is_enough = to_ms - from_ms >= FEWEST_DAYS * DAY_MS
    from_ms = max(from_ms, to_ms - (FEWEST_DAYS if is_enough else 1) * DAY_MS)
    content = {
        "name": "strategies",
        "from": _moment(from_ms),
        "to": _moment(to_ms),
        "seeds": list(range(FEWEST_SEEDS if is_enough else 1)),
        "strategies": _TRIED,
        "rules": {"firstRoundS": _FIRST_ROUND_S},
        "fleets": [{"name": "as-recorded"}, {"name": "one-less", "removedCount": 1}],
    }
    return parse_as(WhatIf, content, "what is tried by default")


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def require_known(run: JobRun) -> None:
    """Refuse strategies and settings that cannot be tried. Raises `LoadManagerError`."""
    if run.job.whatif is None:
        return
    base = {}
    with suppress(LoadManagerError, *ENGINE_ERRORS):  # the step that reads it says what is wrong with the history
        base = run.recorded.values()
    configurations(run.job.whatif, base)


STEP = Step(
    "whatif",
    replay_scenarios,
    writes=("cost_models", "scenarios", "league", "paired_differences", "recommendation"),
    check=require_known,
)
