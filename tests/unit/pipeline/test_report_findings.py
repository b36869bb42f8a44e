"""First screen of the report: health, three numbers with their trend, and actions, the most valuable first."""

from __future__ import annotations

import pandas as pd
import pytest
from support.reported import RECOMMENDED, contents_of, summary_of

from loadmanager.pipeline.reporting.actions import MORE_BROKERS, find_actions
from loadmanager.pipeline.reporting.charts import binned
from loadmanager.pipeline.reporting.contents import bin_length_ms
from loadmanager.pipeline.reporting.findings import find_numbers, judge_health
from loadmanager.pipeline.step import Summary

START_MS, WINDOW_MS, DAY_MS = 1_789_948_800_000, 300_000, 86_400_000


def balance(days: float, overloaded: float = 0.0, ratio: float = 1.1, since: float = 0.0) -> dict[str, pd.DataFrame]:
    """Make a balance of a number of days, overloaded for a part of the time since a moment."""
    count = int(days * 288)
    is_late = [number >= since * 288 for number in range(count)]
    late = max(1, sum(is_late))
    hot, left = [], round(overloaded * late)
    for each in is_late:
        hot.append(int(each and left > 0))
        left -= hot[-1]
    rows = pd.DataFrame({"start_ms": [START_MS + n * WINDOW_MS for n in range(count)], "overloaded_brokers": hot})
    return {
        "imbalance": rows.assign(covered_s=300.0, max_over_mean=ratio, worst_usage=0.8, worst_used_broker="b1:8080")
    }


def plan(needed: list[int], have: int) -> dict[str, pd.DataFrame]:
    days = [f"2026-10-{n + 1:02}" for n in range(len(needed))]
    short = next((day for day, count in zip(days, needed, strict=True) if count > have), None)
    rows = pd.DataFrame({"day": days, "needed": needed, "quantile": 0.5, "have": have, "exhausted_on": short})
    return {"capacity": rows.assign(headroom=0.3, resource_first="cpu", exhausted_on_n1=None, basis="x", start_ms=1)}


@pytest.mark.parametrize(
    ("contents", "state", "said"),
    [
        ({}, "unknown", "Too early to tell: 0 s known, 60 min needed."),
        (balance(11 / 288, overloaded=1), "unknown", "Too early to tell: 55 min known, 60 min needed."),
        (balance(0.5), "unknown", "Too early to tell: 12 h known, 18 h needed. No broker was above 85 %"),
        (balance(0.5, overloaded=0.5), "bad", "a broker was above 85 % for 50 % of the 12 h known"),
        (balance(3), "good", "No broker was above 85 % in any 5 minutes of the last day, and load was even."),
        (balance(20, overloaded=0.04, since=13), "watch", "a broker was above 85 % for 4 % of the last 7 days"),
        (balance(20, overloaded=0.06, since=13), "bad", "6 % of the last 7 days (10.1 h), most often b1:8080"),
        (balance(20, overloaded=0.5, since=0), "good", "No broker was above 85 %"),
        (
            balance(3, ratio=1.3),
            "watch",
            "the imbalance was above 1.20\N{MULTIPLICATION SIGN} for 100 % of the last day",
        ),
        ({**balance(3), **plan([5, 7], 6)}, "watch", "too small from 2026-10-02 on"),
        ({**balance(3), **plan([7, 7], 6)}, "bad", "too small for the load forecast today, 2026-10-01"),
    ],
)
def test_health_is_one_sentence(contents: dict[str, pd.DataFrame], state: str, said: str) -> None:
    health = judge_health(contents)
    assert health.state == state
    assert said in health.sentence


def test_figures_are_compared_with_the_period_before() -> None:
    overloaded, imbalance, needed = find_numbers({**balance(20, overloaded=0.1, since=13), **plan([5, 5, 7], 6)})
    assert (overloaded.value, overloaded.going) == ("10 %", "worse")
    assert overloaded.trend == "▲ from 0 % in the period before"
    assert (imbalance.trend, imbalance.going) == ("as in the period before", "same")
    assert (needed.value, needed.trend, needed.going) == ("5 of 6", "▲ 7 in 3 days", "worse")


def test_latest_period_ends_with_the_known_time() -> None:
    rows = balance(0.5)["imbalance"].assign(covered_s=150.0)
    assert find_numbers({"imbalance": rows})[1].about.endswith("load in the 6 h known")


def test_period_known_less_than_three_quarters_is_not_compared() -> None:
    rows = balance(20)["imbalance"]
    of_week_before = (rows["start_ms"] >= START_MS + 6 * DAY_MS) & (rows["start_ms"] < START_MS + 11 * DAY_MS)
    numbers = find_numbers({"imbalance": rows[~of_week_before]})
    assert numbers[1].about.endswith("in the last day")
    last_day = rows[rows["start_ms"] >= START_MS + 19 * DAY_MS]
    gappy = pd.concat([rows.head(288), last_day])
    assert find_numbers({"imbalance": gappy})[1].trend.startswith("No trend yet: it needs 18 known hours")


def test_highest_report_is_shown_beside_the_highest_mean() -> None:
    contents = balance(20)
    reports = pd.DataFrame({"start_ms": [START_MS, START_MS + 19 * DAY_MS], "max_usage": [0.99, 0.98]})
    contents["highest_reports"] = reports.assign(broker=["b7:8080", "b9:8080"])
    health = judge_health(contents)
    assert health.state == "good"
    assert health.highest == "Highest mean of 5 minutes: 80 % (b1:8080). Highest report: 98 % (b9:8080)."


