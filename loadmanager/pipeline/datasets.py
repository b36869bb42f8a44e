"""Tables that the pipeline writes, with their columns, and the columns of the history as Spark sees them.

What is not declared here is neither read nor written. The steps that make these tables are in `pipeline.steps`; the
list in docs/pipeline.md is that of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.errors import PipelineError
from loadmanager.history.table_schemas import BROKER_REPORTS, LOAD_COLUMNS, RATE, RESOURCE_COLUMNS
from loadmanager.history.table_schemas import TABLES as HISTORY_TABLES

if TYPE_CHECKING:  # workers use what is here, and no pandas
    import pandas as pd


METRICS = LOAD_COLUMNS
RESOURCES = tuple(name.removesuffix("_usage") for name in RESOURCE_COLUMNS if name.endswith("_usage"))

_PLAIN = {
    pa.int64(): t.LongType(),
    pa.float64(): t.DoubleType(),
    pa.string(): t.StringType(),
    pa.bool_(): t.BooleanType(),
    RATE: t.DoubleType(),
}


def raw(table: str) -> t.StructType:
    """Return the columns of a table of the history; rates are doubles here."""
    return t.StructType([t.StructField(each.name, _type_of(each.type)) for each in HISTORY_TABLES[table].columns])


def _type_of(kind: Any) -> t.DataType:  # noqa: ANN401 - Arrow's data type
    if pa.types.is_dictionary(kind):
        return _type_of(kind.value_type)
    if pa.types.is_list(kind):
        return t.ArrayType(_type_of(kind.value_type))
    if pa.types.is_struct(kind):
        return t.StructType([t.StructField(part.name, _type_of(part.type)) for part in kind])
    return _PLAIN[kind]


@dataclass(frozen=True, slots=True)
class Dataset:
    """A table: `about` says what a row of it is."""

    name: str
    about: str
    schema: t.StructType


_LONG, _DOUBLE, _STRING = t.LongType(), t.DoubleType(), t.StringType()
_INT, _BOOLEAN = t.IntegerType(), t.BooleanType()


def _of(kind: t.DataType, *names: str) -> dict[str, t.DataType]:
    return dict.fromkeys(names, kind)


def _struct(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def _never_null(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind, nullable=False) for name, kind in columns.items()])


def _joined(*parts: t.StructType) -> t.StructType:
    return t.StructType([column for part in parts for column in part.fields])


def _statistics(*statistics: str) -> dict[str, t.DataType]:
    return _of(_DOUBLE, *(f"{statistic}_{metric}" for metric in METRICS for statistic in statistics))


_WINDOW = {"window_s": _INT, "start_ms": _LONG}
_CARRIED = {**_statistics("mean", "max", "p95"), **_of(_DOUBLE, "topics", "sessions")}
_QUANTILES = ("q10", "q50", "q90")

_REPORTS = (
    Dataset("clean_broker_reports", "a report of a broker that can be used", raw(BROKER_REPORTS)),
    Dataset(
        "rejected_rows",
        "how many rows of a file were rejected for a reason, with an example",
        _struct(hour_ms=_LONG, **_of(_STRING, "table", "reason", "file"), count=_LONG, example=_STRING),
    ),
    Dataset(
        "fleet_events",
        "an event that says for how long reports stand, or who is there",
        _struct(**_of(_LONG, "at_ms", "epoch", "sequence"), **_of(_STRING, "kind", "subject")),
    ),
)

_AVERAGES = (
    Dataset(
        "bundle_windows",
        "a bundle in 5 minutes, an hour or a day",
        _struct(**_WINDOW, **_of(_STRING, "bundle", "namespace"), n=_LONG, covered_s=_DOUBLE, **_CARRIED),
    ),
    Dataset(
        "broker_windows",
        "a broker likewise, with what it used of its resources",
        _struct(
            **_WINDOW,
            broker=_STRING,
            n=_LONG,
            covered_s=_DOUBLE,
            **_statistics("mean", "max", "p95"),
            **_of(_DOUBLE, *(f"{statistic}_{name}" for name in RESOURCES for statistic in ("mean", "max"))),
            **_of(_DOUBLE, "mean_usage", "max_usage", "topics", "bundles", "sessions"),
        ),
    ),
    Dataset(
        "namespace_windows",
        "a namespace likewise",
        _struct(**_WINDOW, namespace=_STRING, bundles=_LONG, covered_s=_DOUBLE, **_CARRIED),
    ),
    Dataset(
        "reported_by",
        "a broker that reported a bundle in an hour, when first and when last",
        _struct(start_ms=_LONG, **_of(_STRING, "bundle", "namespace", "broker"), **_of(_LONG, "first_ms", "last_ms")),
    ),
    Dataset(
        "totals_compared",
        "a total of a broker in an hour beside what its bundles add up to, and the worst of its reports",
        _struct(
            start_ms=_LONG,
            **_of(_STRING, "broker", "what"),
            **_of(_LONG, "reports", "inconsistent"),
            worst_difference=_DOUBLE,
            **_of(_LONG, "at_ms", "epoch", "sequence"),
            **_of(_DOUBLE, "reported", "summed"),
        ),
    ),
)

_BALANCE = (
    Dataset(
        "imbalance",
        "imbalance of 5 minutes",
        _struct(
            **_of(_LONG, "start_ms", "brokers"),
            **_of(_DOUBLE, "covered_s", "load", "max_over_mean", "cv"),
            worst_broker=_STRING,
            worst_usage=_DOUBLE,
            worst_used_broker=_STRING,
            overloaded_brokers=_LONG,
            above_threshold=_BOOLEAN,
        ),
    ),
    Dataset(
        "time_above",
        "time in which load was uneven, or a broker overloaded",
        _struct(**_of(_STRING, "what", "subject"), **_of(_DOUBLE, "threshold", "above_s", "observed_s", "share")),
    ),
    Dataset(
        "hot_bundles",
        "one of the bundles with the most load on a day",
        _struct(
            start_ms=_LONG,
            **_of(_STRING, "bundle", "namespace"),
            **_of(_DOUBLE, "load", "share", "msg_rate"),
            rank=_INT,
            times_mean=_DOUBLE,
        ),
    ),
    Dataset(
        "namespace_skew",
        "spread of a namespace's load over its bundles on a day",
        _struct(
            start_ms=_LONG,
            namespace=_STRING,
            bundles=_LONG,
            **_of(_DOUBLE, "load", "max_over_mean", "cv"),
            hottest_bundle=_STRING,
            hottest_share=_DOUBLE,
        ),
    ),
    Dataset(
        "flapping",
        "moves and returns of a bundle",
        _struct(
            bundle=_STRING,
            **_of(_LONG, "moves", "own_moves", "returns"),
            **_of(_DOUBLE, "thrash", "moved_again", "moved_share"),
            **_of(_LONG, "first_ms", "last_ms"),
        ),
    ),
    Dataset(
        "move_effects",
        "predicted and measured effect of a move",
        _struct(
            **_of(_LONG, "epoch", "sequence"),
            **_of(_STRING, "bundle", "source", "destination", "reason", "outcome"),
            at_ms=_LONG,
            **_of(_DOUBLE, "load", "predicted_before", "predicted_after", "measured_before", "measured_after"),
            measured_by=_STRING,
            error=_DOUBLE,
        ),
    ),
    Dataset(
        "inconsistent_brokers",
        "a broker whose totals differ from the sum over its bundles",
        _struct(
            **_of(_STRING, "broker", "what"),
            **_of(_LONG, "reports", "inconsistent"),
            worst_difference=_DOUBLE,
            at_ms=_LONG,
            **_of(_DOUBLE, "reported", "summed"),
        ),
    ),
)

_FORECAST = (
    # `model` is the one that was tried against the baseline; both are null-scored where there was too little to try.
    # The coverage is the part of the points that were within the 80 % interval; `shown` is what the pinball losses of
    # the days show of the model beside the baseline (`core.domain.significance`).
    Dataset(
        "backtest",
        "how wrong forecasts of a series were so many hours ahead, and which model is used",
        _joined(
            _never_null(**_of(_STRING, "kind", "key", "metric"), horizon_h=_INT, model=_STRING, points=_LONG),
            _struct(**_of(_DOUBLE, "pinball", "mae"), baseline=_STRING),
            _struct(**_of(_DOUBLE, "baseline_pinball", "baseline_mae", "coverage", "baseline_coverage")),
            _never_null(shown=_STRING, used=_BOOLEAN, why=_STRING),
        ),
    ),
    Dataset(
        "forecasts",
        "an hour to come of a series",
        _never_null(
            **_of(_STRING, "kind", "key", "metric"),
            start_ms=_LONG,
            hours_ahead=_INT,
            **_of(_DOUBLE, *_QUANTILES),
            model=_STRING,
        ),
    ),
)

_CAPACITY = (
    # Errors of the fit and of the default model, on the held-out reports.
    Dataset(
        "cost_models",
        "cost model of a resource for a class of brokers",
        _joined(
            _never_null(
                **_of(_STRING, "broker_class", "resource"),
                **_of(_DOUBLE, "base", *METRICS, "topics"),
                **_of(_LONG, "reports", "held_out"),
            ),
            _struct(**_of(_DOUBLE, "r2", "mape", "given_r2", "given_mape")),
            _never_null(fitted=_BOOLEAN, why=_STRING),
        ),
    ),
    # `used` is relative to what load may use of the resource that runs out first, null where that is nothing. `needed`
    # is null where no number is enough; `_n1` is after the loss of any one broker, `_domain` of any one failure domain
    # (null with fewer than two). `exhausted_on` is the first day on which the fleet is too small, null without one.
    Dataset(
        "capacity",
        "brokers needed on a future day, by quantile of the forecast",
        _joined(
            _never_null(day=_STRING, start_ms=_LONG, quantile=_DOUBLE),
            _struct(**_of(_LONG, "needed", "needed_n1", "needed_domain")),
            _never_null(have=_LONG, resource_first=_STRING),
            _struct(used=_DOUBLE),
            _never_null(**_of(_BOOLEAN, "fits", "fits_n1")),
            _struct(fits_domain=_BOOLEAN, **_of(_STRING, "exhausted_on", "exhausted_on_n1", "exhausted_on_domain")),
            _never_null(headroom=_DOUBLE, basis=_STRING),
        ),
    ),
)

_ADVICE = (
    Dataset(
        "advice",
        "a finding of the advice, with its numbers",
        _never_null(**_of(_STRING, "kind", "subject", "text", "evidence")),
    ),
)

_WHATIF = (
    # The figures are those of `lab.simulate.trial.figures`.
    Dataset(
        "scenarios",
        "a trial and what came of it",
        _never_null(
            scenario=_LONG,
            **_of(_STRING, "fleet", "configuration"),
            **_of(_LONG, "stretch", "seed", "from_ms"),
            **_of(_DOUBLE, "duration_s", "time_full_s", "time_hot_s", "time_above_s", "worst_usage"),
            **_of(_DOUBLE, "mean_imbalance", "regret", "moved_share", "moved_again", "load_moved"),
            **_of(_LONG, "moves", "returns"),
            thrash=_DOUBLE,
            **_of(_LONG, "clients_disturbed", "splits"),
            unowned_bundle_s=_DOUBLE,
            digest=_STRING,
        ),
    ),
    Dataset(
        "league",
        "a configuration with a fleet: its place, and its figures",
        _struct(
            fleet=_STRING,
            place=_LONG,
            configuration=_STRING,
            scenarios=_LONG,
            hours=_DOUBLE,
            **_of(_DOUBLE, "time_full", "time_hot", "regret", "time_above", "worst_usage", "moved_share", "moves"),
            **_of(_DOUBLE, "moved_again", "returns", "clients_disturbed"),
            recommended=_BOOLEAN,
        ),
    ),
    Dataset(
        "paired_differences",
        "two configurations compared by a figure",
        _struct(
            **_of(_STRING, "fleet", "metric", "configuration", "other"),
            **_of(_DOUBLE, "difference", "low", "high"),
            pairs=_LONG,
            **_of(_STRING, "paired_over", "shown"),
        ),
    ),
    Dataset(
        "recommendation",
        "the configuration to use with a fleet, or why there is none",
        _struct(
            **_of(_STRING, "fleet", "configuration"),
            **_of(_LONG, "days", "seeds"),
            rank_correlation=_DOUBLE,
            why=_STRING,
        ),
    ),
)

DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {each.name: each for each in (*_REPORTS, *_AVERAGES, *_BALANCE, *_FORECAST, *_CAPACITY, *_ADVICE, *_WHATIF)}
)
"""By name."""


def schema_of(table: str) -> t.StructType:
    """Return the columns of a table. Raises `PipelineError` for one that is not declared."""
    if table not in DATASETS:
        raise PipelineError(f"table {table}: unknown; there are {', '.join(DATASETS)}")
    return DATASETS[table].schema


def require(frame: DataFrame, table: str) -> DataFrame:
    """Return the frame with its columns in the order of the table. `PipelineError` names a column that is wrong."""
    schema = schema_of(table)
    types = {each.name: each.dataType for each in frame.schema}
    for wanted in schema:
        found = types.pop(wanted.name, None)
        if found is None:
            raise PipelineError(f"table {table}: has no column {wanted.name}; it has {', '.join(frame.columns)}")
        if found != wanted.dataType:
            kinds = f"{found.simpleString()}, expected {wanted.dataType.simpleString()}"
            raise PipelineError(f"table {table}: column {wanted.name} is {kinds}")
    if types:
        raise PipelineError(f"table {table}: columns {', '.join(types)}: not in it")
    names = schema.fieldNames()
    return frame if frame.columns == names else frame.selectExpr(*(f"`{name}`" for name in names))


def rows_of(frame: pd.DataFrame, table: str) -> pa.Table:
    """Convert known rows to Arrow, with the columns of the table. NaN becomes null."""
    schema = to_arrow_schema(schema_of(table))
    if set(frame.columns) != set(schema.names):
        raise PipelineError(f"table {table}: has columns {', '.join(schema.names)}; given {', '.join(frame.columns)}")
    return pa.Table.from_pandas(frame, schema, preserve_index=False).replace_schema_metadata()


def frame_of(spark: SparkSession, schema: t.StructType, rows: Iterable[Sequence[Any]] = ()) -> DataFrame:
    """Return known rows as a frame. Through Arrow they are a part of the plan, and need no worker in Python."""
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], to_arrow_schema(schema))
    return spark.createDataFrame(table, schema)
