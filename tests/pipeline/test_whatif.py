from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from support.ranges_here import RangesHere
from support.recorded import NOON_MS, a_writer
from support.recorded_fleet import (
    BROKERS,
    MINUTE_MS,
    NAMESPACES,
    broker,
    bundle_name,
    record_fleet,
    report_of,
    uneven,
)
from support.waiting import patience

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.errors import ConfigurationError, LoadManagerError, PipelineError, ScenarioError
from loadmanager.history.entry_rows import HistoryEvent
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.lab.simulate.run_rules import CostModel
from loadmanager.lab.simulate.scenario import parse_as, parse_yaml
from loadmanager.lab.simulate.sim_result import Result
from loadmanager.lab.simulate.trial import Trial, figures
from loadmanager.lab.whatif.recorded_ranges import read_range
from loadmanager.pipeline.league import league_table, paired_differences, recommendations
from loadmanager.pipeline.ranges import Ranges
from loadmanager.pipeline.whatif_file import WhatIf
from loadmanager.pipeline.whatif_plan import OUTCOMES, WhatIfPlan, find_stretches, plan, play


def planned(
    given: WhatIf, history: History, base: Mapping[str, Any] | None = None, cost: CostModel | None = None
) -> WhatIfPlan:
    return plan(given, history, RangesHere(history), base=base, cost=cost)


SHEDDERS = ["ThresholdShedder", "TransferShedder"]


def whatif(**given: object) -> WhatIf:
    return parse_as(WhatIf, {"name": "some", **given}, "what-if.yaml")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """An hour, from noon on."""
    return record_fleet(tmp_path_factory.mktemp("history"))


@pytest.fixture(scope="module")
def tried(history: History) -> WhatIfPlan:
    return planned(
        whatif(
            strategies=SHEDDERS,
            variants=[
                {"name": "default"},
                {"name": "eager", "settings": {"loadBalancerBrokerThresholdShedderPercentage": 3}},
            ],
            fleets=[{"name": "as-recorded"}, {"name": "one-less", "removedCount": 1}],
        ),
        history,
    )


def played(history: History, given: WhatIfPlan, number: int) -> Result:
    """A trial without Spark."""
    return given.cells[number].trial.run(read_range(history, given.cells[number].stretch))


def plain_rows(history: History, given: WhatIfPlan) -> dict[int, dict[str, Any]]:
    """Return the result of each."""
    return {
        cell.number: {
            "scenario": cell.number,
            "fleet": cell.fleet,
            "configuration": cell.configuration,
            "stretch": cell.stretch.number,
            "seed": cell.trial.seed,
            "from_ms": cell.stretch.from_ms,
            **figures(played(history, given, cell.number), given.band),
        }
        for cell in given.cells
    }


@pytest.fixture(scope="module")
def ranges(spark: SparkSession, history: History) -> Ranges:
    return Ranges(spark, history.directory.root)


@pytest.fixture(scope="module")
def outcomes(tried: WhatIfPlan, ranges: Ranges) -> pd.DataFrame:
    return play(tried, ranges).toPandas()


def test_trials_equal_those_without_spark(outcomes: pd.DataFrame, history: History, tried: WhatIfPlan) -> None:
    assert outcomes.columns.tolist() == OUTCOMES.names
    assert len(outcomes) == len(tried.cells) == 8
    assert {row["scenario"]: row for row in outcomes.to_dict("records")} == plain_rows(history, tried)


def test_each_trial_has_its_own_partition(tried: WhatIfPlan, ranges: Ranges) -> None:
    placed = play(tried, ranges).select(f.spark_partition_id().alias("at")).groupBy("at").count().collect()

    assert [row["count"] for row in placed] == [1] * len(tried.cells)


def test_trial_equals_a_run_of_the_recorded_world(history: History) -> None:
    given = planned(whatif(seeds=[5], strategies=["TransferShedder"]), history)
    stretch = given.cells[0].stretch

    settings = settings_of({"loadBalancerLoadSheddingStrategy": "TransferShedder"}, "test").planner_settings()
    result = Trial(settings, given.cells[0].trial.rules, seed=5).run(read_range(history, stretch))

    assert result.digest() == played(history, given, 0).digest()


