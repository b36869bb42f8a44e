from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from loadmanager.core.model.load import BANDWIDTH_IN, CPU, RESOURCES, FloatArray
from loadmanager.lab.simulate.run_rules import CostModel
from loadmanager.pipeline.costs import (
    COST_MODELS,
    FEWEST_REPORTS,
    LIMITS,
    PREDICTORS,
    USAGES,
    Reports,
    class_name,
    cost_models,
    fit_class,
    known_cost,
)

TRUE = CostModel(
    base=(30.0, 2000.0, 100.0, 50.0, 60.0),
    coefficients=(
        (0.01, 0.005, 2e-6, 1e-6, 0.02),
        (0.0, 0.0, 1e-5, 0.0, 0.5),
        (0.0, 0.0, 2e-6, 2e-6, 0.0),
        (0.0, 0.0, 0.008, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.008, 0.0),
    ),
)
LIMIT = np.array([800.0, 16_384.0, 8_192.0, 10_000_000.0, 10_000_000.0])


def reports(count: int = 500, *, noise: float = 0.0, seed: int = 1, truth: CostModel = TRUE) -> Reports:
    """Make reports that follow the true model plus noise; no two predictors are correlated."""
    rng = np.random.default_rng(seed)
    predictors = rng.uniform(0, 1, (count, 5)) * np.array([8_000, 12_000, 8e7, 9e7, 2_000])
    usage = truth.usage(predictors[:, :4], predictors[:, 4], np.ones(count))
    usage *= 1 + noise * rng.standard_normal((count, RESOURCES))
    return Reports(predictors, usage, np.tile(LIMIT, (count, 1)))


def with_predictors(given: Reports, column: int, values: FloatArray) -> Reports:
    predictors = given.predictors.copy()
    predictors[:, column] = values
    return replace(given, predictors=predictors)


def test_noiseless_reports_recover_the_true_costs() -> None:
    fits = fit_class(reports())

    for resource, fit in enumerate(fits):
        assert fit.fitted, fit.why
        assert fit.base == pytest.approx(TRUE.base[resource], rel=1e-6)
        assert fit.coefficients == pytest.approx(TRUE.coefficients[resource], rel=1e-6, abs=1e-9)
        assert (fit.reports, fit.held_out) == (500, 100)
        assert fit.r2 == pytest.approx(1.0)
        assert fit.mape == pytest.approx(0.0, abs=1e-6)


def test_noisy_reports_recover_the_costs_within_the_noise() -> None:
    fits = fit_class(reports(5_000, noise=0.05))

    cpu = fits[CPU]
    assert cpu.fitted
    assert cpu.coefficients[:2] == pytest.approx(TRUE.coefficients[CPU][:2], rel=0.1)
    assert cpu.mape == pytest.approx(0.05 * np.sqrt(2 / np.pi), rel=0.2)  # the mean of |noise|
    assert cpu.mape is not None
    assert cpu.given_mape is not None
    assert cpu.mape < cpu.given_mape


def test_fitted_costs_are_never_negative() -> None:
    given = reports(200)
    usage = given.usage.copy()
    usage[:, CPU] = 300 - 0.01 * given.predictors[:, 0] + 1e-6 * given.predictors[:, 2]

    fit = fit_class(replace(given, usage=usage))[CPU]

    assert fit.base >= 0
    assert min(fit.coefficients) >= 0


def test_reports_at_the_limit_are_left_out_of_the_fit() -> None:
    given = reports(1_000)
    usage = np.minimum(given.usage, np.array([280.0, *LIMIT[1:]]))
    limit = given.limit.copy()
    limit[:, CPU] = 280.0

    fit = fit_class(Reports(given.predictors, usage, limit))[CPU]

    assert 200 < fit.reports < 800
    assert fit.coefficients == pytest.approx(TRUE.coefficients[CPU], rel=1e-6)


def test_unknown_limit_leaves_no_report_out() -> None:
    given = reports()
    limit = given.limit.copy()
    limit[:, BANDWIDTH_IN] = 0.0

    assert fit_class(replace(given, limit=limit))[BANDWIDTH_IN].reports == 500


def test_too_few_reports_keep_the_given_model() -> None:
    fits = fit_class(reports(FEWEST_REPORTS - 1))

    for resource, fit in enumerate(fits):
        assert not fit.fitted
        assert fit.why == "the default model is kept: 49 usable reports, 50 needed"
        assert (fit.base, fit.coefficients) == (CostModel().base[resource], CostModel().coefficients[resource])
        assert fit.r2 is None


