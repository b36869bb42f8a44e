from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from loadmanager.config import Settings, load_settings
from loadmanager.errors import ConfigurationError
from loadmanager.pipeline.league import (
    ABOVE,
    METRICS,
    interval,
    league_table,
    paired_differences,
    recommend,
    recommended_yaml,
)

HOUR_S = 3600.0


def outcome(configuration: str, above_s: float, **given: object) -> dict[str, object]:
    """A scenario of an hour in which nothing else happened."""
    return {
        "fleet": "as-recorded",
        "configuration": configuration,
        "stretch": 0,
        "seed": 0,
        "duration_s": HOUR_S,
        "time_above_s": above_s,
        "worst_usage": 0.5,
        "regret": 0.1,
        "moved_share": 0.0,
        "moves": 0,
        "moved_again": 0.0,
        "returns": 0,
        "clients_disturbed": 0,
        **given,
    }


def days(configuration: str, *above_s: float, **given: object) -> list[dict[str, object]]:
    """The same configuration on one stretch after the other."""
    return [outcome(configuration, each, stretch=number, **given) for number, each in enumerate(above_s)]


def difference(outcomes: pd.DataFrame, metric: str, one: str, other: str) -> pd.Series:
    table = paired_differences(outcomes)
    wanted = (table["metric"] == metric) & (table["configuration"] == one) & (table["other"] == other)
    assert wanted.sum() == 1
    return table[wanted].iloc[0]


def test_the_interval_is_students_of_the_pairs() -> None:
    values = np.array([0.1, 0.3, 0.2, 0.5])

    found = interval(values)

    expected = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    assert found.pairs == 4
    assert found.mean == pytest.approx(0.275)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.differs


def test_one_pair_has_a_difference_and_no_interval() -> None:
    found = interval([0.2])

    assert (found.mean, found.low, found.high, found.differs) == (0.2, None, None, False)


def test_no_pair_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="there are no pairs"):
        interval([])


def test_the_league_goes_by_time_above_the_band_and_then_by_what_was_disturbed() -> None:
    outcomes = pd.DataFrame(
        [
            outcome("restless", 36.0, moves=9, moved_share=0.9),
            outcome("uneven", 360.0),
            outcome("calm", 36.0, moves=1, moved_share=0.1),
        ]
    )

    table = league_table(outcomes)

    assert table["configuration"].tolist() == ["calm", "restless", "uneven"]
    assert table["place"].tolist() == [1, 2, 3]
    assert table[ABOVE].tolist() == pytest.approx([0.01, 0.01, 0.1])
    assert table["recommended"].tolist() == [True, False, False]


def test_rates_weigh_scenarios_by_their_length_and_the_worst_usage_is_the_worst_of_all() -> None:
    outcomes = pd.DataFrame(
        [
            outcome("only", 0.0, stretch=0, moves=3, worst_usage=0.9, duration_s=3 * HOUR_S),
            outcome("only", HOUR_S, stretch=1, moves=5, worst_usage=0.2),
        ]
    )

    row = league_table(outcomes).iloc[0]

    assert (row["scenarios"], row["hours"]) == (2, 4.0)
    assert (row[ABOVE], row["moves"], row["worst_usage"]) == pytest.approx((0.25, 2.0, 0.9))


def test_what_all_scenarios_of_a_day_share_does_not_blur_a_paired_difference() -> None:
    outcomes = pd.DataFrame([*days("one", 100, 900, 500, 1400), *days("other", 60, 850, 455, 1365)])

    found = difference(outcomes, ABOVE, "one", "other")

    assert found["difference"] == pytest.approx(np.mean([40, 50, 45, 35]) / HOUR_S)
    assert 0 < found["low"] < found["difference"] < found["high"] < 0.02
    assert (found["pairs"], found["paired_over"], found["differs"]) == (4, "stretches", True)


def test_seeds_of_one_stretch_count_once_where_there_are_several_stretches() -> None:
    rows = [
        outcome(name, above + seed, stretch=stretch, seed=seed)
        for name, above in (("one", 100), ("other", 80))
        for stretch in (0, 1)
        for seed in range(5)
    ]

    found = difference(pd.DataFrame(rows), ABOVE, "one", "other")

    assert (found["pairs"], found["paired_over"]) == (2, "stretches")


def test_seeds_are_the_pairs_where_there_is_one_stretch() -> None:
    rows = [
        outcome(name, above + seed, seed=seed) for name, above in (("one", 10), ("other", 20)) for seed in (1, 2, 3)
    ]

    found = difference(pd.DataFrame(rows), ABOVE, "one", "other")

    assert (found["pairs"], found["paired_over"]) == (3, "seeds")
    assert found["high"] == pytest.approx(-10 / HOUR_S)


