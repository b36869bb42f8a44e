from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.deep import at_most

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.pipeline.league import (
    ABOVE,
    FULL,
    HOT,
    METRICS,
    REGRET,
    Recommendation,
    league_table,
    paired_differences,
    recommendation_table,
    recommendations,
    recommended_yaml,
)
from loadmanager.pipeline.paired import interval
from loadmanager.pipeline.reporting.actions import find_actions
from loadmanager.pipeline.step import Summary

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def outcome(configuration: str, **given: object) -> dict[str, object]:
    """A scenario of an hour in which nothing else happened."""
    return {
        "fleet": "as-recorded",
        "configuration": configuration,
        "stretch": 0,
        "seed": 0,
        "from_ms": 0,
        "duration_s": HOUR_S,
        "time_full_s": 0.0,
        "time_hot_s": 0.0,
        "time_above_s": 0.0,
        "worst_usage": 0.5,
        "regret": 0.1,
        "moved_share": 0.0,
        "moves": 0,
        "moved_again": 0.0,
        "returns": 0,
        "clients_disturbed": 0,
        **given,
    }


def days(configuration: str, *regrets: float, seeds: int = 3, **given: object) -> list[dict[str, object]]:
    """The same configuration on one whole day after the other, with each seed: a regret for each day; of what else is
    given a list is one for each day, too.
    """
    return [
        outcome(
            configuration,
            **{
                "stretch": day,
                "from_ms": round(day * DAY_S * 1000),
                "seed": seed,
                "regret": regret,
                "duration_s": DAY_S,
                **{key: value[day] if isinstance(value, list) else value for key, value in given.items()},
            },
        )
        for day, regret in enumerate(regrets)
        for seed in range(seeds)
    ]


def recommended(*rows: list[dict[str, object]]) -> Recommendation:
    (found,) = recommendations(pd.DataFrame([row for each in rows for row in each]))
    return found


def difference(outcomes: pd.DataFrame, metric: str, one: str, other: str) -> pd.Series:
    table = paired_differences(outcomes)
    wanted = (table["metric"] == metric) & (table["configuration"] == one) & (table["other"] == other)
    assert wanted.sum() == 1
    return table[wanted].iloc[0]


def test_interval_is_students_t_of_the_pairs() -> None:
    values = np.array([0.1, 0.3, 0.2, 0.5])

    found = interval(values)

    expected = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    assert found.pairs == 4
    assert found.mean == pytest.approx(0.275)
    assert (found.low, found.high) == pytest.approx(expected)


def test_one_pair_has_a_mean_but_no_interval() -> None:
    found = interval([0.2])

    assert (found.mean, found.low, found.high) == (0.2, None, None)


def test_interval_without_pairs_is_an_error() -> None:
    with pytest.raises(ValueError, match="there are no pairs"):
        interval([])


def test_league_orders_by_overload_then_regret_then_moved_load() -> None:
    outcomes = pd.DataFrame(
        [
            outcome("restless", moved_share=0.9),
            outcome("uneven", regret=0.2),
            outcome("full", time_full_s=36.0, time_hot_s=36.0, regret=0.0),
            outcome("hot", time_hot_s=36.0, regret=0.0),
            outcome("calm", moved_share=0.1),
        ]
    )

    table = league_table(outcomes, *recommendations(outcomes))

    assert table["configuration"].tolist() == ["calm", "restless", "uneven", "hot", "full"]
    assert table["place"].tolist() == [1, 2, 3, 4, 5]
    assert table[HOT].tolist() == pytest.approx([0, 0, 0, 0.01, 0.01])
    assert not table["recommended"].any()


def test_rates_weigh_scenarios_by_length_and_keep_the_worst_usage() -> None:
    outcomes = pd.DataFrame(
        [
            outcome("only", stretch=0, moves=3, worst_usage=0.9, duration_s=3 * HOUR_S),
            outcome("only", time_above_s=HOUR_S, stretch=1, moves=5, worst_usage=0.2),
        ]
    )

    row = league_table(outcomes, *recommendations(outcomes)).iloc[0]

    assert (row["scenarios"], row["hours"]) == (2, 4.0)
    assert (row[ABOVE], row["moves"], row["worst_usage"]) == pytest.approx((0.25, 2.0, 0.9))


def test_paired_difference_cancels_effects_shared_by_a_day() -> None:
    outcomes = pd.DataFrame([*days("one", 1, 9, 5, 14, 7), *days("other", 0.6, 8.5, 4.55, 13.65, 6.6)])

    found = difference(outcomes, REGRET, "one", "other")

    assert found["difference"] == pytest.approx(np.mean([0.4, 0.5, 0.45, 0.35, 0.4]))
    assert 0 < found["low"] < found["difference"] < found["high"] < 0.6
    assert (found["pairs"], found["paired_over"], found["shown"]) == (5, "days", "worse")