def test_collinear_predictors_are_named_and_keep_the_given_model() -> None:
    given = reports()

    fit = fit_class(with_predictors(given, 2, given.predictors[:, 0] * 1024))[CPU]

    assert not fit.fitted
    assert "msg_rate_in, msg_throughput_in are collinear" in fit.why
    assert fit.coefficients == CostModel().coefficients[CPU]


def test_constant_predictor_keeps_the_given_model() -> None:
    fit = fit_class(with_predictors(reports(), 4, np.full(500, 40.0)))[CPU]

    assert not fit.fitted
    assert "topics never changes, so its cost cannot be told from the base" in fit.why


def test_all_zero_predictor_costs_nothing() -> None:
    without = CostModel(base=TRUE.base, coefficients=tuple((*row[:4], 0.0) for row in TRUE.coefficients))
    fit = fit_class(with_predictors(reports(truth=without), 4, np.zeros(500)))[CPU]

    assert fit.fitted, fit.why
    assert fit.coefficients[4] == 0.0


def test_unmeasured_resource_keeps_the_given_model() -> None:
    given = reports()
    usage = given.usage.copy()
    usage[:, BANDWIDTH_IN] = 0.0

    fit = fit_class(replace(given, usage=usage))[BANDWIDTH_IN]

    assert not fit.fitted
    assert "the usage is 0 in every report of the fit" in fit.why


def test_fit_no_better_than_the_given_model_is_not_used() -> None:
    fit = fit_class(reports(), given=TRUE)[CPU]

    assert not fit.fitted
    assert fit.r2 is not None
    assert fit.given_r2 is not None
    assert fit.given_r2 >= fit.r2
    assert fit.why == "the default model is kept: its R2 on held-out reports is 1, that of the fit 1"
    assert fit.coefficients == TRUE.coefficients[CPU]


def test_reports_with_invalid_numbers_are_left_out() -> None:
    given = reports(300)
    predictors = given.predictors.copy()
    predictors[:10, 0] = np.nan
    predictors[10:20, 1] = -1.0

    fit = fit_class(replace(given, predictors=predictors))[CPU]

    assert fit.fitted
    assert fit.reports == 280


def rows_of(given: Reports, first_broker: int = 0) -> list[tuple[object, ...]]:
    columns = (given.predictors.tolist(), given.limit.tolist(), given.usage.tolist())
    return [
        (number * 1000, f"broker-{first_broker + number % 3}:8080", *predictors[:4], int(predictors[4]), *limit, *usage)
        for number, (predictors, limit, usage) in enumerate(zip(*columns, strict=True))
    ]


def whole_topics(count: int, truth: CostModel) -> Reports:
    given = reports(count)
    predictors = given.predictors.round()
    return Reports(predictors, truth.usage(predictors[:, :4], predictors[:, 4], np.ones(count)), given.limit)


def test_spark_fit_of_each_broker_class_equals_the_plain_fit(spark: SparkSession) -> None:
    twice = CostModel(base=TRUE.base, coefficients=tuple(tuple(2 * each for each in row) for row in TRUE.coefficients))
    large, small = whole_topics(400, TRUE), whole_topics(150, twice)
    small = replace(small, limit=np.tile(LIMIT * 2, (150, 1)))
    names = ["at_ms", "broker", *PREDICTORS, *LIMITS, *USAGES]
    frame = spark.createDataFrame([*rows_of(small, 10), *rows_of(large)], names)

    table = cost_models(frame)
    rows = [row.asDict() for row in table.collect()]

    assert table.schema == COST_MODELS
    found = {(row["broker_class"], row["resource"]): row for row in rows}
    assert len(found) == 2 * RESOURCES
    for given in (large, small):
        for fit in fit_class(given):
            row = found[class_name(given.limit[0]), fit.resource]
            assert tuple(row[name] for name in PREDICTORS) == pytest.approx(fit.coefficients)
            assert (row["fitted"], row["reports"], row["held_out"]) == (fit.fitted, fit.reports, fit.held_out)
    assert class_name(LIMIT) == "8 cores, 16384 MiB heap, 8192 MiB direct memory, 10 Gbit/s in, 10 Gbit/s out"
    chosen = known_cost(table.toArrow())
    assert chosen is not None
    assert chosen.coefficients[CPU] == pytest.approx(TRUE.coefficients[CPU], rel=1e-6)  # most reports


def test_no_rows_give_the_default_model() -> None:
    assert known_cost(pa.Table.from_pylist([])) == CostModel()