def test_every_two_configurations_are_compared_by_every_metric_for_every_fleet() -> None:
    rows = [outcome(name, 1.0, fleet=fleet) for fleet in ("now", "less") for name in ("a", "b", "c")]

    table = paired_differences(pd.DataFrame(rows))

    assert len(table) == 2 * len(METRICS) * 3
    assert set(table["fleet"]) == {"now", "less"}


def test_among_equally_even_ones_the_calmest_is_recommended() -> None:
    rows = [*days("eager", 10, 12, 11, moved_share=3.0), *days("calm", 12, 13, 12, moved_share=0.5)]

    found = recommend(pd.DataFrame(rows), "as-recorded")

    assert found.configuration == "calm"
    assert "About as even, and more disturbing: eager." in found.why


def test_one_that_leaves_the_load_uneven_is_not_recommended_however_calm_it_is() -> None:
    rows = [*days("eager", 10, 12, 11, moved_share=3.0), *days("asleep", 3000, 3100, 2900)]

    found = recommend(pd.DataFrame(rows), "as-recorded")

    assert found.configuration == "eager"
    assert any(each.startswith("asleep is behind eager in time_above: 0.83") for each in found.why)


def test_where_all_are_above_the_band_for_as_long_the_regret_decides() -> None:
    rows = [*days("active", 3600, 3600, moved_share=3.0, regret=0.3), *days("asleep", 3600, 3600, regret=1.5)]

    found = recommend(pd.DataFrame(rows), "as-recorded")

    assert found.configuration == "active"
    assert "asleep is behind active in regret: 1.2 more (95 % interval 1.2 to 1.2, 2 pairs)." in found.why


def test_a_large_difference_counts_even_where_two_days_cannot_tell_it_from_chance() -> None:
    rows = [*days("eager", 10, 0, moved_share=3.0), *days("asleep", 500, 3000)]

    assert not difference(pd.DataFrame(rows), ABOVE, "eager", "asleep")["differs"]
    assert recommend(pd.DataFrame(rows), "as-recorded").configuration == "eager"


def test_the_first_given_is_recommended_where_nothing_tells_them_apart() -> None:
    rows = [*days("second", 1, 1), *days("first", 1, 1)]

    assert recommend(pd.DataFrame(rows), "as-recorded").configuration == "second"


def test_a_fleet_without_scenarios_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"fleet 'twice': has no scenarios; there are as-recorded"):
        recommend(pd.DataFrame([outcome("only", 1.0)]), "twice")


def test_the_recommended_file_is_a_configuration_that_nodes_accept(tmp_path: Path) -> None:
    values = {
        "loadBalancerLoadSheddingStrategy": "TransferShedder",
        "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeightExtensible",
        "loadBalancerBrokerLoadTargetStd": 0.1,
    }
    rows = [*days("transfer", 10, 12), *days("none", 3000, 3100)]
    path = tmp_path / "recommended.yaml"

    path.write_text(recommended_yaml(recommend(pd.DataFrame(rows), "as-recorded"), values, ["From a: b\n- c"]))

    settings = load_settings(Settings, path)
    assert settings.load_balancer_load_shedding_strategy == "TransferShedder"
    assert settings.load_balancer_broker_load_target_std == 0.1
    text = path.read_text()
    assert "# none is behind transfer in time_above: 0.84" in text
    assert [line for line in text.splitlines() if line and not line.startswith("#")] == [
        "loadBalancerLoadPlacementStrategy: LeastResourceUsageWithWeightExtensible",
        "loadBalancerLoadSheddingStrategy: TransferShedder",
        "loadBalancerBrokerLoadTargetStd: 0.1",
    ]


def test_a_key_that_does_not_exist_is_not_recommended() -> None:
    found = recommend(pd.DataFrame([outcome("only", 1.0)]), "as-recorded")

    with pytest.raises(ConfigurationError, match="configuration only: unknown key 'loadBalancerBrokerLoadTargetSt'"):
        recommended_yaml(found, {"loadBalancerBrokerLoadTargetSt": 0.1}, [])


def test_one_stretch_alone_is_said_to_be_no_more_than_that() -> None:
    found = recommend(pd.DataFrame([outcome("a", 1.0), outcome("b", 2.0, moved_share=1.0)]), "as-recorded")

    assert found.configuration == "a"
    assert any("nothing of other days" in each for each in found.why)