def test_replayed_loads_equal_the_recorded_ones(history: History, tried: WhatIfPlan) -> None:
    recorded = read_range(history, tried.cells[0].stretch)
    names = [name for spec in recorded.namespace_specs() for name in spec.bundle_names()]

    found = recorded.loads.load_at(30 * 60 + 5)

    assert len(names) == NAMESPACES * 8
    for row, name in enumerate(names):
        namespace, bundle = divmod(row, 8)
        assert name == bundle_name(namespace, bundle)
        assert found[row].tolist() == pytest.approx(
            [uneven(30, namespace, bundle) * each for each in (800, 1200, 4e6, 6e6)], rel=1e-5
        )
    assert [spec.owners for spec in recorded.namespaces] == [tuple(broker(i % BROKERS) for i in range(8))] * 2


def test_one_hour_gives_a_league_without_recommendation(outcomes: pd.DataFrame, tried: WhatIfPlan) -> None:
    found = next(each for each in recommendations(outcomes) if each.fleet == tried.recommend_for)

    assert (found.configuration, found.days, found.seeds) == (None, 0, 1)
    table = league_table(outcomes, found)
    assert len(table) == 2 * 4
    assert set(paired_differences(outcomes)["paired_over"]) == {"seeds"}


def test_fleet_changes_apply_to_brokers_speeds_and_loads(history: History) -> None:
    fleets = [
        {"name": "as-recorded"},
        {"name": "fewer", "removed": [str(broker(3))], "removedCount": 1},
        {"name": "slower", "speeds": {str(broker(0)): 0.5}},
        {"name": "double", "loads": {"tenant/ns-0": 2}},
        {"name": "more", "added": [{"count": 2}]},
    ]
    given = planned(whatif(fleets=fleets), history)

    results = {cell.fleet: played(history, given, cell.number) for cell in given.cells}

    assert {fleet: int(each.series.brokers[0]) for fleet, each in results.items()} == {
        "as-recorded": 4, "fewer": 2, "slower": 4, "double": 4, "more": 6,
    }  # fmt: skip
    assert results["slower"].series.worst_usage[0] > results["as-recorded"].series.worst_usage[0]
    assert results["double"].series.load[0] == pytest.approx(1.5 * results["as-recorded"].series.load[0], rel=0.01)
    added = given.cells[4].trial.change.added
    assert added[0].capacity == read_range(history, given.cells[0].stretch).brokers[0].capacity
    assert [spec.id for spec in added] == ["added-0000:8080", "added-0001:8080"]


def test_fleet_without_brokers_is_left_out(history: History) -> None:
    fleets = [{"name": "as-recorded"}, {"name": "three-less", "removedCount": 3}, {"name": "none", "removedCount": 4}]

    given = planned(whatif(fleets=fleets), history)

    assert [cell.fleet for cell in given.cells] == ["as-recorded", "three-less"]
    assert [len(cell.trial.change.removed) for cell in given.cells] == [0, 3]
    assert given.left_out == ("fleet none: no broker is left",)


def test_one_of_the_initial_brokers_is_never_removed(tmp_path: Path) -> None:
    directory, last = Directory.of(str(tmp_path)), BROKERS - 1
    with a_writer(directory) as writer:
        writer.begin_term(1, NOON_MS)
        for minute in range(60):
            at_ms = NOON_MS + minute * MINUTE_MS
            writer.put(at_ms, report_of(last, at_ms, {bundle_name(0, 0): 1.0}))
            if minute >= 20:
                writer.put(at_ms, report_of(0, at_ms, {bundle_name(0, 1): 1.0}))
        writer.end_term(NOON_MS + 60 * MINUTE_MS)
        assert writer.flush(patience())

    given = planned(whatif(fleets=[{"name": "one-less", "removedCount": 1}]), History(directory))

    assert given.cells[0].trial.change.removed == {broker(0)}


def test_settings_of_a_cluster_that_merges_bundles_are_kept(history: History) -> None:
    given = planned(whatif(), history, base={"loadBalancerAutoBundleMergeEnabled": True})

    assert given.configurations["settings"].planner_settings().auto_bundle_merge_enabled


