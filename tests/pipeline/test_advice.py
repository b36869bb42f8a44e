from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import orjson
import pytest
from pyspark.sql import SparkSession
from support.window_frames import HOUR_MS, frame_of

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting import MIB
from loadmanager.pipeline.advice import (
    Advice,
    BusyBundle,
    advice,
    advise_namespace,
    advise_on_limits_of_brokers,
    busy_bundles,
    current,
)
from loadmanager.pipeline.datasets import require

SETTINGS = PlannerSettings()
DAY_MS = 24 * HOUR_MS
WARM = {"msg_rate": 5_000.0, "throughput": 10.0 * MIB, "topics": 300, "sessions": 300}
COLD = {"msg_rate": 1.0, "throughput": 1_000.0, "topics": 2, "sessions": 4}
ONE = ("b:80",)


def bundles(count: int, owners: Sequence[str] = ONE, **carried: float) -> list[BusyBundle]:
    """Equal ranges of a namespace, warm but for what is said."""
    of = {**WARM, **carried}
    return [
        BusyBundle(
            f"t/n/{own}",
            owners[row % len(owners)],
            hours=72,
            since_ms=0,
            last_ms=3 * DAY_MS,
            topics=int(of["topics"]),
            sessions=int(of["sessions"]),
            msg_rate=of["msg_rate"],
            throughput=of["throughput"],
        )
        for row, own in enumerate(NamespaceBundles(equal_boundaries(count)).ranges())
    ]


def advise(shape: Sequence[BusyBundle], settings: PlannerSettings = SETTINGS) -> dict[str, Advice]:
    return {each.kind: each for each in advise_namespace(shape, settings, 3 * DAY_MS)}


def test_warm_bundles_need_no_advice() -> None:
    assert advise(bundles(8)) == {}


def test_bundle_above_a_limit_is_advised_to_split_with_figures() -> None:
    shape = bundles(8)
    shape[3] = replace(shape[3], msg_rate=50_000.0)

    found = advise(shape)

    assert found["split"].subject == shape[3].name
    assert found["split"].text == (
        "Split into 2 because its 50000 messages/s are more than loadBalancerNamespaceBundleMaxMsgRate 30000"
        " (90th percentile of 72 hours)"
    )
    assert found["split"].evidence["msg_rate_per_s"] == 50_000.0


def test_v1_namespace_gets_the_same_advice() -> None:
    shape = bundles(8)
    shape[3] = replace(shape[3], msg_rate=50_000.0)
    shape[5:7] = [replace(each, **COLD) for each in shape[5:7]]  # type: ignore[arg-type]  # fields of their types
    of_first_form = [replace(each, name=each.name.replace("t/n/", "t/c1/n/")) for each in shape]

    expected = {kind: each.subject.replace("t/n", "t/c1/n") for kind, each in advise(shape).items()}
    assert {kind: each.subject for kind, each in advise(of_first_form).items()} == expected
    assert {"split", "merge"} <= expected.keys()


def test_single_topic_bundle_above_a_limit_is_unsplittable() -> None:
    shape = bundles(8)
    shape[0] = replace(shape[0], topics=1, throughput=200.0 * MIB)

    found = advise(shape)

    assert set(found) == {"unsplittable"}
    assert found["unsplittable"].subject == shape[0].name
    assert "partition the topic" in found["unsplittable"].text
    assert found["unsplittable"].evidence["above"] == "loadBalancerNamespaceBundleMaxBandwidthMbytes"


def test_single_topic_bundle_within_limits_needs_no_advice() -> None:
    assert advise(bundles(8, topics=1)) == {}


def test_split_at_the_maximum_number_of_bundles_is_blocked() -> None:
    found = advise(bundles(8, msg_rate=40_000.0), replace(SETTINGS, namespace_maximum_bundles=8))

    assert set(found) == {"split_blocked"}
    assert found["split_blocked"].evidence["loadBalancerNamespaceMaximumBundles"] == 8


def test_cold_neighbours_on_one_broker_are_advised_to_merge() -> None:
    shape = bundles(8)
    shape[4:6] = [replace(each, msg_rate=1.0, throughput=1_000.0, topics=2, sessions=4) for each in shape[4:6]]

    found = advise(shape)

    assert (found["merge"].subject, found["merge"].evidence["with"]) == (shape[4].name, shape[5].name)
    assert found["merge"].evidence["topics"] == 4


def test_cold_neighbours_on_different_brokers_or_too_young_are_not_merged() -> None:
    assert advise(bundles(8, ("a:80", "b:80"), **COLD)) == {}
    assert advise([replace(each, since_ms=3 * DAY_MS - 60_000) for each in bundles(8, ONE, **COLD)]) == {}


def test_merge_across_an_unreported_bundle_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = bundles(16, ONE, **COLD)[::2]

    monkeypatch.setattr("loadmanager.core.strategies.merging.MIN_BUNDLES", 1)
    found = advise(shape)

    assert found == {}


