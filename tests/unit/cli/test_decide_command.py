from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.builders import bundle
from support.dumps import APP, Line, answers, broker, history, run, stats
from typer.testing import CliRunner

from loadmanager.config.node_settings import Settings
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES
from loadmanager.lab.decide.decision_settings import WITHOUT_EFFECT

SHED = ("--shed", "ThresholdShedder")
BUNDLE = "tenant/ns/0x00000000_0x80000000"


def brokers(**content: object) -> Line:
    return {"brokers": {"b:8080": content}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "-: empty: expected a JSON object on each line"),
        ("\n \n", "-: empty"),
        ('{"takenAt": 1}\n{"brokers": {"b', "line 2: not one whole JSON object"),
        ("[1]", "line 1: expected a JSON object"),
        ("{}\n{}{}", "line 2: not one whole JSON object"),
        ('{"brokres": {}}', "line 1: brokres: unknown key; did you mean 'brokers'?"),
        ('{"takenAt": 1, "takenAt": 2}', "line 1: takenAt: is there twice in one object"),
        ('{"takenAt": -1}', "line 1: takenAt: "),
        ('{"takenAt": NaN}', "line 1: takenAt: "),
        ('{"brokers": {"b": {"msgRateIn": NaN}}}', "line 1: brokers.b.msgRateIn: not a number of JSON"),
        ('{"brokers": {"b": {"msgRateIn": 1e999}}}', "line 1: brokers.b.msgRateIn: not a number of JSON"),
        ('{"brokers": {"b": {"msgRateIn": -Infinity}}}', "line 1: brokers.b.msgRateIn: not a number of JSON"),
        ('{"brokers": {"b": {"msgRateIn": "-Infinity"}}}', "line 1: brokers.b.msgRateIn: expected 0 or more"),
        ('{"brokers": {"b": {"msgRateIn": "12"}}}', "line 1: brokers.b.msgRateIn: "),
        ('{"brokers": {"b": {"msgRateIm": 1}}}', "brokers.b.msgRateIm: unknown key; did you mean 'msgRateIn'?"),
        ('{"brokers": {"b": {"cpu": {"usage": 1}}}}', "brokers.b.cpu.limit: Field required"),
        ('{"brokers": {"": {}}}', "brokers"),
        ("{" * 20_000, "line 1: "),
        ("[" * 200_000, "line 1: nested too deeply"),
        ("\udcff{}", "line 1: not UTF-8"),
        ("\x1f\udc8b\x08\x00", "line 1: compressed with gzip: expected JSON Lines in UTF-8"),
        ("\ufeff{}", "line 1: begins with a byte order mark: expected JSON Lines in UTF-8"),
        ("\udcff\udcfe{\x00}\x00", "line 1: in UTF-16: expected JSON Lines in UTF-8"),
        ('{"brokers": {"b": {"msgRateIn": 1%s}}}' % ("0" * 400), "line 1: brokers.b.msgRateIn: not a number of JSON"),
        ('{"brokers": {"b": {"numTopics": 1%s}}}' % ("0" * 5000), "line 1: brokers.b.numTopics: Input should be a"),
        ('{"state": {"NoShedder": {}}}', "state.NoShedder: unknown key"),
        ('{"state": {"OverloadShedder": {"hits": 1}}}', "state.OverloadShedder.hits: unknown key"),
        ('{"state": {"ThresholdShedder": {"usage": {"b": [1]}}}}', "state.ThresholdShedder.usage.b.1"),
        ('{"configuration": {"loadBalancerEnabld": "true"}}', "did you mean 'loadBalancerEnabled'?"),
        ('{"configuration": {"loadBalancerEnabled": true}}', "configuration.loadBalancerEnabled: "),
        ('{"configuration": {"loadBalancerEnabled": "maybe"}}', "line 1: configuration: loadBalancerEnabled: "),
        ('{"candidates": ["b"]}', "line 1: candidates: 'b' is none of the brokers"),
        ('{"isolationPolicies": {"p": {"primary": ["("]}}}', "line 1: isolationPolicies: "),
        ('{"namespaces": {"t/n": {"boundaries": ["0x00000000"]}}}', "line 1: namespaces.t/n: boundaries"),
        ('{"namespaces": {"t": {}}}', "line 1: namespaces: namespace 't'"),
        (
            '{"namespaces": {"t/n": {"ownership": {"x": {"state": "Free"}}}}}',
            "line 1: namespaces.t/n.ownership: bundle 't/n/x'",
        ),
        ('{"namespaces": {"t/n": {"hashFunction": "md5"}}}', "line 1: namespaces.t/n.hashFunction: "),
        ('{"bundleData": {"t/n/nonsense": {}}}', "line 1: bundleData: bundle 't/n/nonsense'"),
        ('{"bundleData": {"t/n/0x10_0x10": {}}}', "line 1: bundleData: bundle 't/n/0x10_0x10'"),
        ('{"bundleData": {"t/0x00_0x10": {}}}', "line 1: bundleData: bundle 't/0x00_0x10'"),
        ('{"bundleData": {"b1": {}, "t/n/0x00_0x10": {}}}', "all or none have a namespace"),
        ('{"recentlyUnloaded": {"bundles": {"x": 1}}}', "line 1: recentlyUnloaded.bundles: bundle 'x'"),
    ],
)
def test_invalid_dump_ends_with_2_and_names_the_place(text: str, complaint: str) -> None:
    result = run(text, *SHED, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("loadmanager: ")
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            {"bundleData": {"t/n/0x00000000_0x80000000": {}}, **brokers(bundles=["t/n/0x40000000_0xc0000000"])},
            "line 1: bundle 't/n/0x40000000_0xc0000000' overlaps 't/n/0x00000000_0x80000000'",
        ),
        (
            {"bundleData": {"t/n/0x00000000_0x80000000": {}, "t/n/0x00000000_0X80000000": {}}},
            "overlaps",
        ),
        (
            {
                "namespaces": {"t/n": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"]}},
                **brokers(bundles=["t/n/0x00000000_0xffffffff"]),
            },
            "line 1: bundle 't/n/0x00000000_0xffffffff': is none of namespaces.t/n.boundaries",
        ),
        ({"preallocated": {"a": ["t/n/b1"], "b": ["t/n/b1"]}}, "line 1: preallocated: 't/n/b1' is there twice"),
        (
            {"topBundles": {"a": [{"bundle": "t/n/b1"}, {"bundle": "t/n/b1"}]}},
            "line 1: topBundles.a: 't/n/b1' is there twice",
        ),
    ],
)
def test_contradictory_dump_is_rejected(line: Line, complaint: str) -> None:
    result = run([line], *SHED)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "expected either --shed NAME or --place NAME"),
        ((*SHED, "--place", "RoundRobinBrokerSelector", "--bundle", BUNDLE), "expected either"),
        (("--place", "RoundRobinBrokerSelector"), "expected --bundle"),
        ((*SHED, "--bundle", BUNDLE), "--bundle"),
        ((*SHED, "--split"), "expected either"),
        ((*SHED, "--positions", "1"), "only with --split"),
        (("--split", "--positions", "x"), "--positions 'x'"),
        (("--split", "--positions", "1"), "specified_positions_divide, and only with it"),
        (("--split", "specified_positions_divide"), "expected --positions"),
        (("--split", "whatever"), "--split 'whatever': expected one of range_equally_divide"),
        (("--split", "--bundle", "tenant/ns/bundle-1"), "--bundle 'tenant/ns/bundle-1'"),
        (("--shed", "NoShedder"), "--shed 'NoShedder': expected one of OverloadShedder"),
        (("--place", "ThresholdShedder", "--bundle", BUNDLE), "--place 'ThresholdShedder': expected one of AvgShedder"),
        ((*SHED, "--set", "loadBalancerEnabled"), "expected KEY=VALUE"),
        ((*SHED, "--set", "loadBalancerEnabld=true"), "--set: unknown key 'loadBalancerEnabld'"),
        ((*SHED, "--set", "maxUnloadPercentage=2"), "--set: maxUnloadPercentage: "),
        ((*SHED, "--seed", "-1"), "--seed"),
        (("--place", "RoundRobinBrokerSelector", "--bundle", "nonsense"), "--bundle: bundle 'nonsense'"),
        (("--place", "RoundRobinBrokerSelector", "--bundle", "tenant/ns/0x0_0x10"), "overlaps"),
    ],
)
def test_invalid_question_is_rejected(arguments: tuple[str, ...], complaint: str) -> None:
    result = run([{"bundleData": {BUNDLE: {}}}], *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr


def test_missing_file_argument_is_named() -> None:
    result = CliRunner().invoke(APP, [])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Missing argument" in result.stderr


def test_error_in_a_later_line_prints_no_answers() -> None:
    result = run("{}\n{}\nnonsense\n", *SHED, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "line 3" in result.stderr


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    result = CliRunner().invoke(APP, [str(tmp_path / "none.jsonl"), *SHED])
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_non_finite_numbers_are_quoted_in_input_and_output() -> None:
    line = {
        "brokers": {
            "a": broker([bundle(1), bundle(2)], cpu=90, load=stats()) | {"msgThroughputIn": "NaN"},
            "b": broker(memory={"usage": "NaN", "limit": "Infinity"}) | {"cpu": {"usage": "NaN", "limit": 1}},
        },
        "bundleData": {bundle(1): history({"msgThroughputIn": math.nan})},
    }
    text = json.dumps(line).replace(": NaN", ': "NaN"')
    result = run(text, *SHED, "--json")
    assert result.exit_code == 0, result.stderr
    (answer,) = [json.loads(each) for each in result.stdout.splitlines()]
    assert '"NaN"' in result.stdout
    assert run([{**json.loads(text), "state": answer["state"]}], *SHED).exit_code == 0


def test_null_counts_as_absent() -> None:
    line = {"brokers": {"a": {"lastStats": None, "bundles": None, "cpu": None}}, "takenAt": None, "state": None}
    (answer,) = answers(line, *SHED)
    assert answer["takenAt"] == 0


def two_brokers(cpu: float, start: int = 0) -> Line:
    names = [bundle(i) for i in range(4)]
    figures = dict.fromkeys(names, stats(0, 0, 50e6, 50e6))
    hot = broker(cpu=cpu, load=stats(0, 0, 200e6, 200e6), lastStats=figures, startTimestamp=start)
    return {"brokers": {"hot:1": hot, "idle:1": broker(cpu=0)}, "takenAt": 1000}


def test_strategy_state_is_carried_between_lines_and_can_be_given() -> None:
    first, second = answers([two_brokers(90), two_brokers(20)], *SHED)
    remembered = second["state"]["ThresholdShedder"]["usage"]["hot:1"]
    assert remembered == [0, pytest.approx(0.83)]
    (again,) = answers({**two_brokers(20), "state": first["state"]}, *SHED)
    assert again["state"] == second["state"]
    _, fresh = answers([two_brokers(90), {**two_brokers(20), "state": {}}], *SHED)
    assert fresh["state"]["ThresholdShedder"]["usage"]["hot:1"] == [0, pytest.approx(0.2)]


def test_broker_with_another_start_time_is_another_broker() -> None:
    _, second = answers([two_brokers(90), two_brokers(20, start=7)], *SHED)
    assert second["state"]["ThresholdShedder"]["usage"]["hot:1"] == [7, pytest.approx(0.2)]


def test_command_line_settings_override_those_of_the_dump() -> None:
    line = {**two_brokers(90), "configuration": {"loadBalancerBrokerThresholdShedderPercentage": "60"}}
    assert answers(line, *SHED)[0]["decisions"] == []
    assert answers(line, *SHED, "--set", "loadBalancerBrokerThresholdShedderPercentage=10")[0]["decisions"]


def test_empty_threshold_is_fitted_to_the_fleet() -> None:
    open_thresholds = ("loadBalancerBrokerThresholdShedderPercentage", "loadBalancerBundleUnloadMinThroughputThreshold")
    line = {**two_brokers(5), "configuration": dict.fromkeys(open_thresholds, "")}
    assert answers(two_brokers(5), *SHED)[0]["decisions"] == []
    assert answers(line, *SHED)[0]["decisions"]


@pytest.mark.parametrize(
    ("configuration", "usage"),
    [
        ({}, 0.5),
        ({"loadBalancerBandwithInResourceWeight": "0.5"}, 0.25),
        ({"loadBalancerBandwithInResourceWeight": "0.5", "loadBalancerBandwidthInResourceWeight": "0.8"}, 0.4),
        ({"loadBalancerBandwithInResourceWeight": "0.5", "loadBalancerBandwidthInResourceWeight": "1.0"}, 0.25),
        ({"loadBalancerBandwithInResourceWeight": "0.5", "loadBalancerBandwidthInResourceWeight": "1.00"}, 0.25),
        ({"supportedNamespaceBundleSplitAlgorithms": "range_equally_divide", "loadManagerMigrationEnabled": "no"}, 0.5),
        (
            {"loadBalancerReportUpdateThresholdPercentage": "10", "loadManagerClassName": "a.ModularLoadManagerImpl"},
            0.5,
        ),
        ({"loadBalancerLoadSheddingStrategy": "AvgShedder", "loadBalancerLoadPlacementStrategy": "AvgShedder"}, 0.5),
    ],
)
def test_settings_of_broker_conf_are_accepted(configuration: dict[str, str], usage: float) -> None:
    line = {"brokers": {"a": {"bandwidthIn": {"usage": 50, "limit": 100}}}, "configuration": configuration}
    (answer,) = answers(line, *SHED)
    assert answer["state"]["ThresholdShedder"]["usage"]["a"][1] == pytest.approx(usage)


def test_excluded_namespaces_affect_only_transfers() -> None:
    excluded = ("--set", "loadBalancerSheddingExcludedNamespaces=other/ns, tenant/ns")
    now = ("--set", "loadBalancerSheddingConditionHitCountThreshold=0")
    assert answers(two_brokers(90), "--shed", "TransferShedder", *now)[0]["decisions"]
    assert answers(two_brokers(90), "--shed", "TransferShedder", *now, *excluded)[0]["decisions"] == []
    assert answers(two_brokers(90), *SHED, *excluded)[0]["decisions"]


def test_planned_placement_on_an_overloaded_broker_is_replaced() -> None:
    new = "tenant/ns/0x80000000_0xffffffff"
    line = {**two_brokers(90), "state": {"AvgShedder": {"planned": {new: "hot:1"}}}}
    (answer,) = answers(line, "--place", "AvgShedder", "--bundle", new)
    assert (answer["decisions"][0]["destination"], answer["candidates"]) == ("idle:1", ["idle:1"])
    assert answer["state"]["AvgShedder"]["placed"] == {new: "idle:1"}


def test_non_persistent_topic_needs_a_broker_that_serves_them() -> None:
    line: Line = {"brokers": {name: {"nonPersistentTopicsEnabled": name == "3"} for name in "123"}}
    asked = ("--place", "RoundRobinBrokerSelector", "--bundle", BUNDLE)
    assert answers(line, *asked)[0]["candidates"] == ["1"]
    line["topics"] = {BUNDLE: [{"topic": "non-persistent://tenant/ns/x"}]}
    assert answers(line, *asked)[0]["candidates"] == ["3"]


def test_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_LOADBALANCERBROKERTHRESHOLDSHEDDERPERCENTAGE", "99")
    assert answers(two_brokers(90), *SHED)[0]["decisions"]


def test_recently_unloaded_bundles_stay_within_the_grace_period() -> None:
    line = two_brokers(90)
    names = list(line["brokers"]["hot:1"]["lastStats"])
    line |= {"takenAt": 3_600_000, "recentlyUnloaded": {"bundles": {names[0]: 3_600_000, names[1]: 1_799_999}}}
    (answer,) = answers(line, *SHED)
    assert names[0] not in [each["bundle"] for each in answer["decisions"]]
    assert names[1] in [each["bundle"] for each in answer["decisions"]]


def test_recently_relieved_broker_stops_transfers() -> None:
    line = {**two_brokers(90), "takenAt": 100_000, "recentlyUnloaded": {"brokers": {"hot:1": 90_000}}}
    (answer,) = answers(line, "--shed", "TransferShedder")
    assert answer["metrics"] == {"Skip/CoolDown": 1}


def test_bundle_may_have_a_label_instead_of_a_range() -> None:
    line = two_brokers(90)
    figures = dict.fromkeys(("bundle-1", "bundle-2"), stats(0, 0, 50e6, 50e6))
    line["brokers"]["hot:1"]["lastStats"] = figures
    (answer,) = answers(line, *SHED)
    assert [each["bundle"] for each in answer["decisions"]] == ["bundle-1", "bundle-2"]


def test_output_without_json_is_a_table_with_sentences() -> None:
    result = run([two_brokers(90)], *SHED)
    assert result.exit_code == 0
    assert "hot:1" in result.stdout
    assert "Shed 2 of 4 bundles because usage 90 %" in " ".join(result.stdout.split())
    nothing = run([{"brokers": {"a": broker()}}], *SHED)
    assert "Nothing to do." in nothing.stdout
    transfer = run([two_brokers(90)], "--shed", "TransferShedder")
    assert "Skip/HitCount 1" in transfer.stdout
    placed = run(
        [two_brokers(90)], "--place", "LeastLongTermMessageRate", "--bundle", "tenant/ns/0x80000000_0xffffffff"
    )
    assert "Drawn from: idle:1" in placed.stdout


def test_names_are_not_truncated() -> None:
    host = f"broker-0.{'a' * 60}.svc.cluster.local:8080"
    shown = run([{"brokers": {host: broker()}}], "--place", "LeastLongTermMessageRate", "--bundle", BUNDLE).stdout
    for name in (host, BUNDLE):
        assert name in shown
    assert "…" not in shown


def test_ownership_in_a_dump_overrides_reports() -> None:
    line = two_brokers(90)
    names = list(line["brokers"]["hot:1"]["lastStats"])
    ranges = [name.rpartition("/")[2] for name in names]
    ownership = {each: {"state": "Owned", "owner": "hot:1"} for each in ranges}
    line["namespaces"] = {"tenant/ns": {"ownership": ownership}}
    assert len(answers(line, *SHED)[0]["decisions"]) == 2
    ownership[ranges[0]] = {"state": "Releasing", "owner": "hot:1", "destination": "idle:1"}
    (answer,) = answers(line, *SHED)
    assert answer["decisions"] == []
    assert {each["verdict"] for each in answer["verdicts"]} == {"awaiting_report", "below_threshold"}


@pytest.mark.parametrize("strategy", sorted(SHEDDING_STRATEGIES))
def test_shedding_state_can_be_given_again(strategy: str) -> None:
    (answer,) = answers(two_brokers(90), "--shed", strategy)
    assert list(answer["state"]) == [strategy]
    (again,) = answers({**two_brokers(90), "state": answer["state"]}, "--shed", strategy)
    assert list(again["state"]) == [strategy]


@pytest.mark.parametrize("strategy", sorted(PLACEMENT_STRATEGIES))
def test_placement_state_can_be_given_again(strategy: str) -> None:
    asked = ("--place", strategy, "--bundle", "tenant/ns/0x80000000_0xffffffff")
    (answer,) = answers(two_brokers(20), *asked)
    assert answer["decisions"][0]["destination"] in answer["candidates"]
    (again,) = answers({**two_brokers(20), "state": answer["state"]}, *asked)
    assert list(again["state"]) == [strategy]


@pytest.mark.parametrize(("time", "reporter"), [({}, "b2:8080"), ({"lastUpdate": 1}, "b1:8080")])
def test_report_without_a_time_has_the_time_of_its_line(time: Line, reporter: str) -> None:
    hot = {BUNDLE: stats(40000, topics=2)}
    reports = {
        "b1:8080": broker([BUNDLE], lastStats=hot, lastUpdate=9),
        "b2:8080": broker([BUNDLE], lastStats=hot, **time),
    }
    (answer,) = answers({"takenAt": 10, "brokers": reports}, "--split")
    assert [each["source"] for each in answer["decisions"]] == [reporter]


def test_keys_without_effect_are_no_settings() -> None:
    assert WITHOUT_EFFECT.isdisjoint(Settings.key(name) for name in Settings.model_fields)


def test_topic_count_is_capped() -> None:
    line = {"brokers": {"b:8080": broker(lastStats={bundle(1): stats(1, topics=2**62)}, numTopics=2**62)}}
    (answer,) = answers(line, "--place", "LeastLongTermMessageRate", "--bundle", "tenant/ns/0x80000000_0xffffffff")
    assert answer["decisions"][0]["destination"] == "b:8080"


@pytest.mark.parametrize("strategy", sorted(PLACEMENT_STRATEGIES))
@pytest.mark.parametrize(
    ("reports", "possible"),
    [
        ({}, [None]),
        ({"a:1": {}}, ["a:1"]),
        ({"a:1": broker(cpu=500)}, ["a:1"]),
        ({"a:1": broker(cpu=500), "b:1": broker(cpu=400)}, ["a:1", "b:1"]),
        ({"a:1": {"cpu": {"usage": 9, "limit": 0}}, "b:1": {"cpu": {"usage": 9, "limit": -1}}}, ["a:1", "b:1"]),
        ({"a:1": {"bundles": [bundle(1)]}, "b:1": {"lastStats": {}}}, ["a:1", "b:1"]),
    ],
)
def test_placement_answers_for_incomplete_reports(strategy: str, reports: Line, possible: list[str | None]) -> None:
    line = {"brokers": reports}
    (answer,) = answers(line, "--place", strategy, "--bundle", "tenant/ns/0x80000000_0xffffffff")
    assert answer["decisions"][0]["destination"] in possible
    assert set(answer["candidates"]) <= set(reports)
    assert bool(answer["candidates"]) == bool(reports)