def test_stretches_and_seeds_of_a_day_count_once() -> None:
    rows = [
        outcome(
            name,
            regret=regret + seed,
            stretch=2 * day + part,
            seed=seed,
            from_ms=round((day + part / 2) * 1000 * DAY_S),
        )
        for name, regret in (("one", 100), ("other", 80))
        for day in (0, 1)
        for part in (0, 1)
        for seed in range(5)
    ]

    found = difference(pd.DataFrame(rows), REGRET, "one", "other")

    assert (found["pairs"], found["paired_over"], found["shown"]) == (2, "days", "inconclusive")


def test_seeds_of_one_day_are_inconclusive_pairs() -> None:
    rows = [
        outcome(name, regret=regret + seed, seed=seed)
        for name, regret in (("one", 10), ("other", 20))
        for seed in range(9)
    ]

    found = difference(pd.DataFrame(rows), REGRET, "one", "other")

    assert (found["pairs"], found["paired_over"], found["shown"]) == (9, "seeds", "inconclusive")
    assert found["high"] == pytest.approx(-10)


def test_all_pairs_are_compared_by_every_metric_and_fleet() -> None:
    rows = [outcome(name, fleet=fleet) for fleet in ("now", "less") for name in ("a", "b", "c")]

    table = paired_differences(pd.DataFrame(rows))

    assert len(table) == 2 * len(METRICS) * 3
    assert set(table["fleet"]) == {"now", "less"}


def test_calmest_of_equal_configurations_is_recommended() -> None:
    found = recommended(
        days("eager", 0.100, 0.112, 0.104, 0.110, 0.102, moved_share=3.0),
        days("calm", 0.105, 0.117, 0.111, 0.113, 0.108, moved_share=0.5),
    )

    assert found.configuration == "calm"
    assert "Shown equal, and no calmer: eager." in found.why


def test_inconclusive_days_do_not_show_equality() -> None:
    eager = days("eager", 0.1, 0.1, 0.1, 0.1, 0.1, moved_share=3.0)

    found = recommended(eager, days("asleep", 0.1, 0.4, 0.1, 0.4, 0.1))

    assert found.configuration == "eager"
    assert any(each.startswith("asleep is not shown equal to eager in regret: 0.12 more (95 %") for each in found.why)


def test_overload_outweighs_regret_and_moves() -> None:
    asleep = days("asleep", *[0.1] * 5, time_full_s=[600, 500, 700, 600, 550], time_hot_s=9000.0, worst_usage=1.63)

    found = recommended(asleep, days("active", *[0.3] * 5, moved_share=3.0, returns=4))

    assert found.configuration == "active"
    assert any(each.startswith("asleep is worse than active in time_full: 0.0068") for each in found.why)


def test_hot_time_ranks_after_full_time_and_before_regret() -> None:
    crowded = days("crowded", *[0.1] * 5, time_hot_s=[6000, 5000, 7000, 6000, 5500])

    assert recommended(crowded, days("roomy", *[0.3] * 5)).configuration == "roomy"
    assert (
        recommended(crowded, days("full", *[0.1] * 5, time_full_s=900.0, time_hot_s=900.0)).configuration == "crowded"
    )


def test_first_of_indistinguishable_configurations_is_recommended() -> None:
    found = recommended(days("second", *[0.1] * 5), days("first", *[0.1] * 5))

    assert found.configuration == "second"


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ((4, 3, DAY_S), "4 whole days were replayed, at least 5 are needed"),
        ((9, 3, 17 * HOUR_S), "0 whole days were replayed, at least 5 are needed"),
        ((9, 2, DAY_S), "2 seeds were tried, at least 3 are needed"),
    ],
)
def test_too_few_days_or_seeds_give_no_recommendation(rows: tuple[int, int, float], why: str) -> None:
    count, seeds, duration_s = rows
    both = [days(name, *[0.1] * count, seeds=seeds, duration_s=duration_s) for name in ("one", "other")]

    found = recommended(*both)

    assert found.configuration is None
    assert found.why == (f"Nothing is recommended: {why}.",)


def test_single_configuration_is_not_recommended() -> None:
    assert recommended(days("only", *[0.1] * 6)).why == (
        "Nothing is recommended: there is nothing to compare it with.",
    )