def test_current_bundles_are_the_last_reported_ones() -> None:
    old, *parts = bundles(1) + bundles(2)
    parts = [replace(each, last_ms=old.last_ms + 1) for each in parts]

    assert current([old, *reversed(parts)]) == parts
    assert current([replace(old, last_ms=old.last_ms + 2), *parts]) == [replace(old, last_ms=old.last_ms + 2)]


def test_unknown_limit_matters_only_for_weighted_resources() -> None:
    limits = {"b:80": [800.0, 0.0, 0.0, 0.0, 1e6], "a:80": [800.0, 1.0, 1.0, 1e6, 1e6]}

    (found,) = advise_on_limits_of_brokers(limits, ResourceWeights())

    assert (found.kind, found.subject) == ("unknown_limits", "b:80")
    assert found.text.startswith("The limits of bandwidth in are unknown")


def test_advice_is_derived_from_the_tables(spark: SparkSession) -> None:
    low, high, gone = ("0x00000000_0x80000000", "0x80000000_0xffffffff", "0x00000000_0xffffffff")
    last_hour = 47
    windows = [
        {
            "bundle": f"{namespace}/{own}",
            "namespace": namespace,
            "start_ms": hour * HOUR_MS,
            "covered_s": 3600.0,
            "mean_msg_rate_in": 40_000.0 if own == high else 100.0,
            "topics": 50.0,
        }
        for namespace in ("t/n", "pulsar/b:80")
        for own, hours in ((gone, range(38)), (low, range(38, 48)), (high, range(38, 48)))
        for hour in hours
    ]
    reports = [
        {
            "namespace": namespace,
            "bundle": f"{namespace}/{own}",
            "broker": "b:80",
            **dict.fromkeys(("start_ms", "first_ms", "last_ms"), hour * HOUR_MS),
        }
        for namespace in ("t/n", "pulsar/b:80")
        for own, hour in ((gone, 37), (low, last_hour), (high, last_hour))
    ]
    known = {f"{name}_limit": 100.0 for name in ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")}
    broker_reports: list[dict[str, object]] = [
        *({"broker": "a:80", "at_ms": minute * 60_000, **known} for minute in (0, 15, 30, 120, 135)),
        {"broker": "b:80", "at_ms": 0, "incarnation": 1, **known},
        {"broker": "b:80", "at_ms": DAY_MS, "incarnation": 2, **known, "cpu_limit": None},
    ]
    tables = (
        frame_of(spark, "bundle_windows", windows),
        frame_of(spark, "reported_by", reports),
        frame_of(spark, "clean_broker_reports", broker_reports),
    )

    rows = require(advice(SETTINGS, *tables), "advice").collect()

    found = {(row["kind"], row["subject"]): row for row in rows}
    assert set(found) == {
        ("split", f"t/n/{high}"),
        ("quiet_reports", "a:80"),
        ("unknown_limits", "b:80"),
    }
    assert orjson.loads(found["split", f"t/n/{high}"]["evidence"])["hours"] == 10
    assert orjson.loads(found["quiet_reports", "a:80"]["evidence"]) == {
        "gaps": 1,
        "longest_s": 5400.0,
        "intervals": 4,
        "loadBalancerBrokerLoadDataTTLInSeconds": 1800,
    }
    assert orjson.loads(found["unknown_limits", "b:80"]["evidence"]) == {"unknown": "CPU"}


def test_bundle_owner_holds_since_the_last_report_of_another_broker(spark: SparkSession) -> None:
    stays = [("t/n/a", "x:80", 0, 5), ("t/n/a", "y:80", 6, 8), ("t/n/a", "x:80", 9, 9), ("t/n/a", "z:80", 1, 2)]
    stays += [("t/n/b", "x:80", 3, 4), ("t/n/b", "x:80", 7, 8), ("t/n/young", "x:80", 1, 2), ("t/n/gone", "x:80", 1, 2)]
    reports = [
        {"bundle": bundle, "namespace": "t/n", "broker": broker, "first_ms": first, "last_ms": last}
        for bundle, broker, first, last in stays
    ]
    windows = [
        {"bundle": f"t/n/{name}", "namespace": "t/n", "start_ms": hour * HOUR_MS, "covered_s": covered_s}
        for name, hours, covered_s in (("a", 10, 1800.0), ("b", 10, 3600.0), ("young", 9, 3600.0), ("gone", 20, 60.0))
        for hour in range(hours)
    ]

    found = busy_bundles(frame_of(spark, "bundle_windows", windows), frame_of(spark, "reported_by", reports)).collect()

    assert {row["name"]: (row["owner"], row["since_ms"], row["last_ms"]) for row in found} == {
        "t/n/a": ("x:80", 8, 9),
        "t/n/b": ("x:80", 3, 8),
    }


def test_empty_tables_give_no_advice(spark: SparkSession) -> None:
    names = ("bundle_windows", "reported_by", "clean_broker_reports")

    assert advice(SETTINGS, *(frame_of(spark, name, []) for name in names)).collect() == []