def test_documented_file_is_accepted() -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("```yaml\nname: three-brokers-less\n")

    found = parse_yaml(WhatIf, "name: three-brokers-less\n" + rest.partition("```")[0], "docs/pipeline.md")

    assert [fleet.name for fleet in found.fleets] == ["as-recorded", "three-less", "two-more", "doubled"]
    assert found.recommend_for == "three-less"


def test_cost_model_of_the_file_precedes_the_given_one(history: History) -> None:
    fitted = CostModel(base=(1.0, 2.0, 3.0, 4.0, 5.0))

    assert planned(whatif(), history).cells[0].trial.cost == CostModel()
    assert planned(whatif(), history, cost=fitted).cells[0].trial.cost == fitted
    given = planned(whatif(costs={"base": [9, 9, 9, 9, 9]}), history, cost=fitted)
    assert given.cells[0].trial.cost.base == (9.0,) * 5


def test_node_settings_hold_unless_the_file_overrides_them(history: History) -> None:
    given = planned(
        whatif(settings={"loadBalancerSheddingIntervalMinutes": 2}),
        history,
        base={"loadBalancerSheddingIntervalMinutes": 5, "maxConcurrentUnloads": 3},
    )

    rules = given.cells[0].trial.rules
    assert (rules.shedding_interval_s, rules.max_concurrent_unloads) == (120.0, 3)


def test_stretches_are_cut_by_length_without_the_short_rest(history: History) -> None:
    found, left_out = find_stretches(whatif(stretchS=1500), history, RangesHere(history))

    assert [(each.from_ms - NOON_MS, each.duration_s) for each in found] == [(0, 1500.0), (1_500_000, 1500.0)]
    assert len(left_out) == 1
    assert "too short beside the other stretches" in left_out[0]