def test_windows_of_unknown_usage_do_not_count_in_the_overload_share() -> None:
    rows = balance(1, overloaded=0.5)["imbalance"]
    rows.loc[rows["overloaded_brokers"] == 0, "worst_usage"] = None
    assert find_numbers({"imbalance": rows})[0].value == "100 %"
    unknown = {"imbalance": rows.assign(worst_usage=None)}
    assert judge_health(unknown).sentence == "Too early to tell: 0 s known, 60 min needed."


def test_unknown_figures_are_stated_as_unknown() -> None:
    overloaded, imbalance, needed = find_numbers(balance(1.5))
    assert overloaded.trend == imbalance.trend
    assert overloaded.trend == "No trend yet: it needs 18 known hours in each of the last 2 days."
    assert (needed.value, needed.trend) == ("?", "unknown, see Capacity")
    assert [each.value for each in find_numbers({})] == ["?", "?", "?"]


def test_most_valuable_action_is_first_with_evidence_and_command() -> None:
    found = find_actions(contents_of(20), summary_of(20), RECOMMENDED)
    assert [each.what.split()[0] for each in found] == ["Start", "Balance", "Partition", "Split", "Find", "Merge"]
    assert [each.evidence for each in found] == [
        *("#capacity", "#league", "#advice-4", "#advice-2", "#advice-1", "#advice-0"),
    ]
    assert found[1].commands[0].endswith("-c loadBalancerLoadSheddingStrategy -v TransferShedder")
    assert found[3].what == "Split 2 bundles"
    assert found[3].commands[1].endswith("split-bundle public/shop-1 -b 0x20000000_0x30000000 --unload")


def test_evidence_below_the_shown_rows_is_the_section() -> None:
    merges = [("merge", f"public/shop/{number}", "Cold.", "{}") for number in range(25)]
    split = ("split", "public/shop-1/0x00000000_0x10000000", "Hot.", "{}")
    advice = pd.DataFrame([*merges, split], columns=["kind", "subject", "text", "evidence"])
    assert [each.evidence for each in find_actions({"advice": advice}, summary_of(20))] == ["#advice", "#advice-0"]


def test_healthy_fleet_has_no_actions() -> None:
    assert find_actions({**balance(20), **plan([5, 5], 6)}, summary_of(20)) == []


@pytest.mark.parametrize(
    ("row", "action", "harmless"),
    [
        (("usage", "b 1", 0.85, 0.1), ("loadmanager admin explain broker 'b 1'", "#brokers"), {"observed_s": 300.0}),
        (("imbalance", "cluster", 1.2, 0.3), ("loadmanager admin status", "#imbalance"), {"share": 0.2}),
    ],
)
def test_unexplained_load_above_a_threshold_is_an_action(
    row: tuple[str, str, float, float], action: tuple[str, str], harmless: dict[str, float]
) -> None:
    above = pd.DataFrame([row], columns=["what", "subject", "threshold", "share"]).assign(above_s=600.0, observed_s=6e3)
    (found,) = find_actions({"time_above": above}, summary_of(20))
    assert (*found.commands, found.evidence) == action
    assert find_actions({"time_above": above.assign(**harmless)}, summary_of(20)) == []


def test_scenario_file_is_offered_only_for_a_local_history() -> None:
    contents = plan([5, 8], 6)
    (here,) = find_actions(contents, summary_of(20))
    assert list(here.files) == [MORE_BROKERS]
    assert "count: 2" in here.files[MORE_BROKERS]
    (far,) = find_actions(contents, Summary("run", "s3a://b/history", "s3a://b/out", 0, 1))
    assert (far.commands, far.files) == ((), {})


def test_larger_brokers_are_advised_when_no_number_suffices() -> None:
    rows = plan([7, 8], 6)["capacity"].assign(needed=[7, None])
    (found,) = find_actions({"capacity": rows}, summary_of(20))
    assert "No number of brokers is enough" in found.why
    needed = find_numbers({"capacity": rows})[2]
    assert (needed.value, needed.trend, needed.going) == ("7 of 6", "▲ no number in 2 days", "worse")


def test_bins_keep_the_extremes_and_gaps() -> None:
    at = [START_MS + n * WINDOW_MS for n in range(54 * 288) if not 1000 <= n < 1500]
    rows = pd.DataFrame({"start_ms": at, "value": 1.0})
    rows.loc[len(rows) // 2, "value"] = 9.0
    found = binned(rows, "value")
    assert len(found) <= 160
    assert found["high"].max() == 9.0
    assert found["middle"].max() == 1.0
    assert found["values"].sum() == len(rows)
    is_gap = found["start"].shift(-1) > found["end"]
    assert found[is_gap]["end"].tolist() == [START_MS + 1000 * WINDOW_MS]


def test_bins_have_customary_lengths() -> None:
    assert bin_length_ms(DAY_MS // 2) == WINDOW_MS
    assert bin_length_ms(54 * DAY_MS) == 12 * 3_600_000
    assert bin_length_ms(100 * 365 * DAY_MS) > 28 * DAY_MS
