from __future__ import annotations

from typing import Any

import pytest
from support.dumps import Line, answers, broker, history, run, stats

from loadmanager.lab.decide.dump_snapshot import snapshot_of
from loadmanager.wire.dump_line import decode_line, encode

FIRST, SECOND = "t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"
QUOTA = {"msgRateIn": 100.0, "msgRateOut": 200.0, "bandwidthIn": 1000.0, "bandwidthOut": 2000.0, "memory": 80.0}
AS_LOAD = [100.0, 200.0, 1000.0, 2000.0]


def averages(line: Line, bundle: str) -> tuple[list[float], list[float], int]:
    """Short and long ones, and the topics."""
    bundles = snapshot_of(decode_line(encode(line), "here"), 0.0, "here").bundles
    row = bundles.find_row(bundle)
    assert row is not None
    return bundles.short[row].tolist(), bundles.long[row].tolist(), int(bundles.topics[row])


def test_a_quota_counts_as_an_ample_history_to_which_the_latest_figures_are_one_sample_more() -> None:
    line = {"brokers": {"b:1": broker([FIRST], lastStats={FIRST: stats(topics=7)})}, "resourceQuotas": {FIRST: QUOTA}}
    short, long, topics = averages(line, FIRST)
    assert short == pytest.approx([0.9 * each for each in AS_LOAD])
    assert long == pytest.approx([0.999 * each for each in AS_LOAD])
    assert topics == 7


@pytest.mark.parametrize(
    "line",
    [
        {"brokers": {"b:1": broker([FIRST])}},
        {"brokers": {"b:1": broker()}, "preallocated": {"b:1": [FIRST]}},
        {
            "brokers": {"b:1": broker()},
            "namespaces": {"t/ns": {"ownership": {FIRST.rpartition("/")[2]: {"state": "Owned", "owner": "b:1"}}}},
        },
    ],
)
def test_without_figures_a_quota_is_what_a_bundle_is_taken_to_carry(line: Line) -> None:
    assert averages({**line, "resourceQuotas": {FIRST: QUOTA}}, FIRST) == (AS_LOAD, AS_LOAD, 0)


def test_a_history_wins_over_a_quota_and_the_default_one_is_the_quota_of_no_bundle_here() -> None:
    known = stats(1.0, 2.0, 3.0, 4.0)
    line = {
        "brokers": {"b:1": broker([FIRST, SECOND])},
        "bundleData": {FIRST: history(known)},
        "resourceQuotas": {FIRST: QUOTA, "default": QUOTA},
    }
    assert averages(line, FIRST)[0] == [1.0, 2.0, 3.0, 4.0]
    assert averages(line, SECOND)[0] == [50.0, 50.0, 50_000.0, 50_000.0]


def test_a_quota_of_a_bundle_that_nobody_names_makes_none() -> None:
    line = {"brokers": {"b:1": broker([FIRST])}, "resourceQuotas": {SECOND: QUOTA, "t/ns/0x00000000_0xffffffff": QUOTA}}
    snapshot = snapshot_of(decode_line(encode(line), "here"), 0.0, "here")
    assert snapshot.bundles.names == (FIRST,)


def test_a_bundle_on_its_way_between_two_reports_takes_a_sample_of_each() -> None:
    figures = {FIRST: stats()}
    line = {
        "brokers": {name: broker([FIRST], lastStats=figures) for name in ("b:1", "b:2")},
        "resourceQuotas": {FIRST: QUOTA},
    }
    assert averages(line, FIRST)[0] == pytest.approx([0.81 * each for each in AS_LOAD])


def placed(**more: Any) -> dict[str, Any]:  # noqa: ANN401 - any other key of a dump
    """Placement of the second bundle by the simple load manager."""
    line = {
        "takenAt": 1,
        "brokers": {
            "b:1": broker([FIRST], cpu=10, lastUpdate=1, lastStats={FIRST: stats(1, 1, 1, 1)}),
            "b:2": broker(cpu=12, lastUpdate=1),
        },
        **more,
    }
    (answer,) = answers(line, "--place", "leastMsgPerSecond", "--bundle", SECOND)
    return answer


def test_the_simple_load_manager_begins_with_the_quotas_and_the_default_one() -> None:
    default = {**QUOTA, "msgRateIn": 33.0}
    quotas = {FIRST: {**QUOTA, "dynamic": False}, SECOND: QUOTA, "default": {**default, "dynamic": False}}
    model = placed(resourceQuotas=quotas)["state"]["leastMsgPerSecond"]["model"]
    assert model["quotas"][FIRST] == [*AS_LOAD, 80.0]
    assert model["fixed"] == [FIRST]
    assert (model["default"], model["default_fixed"]) == ([33.0, *AS_LOAD[1:], 80.0], True)
    assert placed()["state"]["leastMsgPerSecond"]["model"]["quotas"][FIRST] != [*AS_LOAD, 80.0]


def test_what_the_simple_load_manager_remembers_wins_over_the_quotas() -> None:
    state = {"leastMsgPerSecond": {"model": {"default": [1.0, 1.0, 1.0, 1.0, 1.0], "last_update_ms": 1}}}
    model = placed(resourceQuotas={"default": QUOTA}, state=state)["state"]["leastMsgPerSecond"]["model"]
    assert model["default"] == [1.0] * 5


@pytest.mark.parametrize(
    ("quotas", "complaint"),
    [
        ({"nonsense": QUOTA}, "resourceQuotas: bundle 'nonsense'"),
        ({FIRST: {"msgRateIm": 1}}, "unknown key; did you mean 'msgRateIn'?"),
        ({FIRST: {"bandwidthIn": -1}}, "expected 0 or more"),
        ({FIRST: {"dynamic": "yes"}}, "resourceQuotas."),
    ],
)
def test_quotas_that_cannot_be_used_are_refused(quotas: Line, complaint: str) -> None:
    result = run([{"resourceQuotas": quotas}], "--shed", "ThresholdShedder")
    assert result.exit_code == 2
    assert complaint in result.output
