from __future__ import annotations

import json
from typing import Any

import pytest

from loadmanager.core.domain.bundles import HashFunction
from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.control_records import standing_data_of
from loadmanager.wire.operator_config import (
    NamespaceShape,
    OperatorConfigDocument,
    decode_operator_config,
    find_changes,
)

BUNDLE = "t/ns/0x00000000_0x40000000"
EVERYTHING = OperatorConfigDocument(
    exported_at="2026-11-22T19:00:00+00:00",
    exported_from="zk:a:2181",
    namespaces={
        "t/ns": NamespaceShape(bundles=4),
        "t/cut": NamespaceShape(
            boundaries=["0x00000000", "0x00001000", "0xffffffff"], hash_function=HashFunction.CRC32
        ),
    },
    isolation_policies={"docs": {"namespaces": ["docs/.*"], "primary": ["b1"]}},
    failure_domains={"east": {"brokers": ["b1:8080"]}},
    anti_affinity_groups={"t/ns": "rack"},
    controls={
        "excluded": ["b2:8080"],
        "pinned": {BUNDLE: "b1:8080"},
        "frozenBundles": {BUNDLE: "load test"},
        "frozen": "incident",
        "dryRun": True,
    },
    configuration={"loadBalancerSheddingIntervalMinutes": "5"},
    learned={
        "run": "r",
        "publishedAt": 1,
        "history": "/h",
        "rangeFrom": 0,
        "rangeTo": 1,
        "namespaces": {
            "t/ns": {
                "msgRateIn": 1.5,
                "msgRateOut": 1.0,
                "msgThroughputIn": 1.0,
                "msgThroughputOut": 1.0,
                "bundles": 4,
            }
        },
    },
)


NOTHING = OperatorConfigDocument()


def written(operator_config: OperatorConfigDocument, **changed: object) -> bytes:
    content = operator_config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return json.dumps(content | changed).encode()


EMPTY = OperatorConfigDocument(
    namespaces={},
    isolation_policies={},
    failure_domains={},
    anti_affinity_groups={},
    controls={},
    configuration={},
)


@pytest.mark.parametrize("operator_config", [EVERYTHING, NOTHING, EMPTY])
def test_operator_config_survives_a_round_trip(operator_config: OperatorConfigDocument) -> None:
    assert decode_operator_config(written(operator_config), "file") == operator_config


def test_equal_bundles_are_written_as_a_count() -> None:
    boundaries = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    assert NamespaceShape.of(NamespaceShape(boundaries=boundaries).value()) == NamespaceShape(bundles=4)


def test_temporary_controls_are_not_exported() -> None:
    moment = Controls(draining={BrokerId("b:1"): DrainOrder(1.0)}, held_off={BrokerId("b:2"): 2.0}, frozen="incident")
    assert standing_data_of(moment) == standing_data_of(Controls(frozen="incident"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"format": "something else"}, "format 'something else': expected 'loadmanager export'"),
        ({"version": 2}, "version 2: this loadmanager reads version 1"),
        ({"version": None}, "version: Input should be"),
        ({"pinned": {}}, "pinned: unknown key"),
        ({"controls": {"draining": {"b:1": 1}}}, "controls.draining: unknown key"),
        ({"namespaces": {"no-tenant": {"bundles": 4}}}, "namespaces.no-tenant"),
        ({"namespaces": {"t/ns": {"bundles": 0}}}, "namespaces.t/ns.bundles"),
        ({"namespaces": {"t/ns": {}}}, "namespaces.t/ns: expected either bundles or boundaries"),
        ({"namespaces": {"t/ns": {"bundles": 1, "boundaries": ["0x0", "0xffffffff"]}}}, "expected either"),
        ({"namespaces": {"t/ns": {"boundaries": ["0x0", "0x1"]}}}, "namespaces.t/ns: "),
        ({"isolationPolicies": {"p": {"primary": ["("]}}}, "isolation policy 'p': primary"),
        ({"failureDomains": {"d": {"brokers": ["no port"]}}}, "failureDomains.d.brokers.0"),
        ({"antiAffinityGroups": {"t/ns": ""}}, "antiAffinityGroups.t/ns"),
        ({"controls": {"pinned": {BUNDLE: "no port"}}}, "controls.pinned"),
        ({"configuration": {"key": 5}}, "configuration.key"),
        ({"learned": {"run": "r"}}, "learned"),
    ],
)
def test_invalid_operator_config_is_rejected_by_key(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        decode_operator_config(written(EVERYTHING, **changed), "backup.yaml")
    assert str(refused.value).startswith("backup.yaml: ")
    assert says in str(refused.value)


def changes(current: OperatorConfigDocument, wanted: OperatorConfigDocument) -> list[str]:
    return [f"{each.change} {each.kind} {each.name}" for each in find_changes(current, wanted)]


def test_nothing_changes_when_current_equals_wanted() -> None:
    assert find_changes(EVERYTHING, EVERYTHING) == []
    assert find_changes(EVERYTHING, NOTHING) == [], "what it does not speak of stays"


def test_empty_cluster_gets_everything_created() -> None:
    assert changes(NOTHING, EVERYTHING) == [
        "create namespace t/cut",
        "create namespace t/ns",
        "create isolation policy docs",
        "create failure domain east",
        "create anti-affinity group t/ns",
        "create control dryRun",
        "create control excluded b2:8080",
        "create control frozen",
        f"create control frozen {BUNDLE}",
        f"create control pinned {BUNDLE}",
        "create setting loadBalancerSheddingIntervalMinutes",
        "create learned all",
    ]


def test_unwanted_entries_are_removed_except_namespaces() -> None:
    changed = {"namespaces": {"t/ns": NamespaceShape(bundles=8)}, "anti_affinity_groups": {"t/ns": "other"}}
    wanted = EMPTY.model_copy(update=changed)
    assert changes(EVERYTHING, wanted) == [
        "differs namespace t/ns",
        "remove isolation policy docs",
        "remove failure domain east",
        "change anti-affinity group t/ns",
        "remove control dryRun",
        "remove control excluded b2:8080",
        "remove control frozen",
        f"remove control frozen {BUNDLE}",
        f"remove control pinned {BUNDLE}",
        "remove setting loadBalancerSheddingIntervalMinutes",
    ]