def test_configuration_that_fails_the_next_day_is_not_recommended() -> None:
    odd, even = days("one", *[0.1, 0.5] * 4), days("other", *[0.4, 0.2] * 4)

    for rows in ([odd, even], [even, odd]):  # a choice that is right by half, and one that is always wrong
        found = recommended(*rows)
        assert found.configuration is None
        assert found.why[0] == "Nothing is recommended: what was best so far is no better on the next day."
        assert found.why[1].startswith("On the 6 days that came next: above 100 % of a broker 0.00 % of the time")


def test_consistently_best_configuration_is_recommended() -> None:
    found = recommended(days("a", *[0.1] * 6), days("b", *[0.2] * 6), days("c", *[0.3] * 6))

    assert (found.configuration, found.days, found.seeds) == ("a", 6, 3)
    assert any(each.startswith("On the 4 days that came next: above 100 %") for each in found.why)


def test_each_fleet_has_a_row_with_recommendation_or_reason() -> None:
    rows = [
        *days("a", *[0.1] * 5),
        *days("b", *[0.2] * 5),
        *days("a", 0.1, fleet="less"),
        *days("b", 0.2, fleet="less"),
    ]

    found = recommendations(pd.DataFrame(rows))
    table = recommendation_table(found)

    assert table["configuration"].tolist() == ["a", None]
    assert table["days"].tolist() == [5, 1]
    assert "1 whole days were replayed" in table["why"][1]
    league = league_table(pd.DataFrame(rows), found[0])
    assert league[league["recommended"]][["fleet", "configuration"]].to_numpy().tolist() == [["as-recorded", "a"]]


def test_report_names_the_configuration_of_the_recommended_file() -> None:
    outcomes = pd.DataFrame(
        [
            *days("one", *[0.1] * 5),
            *days("other", *[0.2] * 5),
            *days("one", *[0.2] * 5, fleet="three-less"),
            *days("other", *[0.1] * 5, fleet="three-less"),
        ]
    )
    found = recommendations(outcomes)
    assert [(each.fleet, each.configuration) for each in found] == [("as-recorded", "one"), ("three-less", "other")]

    league = league_table(outcomes, found[1])
    text = recommended_yaml(found[1], settings_of({"loadBalancerSheddingIntervalMinutes": 3}, "other"), [])

    (action,) = find_actions({"league": league.sort_values(["fleet", "place"])}, Summary("r", "/h", "/o"), text)
    assert action.what == "Balance with other"
    assert any(each.endswith("-c loadBalancerSheddingIntervalMinutes -v 3.0") for each in action.commands)


@at_most(50)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.11, 0.5]), min_size=5, max_size=7), min_size=2, max_size=4),
    st.integers(0, 2),
)
def test_recommended_configuration_is_never_shown_worse_than_another(regrets: list[list[float]], of: int) -> None:
    count = min(len(each) for each in regrets)
    metric, key = [(FULL, "time_full_s"), (HOT, "time_hot_s"), (REGRET, "regret")][of]
    scale = 1.0 if key == "regret" else DAY_S
    by_day: list[dict[str, Any]] = [{key: [scale * value for value in each[:count]]} for each in regrets]
    tried = [days(str(number), *[0.1] * count, **each) for number, each in enumerate(by_day)]
    outcomes = pd.DataFrame([row for rows in tried for row in rows])

    (found,) = recommendations(outcomes)

    assert found.why
    if found.configuration is not None:
        for other in {str(number) for number in range(len(regrets))} - {found.configuration}:
            mirrored = int(other) < int(found.configuration)
            pair = (other, found.configuration) if mirrored else (found.configuration, other)
            assert difference(outcomes, metric, *pair)["shown"] != ("better" if mirrored else "worse")


def test_recommended_file_is_accepted_by_nodes(tmp_path: Path) -> None:
    values = {
        "loadBalancerLoadSheddingStrategy": "TransferShedder",
        "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeightExtensible",
        "loadBalancerBrokerLoadTargetStd": 0.1,
    }
    found = recommended(days("transfer", *[0.1] * 5), days("none", *[0.94] * 5))
    path = tmp_path / "recommended.yaml"

    path.write_text(recommended_yaml(found, settings_of(values, "test"), ["From a: b\n- c"]))

    settings = load_settings(Settings, path)
    assert settings.planner_settings().shedding_strategy == "TransferShedder"
    assert settings.planner_settings().broker_load_target_std == 0.1
    text = path.read_text()
    assert "# none is worse than transfer in regret: 0.84" in text
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == [
        "loadBalancerLoadPlacementStrategy: LeastResourceUsageWithWeightExtensible",
        "loadBalancerLoadSheddingStrategy: TransferShedder",
        "loadBalancerBrokerLoadTargetStd: 0.1",
    ]