def test_silence_of_all_brokers_is_left_out_and_named(tmp_path: Path) -> None:
    history = record_fleet(tmp_path, minutes=150, is_silent=lambda minute: 60 <= minute < 110)

    found, left_out = find_stretches(whatif(), history, RangesHere(history))

    assert [((each.from_ms - NOON_MS) // MINUTE_MS, each.duration_s / 60) for each in found] == [(0, 74), (110, 39)]
    assert left_out == ["2026-09-21T13:14:03Z to 2026-09-21T13:50:00Z: no broker reported"]


def test_marked_gap_is_left_out_with_its_reason(tmp_path: Path) -> None:
    history = record_fleet(tmp_path, minutes=60)
    directory = Directory.of(str(tmp_path))
    later_ms = NOON_MS + 60 * MINUTE_MS
    with a_writer(directory) as writer:
        writer.begin_term(2, later_ms)
        span = {"from_ms": NOON_MS + 20 * MINUTE_MS, "to_ms": NOON_MS + 40 * MINUTE_MS}
        writer.put(later_ms, HistoryEvent("gap", "", {**span, "rows": 3, "why": "the queue was full"}))
        writer.end_term(later_ms)
        assert writer.flush(patience())

    given = planned(whatif(seeds=[1, 2]), history)

    assert [(cell.stretch.number, cell.trial.seed) for cell in given.cells] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert given.cells[0].stretch.duration_s == 20 * 60
    assert given.left_out == ("2026-09-21T12:20:00Z to 2026-09-21T12:40:00Z: a gap in the history: the queue was full",)


def test_range_before_the_history_is_named_as_left_out(history: History) -> None:
    found, left_out = find_stretches(
        whatif(**{"from": "2026-09-21T10:00:00Z", "to": "2026-09-21T12:30:00Z"}), history, RangesHere(history)
    )

    assert [(each.from_ms, each.duration_s) for each in found] == [(NOON_MS, 1800.0)]
    assert left_out == ["2026-09-21T10:00:00Z to 2026-09-21T12:00:00Z: no broker reported"]


def test_empty_range_is_named_with_the_existing_one(history: History) -> None:
    with pytest.raises(
        PipelineError, match=r"no broker_reports in the range 2025-01-01T00:00:00Z to .*; there is: 2026"
    ):
        planned(whatif(**{"from": "2025-01-01T00:00:00Z", "to": "2025-01-02T00:00:00Z"}), history)


def test_history_without_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match="no broker_reports in the range the beginning to the end; there is: nothing"
    ):
        planned(whatif(), History(str(tmp_path)))


def test_reports_without_bundles_are_refused_as_nothing_to_replay(tmp_path: Path) -> None:
    with a_writer(Directory.of(str(tmp_path))) as writer:
        writer.begin_term(1, NOON_MS)
        for minute in range(30):
            at_ms = NOON_MS + minute * MINUTE_MS
            writer.put(at_ms, report_of(0, at_ms, {}))
        assert writer.flush(patience())

    with pytest.raises(PipelineError, match=r"nothing to replay: 2026.*: the range has no reports of loaded bundles"):
        planned(whatif(), History(str(tmp_path)))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"strategies": ["TransferSheder"]}, ScenarioError, "strategies: 'TransferSheder': expected one of Over"),
        ({"settings": {"loadBalancerFoo": 1}}, ConfigurationError, "unknown key 'loadBalancerFoo'"),
        (
            {"variants": [{"name": "a", "settings": {"loadBalancerBrokerThresholdShedderPercentage": 300}}]},
            ConfigurationError,
            r"settings of a: loadBalancerBrokerThresholdShedderPercentage: .* \(got 300",
        ),
        (
            {"settings": {"defaultNamespaceBundleSplitAlgorithm": "specified_positions_divide"}},
            ScenarioError,
            "it has to be told where to cut; choose another",
        ),
        (
            {"fleets": [{"name": "a", "removed": ["broker-9:8080"]}]},
            ScenarioError,
            r"fleets.0.removed: the range has no 'broker-9:8080'; did you mean broker-",
        ),
        (
            {"fleets": [{"name": "a", "loads": {"tenant/nope": 2}}]},
            ScenarioError,
            "fleets.0.loads: the range has no 'tenant/nope'; did you mean tenant/ns-",
        ),
        ({"fleets": [{"name": "a", "removedCount": 4}]}, ScenarioError, "fleet a: no broker is left"),
        (
            {"fleets": [{"name": "a", "removed": [str(broker(0)), str(broker(1)), str(broker(2)), str(broker(3))]}]},
            ScenarioError,
            "fleet a: no broker is left",
        ),
        ({"fleets": [{"name": "a", "removed": [str(broker(3))], "removedCount": 3}]}, ScenarioError, "no broker is le"),
        (
            {"fleets": [{"name": "a", "added": [{"id": str(broker(0)), "count": 1}]}]},
            ScenarioError,
            f"fleet a, settings: broker {broker(0)}: there are two of that name",
        ),
        ({"seeds": list(range(1000)), "fleets": [{"name": f"f{i}"} for i in range(11)]}, ScenarioError, "11000 scen"),
    ],
)
def test_invalid_trial_is_refused_before_anything_runs(
    history: History, given: dict[str, object], error: type[LoadManagerError], message: str
) -> None:
    with pytest.raises(error, match=message):
        planned(whatif(**given), history)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "TransferShedder"}, "strategy: unknown key; did you mean 'strategies'?"),
        ({"fleets": [{"name": "a", "remove": []}]}, "fleets.0.remove: unknown key; did you mean 'removed'?"),
        ({"fleets": [{"name": "a"}, {"name": "a"}]}, "fleets: 'a' is there twice"),
        ({"seeds": [1, 1]}, "seeds: 1 is there twice"),
        ({"seeds": []}, "seeds: "),
        ({"stepS": 600, "stretchS": 3600}, "stretchS: expected at least 10 steps of stepS"),
        ({"recommendFor": "moon"}, "recommendFor: there is no fleet 'moon'; there are as-recorded"),
        ({"from": "2026-01-02", "to": "2026-01-01"}, "expected a time before 2026-01-01T00:00:00+00:00"),
        ({"fleets": [{"name": "a", "speeds": {"broker-1:8080": 0}}]}, "fleets.0.speeds.broker-1:8080: "),
        ({"fleets": [{"name": "a", "removed": ["x"]}]}, "fleets.0.removed.0: "),
    ],
)
def test_invalid_file_is_refused_with_the_key(given: dict[str, object], message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        whatif(**given)

    assert str(raised.value).startswith("what-if.yaml: ")
    assert message in str(raised.value)
