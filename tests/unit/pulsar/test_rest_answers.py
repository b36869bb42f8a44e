from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import InvalidRecordError
from loadmanager.pulsar import rest_answers
from loadmanager.pulsar.rest_answers import extensible_report, settle_owners
from loadmanager.wire.broker_data import decode_local_broker_data

ANSWERS = Path(__file__).parent / "answers"
MODULAR, EXTENSIBLE = ("modular-4.0.1", "modular-4.2.4"), ("extensible-4.2.4", "extensible-5.0.0-M1")
A, B = BrokerId("a:8080"), BrokerId("b:8080")


def answer(cluster: str, name: str) -> bytes:
    return (ANSWERS / cluster / f"{name}.json").read_bytes()


@pytest.mark.parametrize("cluster", MODULAR + EXTENSIBLE)
def test_common_answers_of_every_cluster_are_parsed(cluster: str) -> None:
    brokers = rest_answers.names_in(answer(cluster, "brokers"), "w")
    assert brokers == ["broker-1:8080", "broker-2:8080", "broker-3:8080"]
    bundles = rest_answers.bundles_in(answer(cluster, "bundles"), "w")
    owned = rest_answers.owned_bundles(answer(cluster, "ownedNamespaces"), "w")
    assert len(bundles.range_texts()) == 32
    assert len(owned) > 20
    assert not any(name.startswith(("pulsar/", "sla-monitor/")) for name in owned)
    loads = rest_answers.bundle_loads(answer(cluster, "topics"), "w")
    assert sum(load["topics"] for load in loads.values()) >= 10
    assert all(load["producerCount"] >= 1 for name, load in loads.items() if name.startswith("shop/"))


@pytest.mark.parametrize("cluster", MODULAR)
def test_modular_broker_reports_itself(cluster: str) -> None:
    report = rest_answers.modular_report(answer(cluster, "load-report"), "w")
    record = decode_local_broker_data(orjson.dumps(report), "w")
    assert record["cpu"]["limit"] == 60.0
    assert len(record["lastStats"] or {}) == record["numBundles"]
    assert report["reported"] == record["lastUpdate"]


@pytest.mark.parametrize("cluster", EXTENSIBLE)
def test_extensible_broker_has_usage_and_load_of_its_bundles(cluster: str) -> None:
    owned = rest_answers.owned_bundles(answer(cluster, "ownedNamespaces"), "w")
    loads = rest_answers.bundle_loads(answer(cluster, "topics"), "w")
    assert not any(name.startswith("pulsar/system/") for name in owned), "nobody lists them"
    report = extensible_report(
        answer(cluster, "metrics-lb"), owned, loads, f"x.{rest_answers.EXTENSIBLE}", "http://broker-1:8080"
    )
    record = decode_local_broker_data(orjson.dumps(report), "w")
    assert 0 < record["cpu"]["usage"] < 100 == record["cpu"]["limit"]
    stats = record["lastStats"] or {}
    assert sorted(stats) == record["bundles"] == sorted(set(owned) & set(loads))
    assert record["msgThroughputIn"] == pytest.approx(sum(each["msgThroughputIn"] for each in stats.values()))
    assert record["msgThroughputIn"] > 0


def test_policies_of_a_cluster() -> None:
    assert rest_answers.group_in(b"", "w") is rest_answers.group_in(b'""', "w") is None
    assert rest_answers.group_in(b'"g1"', "w") == "g1"
    assert rest_answers.domains_in(b'{"d1": {"brokers": ["b1:8080"], "other": 1}}', "w") == {
        "d1": {"brokers": ["b1:8080"]}
    }
    policy = {"namespaces": ["t/n"], "primary": ["b1"], "secondary": [], "unknown": 1}
    policy |= {"auto_failover_policy": {"policy_type": "min_available", "parameters": {}}}
    found = rest_answers.isolation_in(orjson.dumps({"p": policy}), "w")
    assert found["p"]["primary"] == ["b1"]


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (rest_answers.names_in, b"{}"),
        (rest_answers.names_in, b"<html>"),
        (rest_answers.owned_bundles, b"[]"),
        (rest_answers.bundles_in, b"{}"),
        (rest_answers.bundles_in, b'{"boundaries": ["0x80000000", "0x00000000"]}'),
        (rest_answers.bundle_loads, b'{"t/n": []}'),
        (rest_answers.group_in, b"1"),
        (rest_answers.domains_in, b'{"d1": {"brokers": 1}}'),
        (lambda body, where: extensible_report(body, [], {}, "", where), b"[]"),
        (lambda body, where: extensible_report(body, [], {}, "", where), b'[{"metrics": {}}, 1]'),
    ],
)
def test_malformed_answer_is_rejected_with_its_address(parse: Callable[[bytes, str], object], body: bytes) -> None:
    with pytest.raises(InvalidRecordError, match=r"^http://b1"):
        parse(body, "http://b1")


def test_ownership_is_resolved_between_brokers() -> None:
    before = {"x": A, "y": A}
    assert settle_owners(before, {A: ["x", "y"], B: ["z"]}) == ({"x": A, "y": A, "z": B}, set())
    assert settle_owners(before, {A: ["x"], B: ["y"]}) == ({"x": A, "y": B}, set())
    assert settle_owners(before, {A: ["x", "y"], B: ["y"]}) == (before, {A, B}), "two have it: ask again"
    assert settle_owners(before, {A: ["x"], B: []}) == ({"x": A}, {A, B}), "nobody has it: ask again"
    assert settle_owners(before, {B: []}) == (before, set()), "who is silent keeps what it had"
