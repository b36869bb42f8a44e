from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.pulsar_znodes import HISTORY, LOWER, UPPER, ZNODES

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.hashing import HashFunction
from loadmanager.errors import InvalidRecordError
from loadmanager.pulsar.pulsar_znodes import (
    WHOLE,
    decode_averages,
    decode_cut,
    decode_domain,
    decode_isolation,
    decode_leader,
    decode_owner,
    decode_texts,
    path_of,
    record_at,
)
from loadmanager.store import paths
from loadmanager.store.pulsar_paths import LOCAL_POLICIES, OWNERSHIP

POLICIES = "/admin/local-policies/public/default"
ISOLATION = "/admin/clusters/c1/namespaceIsolationPolicies"


def as_json(content: object) -> bytes:
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("path", "record"),
    [
        ("/loadbalance/brokers/b1:8080", (paths.BROKERS, "b1:8080")),
        ("/loadbalance/brokers", None),
        ("/loadbalance/brokers/b1:8080/more", None),
        ("/loadbalance/leader", ("/loadbalance/leader", "/loadbalance/leader")),
        (f"/namespace/public/default/{LOWER}", (OWNERSHIP, f"public/default/{LOWER}")),
        (f"/namespace/t/c1/old/{LOWER}", (OWNERSHIP, f"t/c1/old/{LOWER}")),
        (f"/namespace/pulsar/c1/b1:8080/{LOWER}", None),
        (f"/namespace/pulsar/b1:8080/{LOWER}", None),
        (f"/namespace/pulsar/system/{LOWER}", (OWNERSHIP, f"pulsar/system/{LOWER}")),
        ("/namespace/public/default", None),
        (f"/namespace/public/{LOWER}", None),
        (f"/namespace/t/c/old/more/{LOWER}", None),
        (f"/namespace/t t/old/{LOWER}", None),
        ("/admin/local-policies/public/default", (LOCAL_POLICIES, "public/default")),
        ("/admin/local-policies/t/c1/old", (LOCAL_POLICIES, "t/c1/old")),
        ("/admin/local-policies/public", None),
        ("/admin/configuration", ("/admin/configuration", "/admin/configuration")),
        ("/admin/flags/policies-readonly", ("/admin/flags/policies-readonly", "/admin/flags/policies-readonly")),
        ("/admin/flags", None),
        (ISOLATION, None),
        ("/", None),
    ],
)
def test_what_is_at_a_path(path: str, record: tuple[str, str] | None) -> None:
    assert record_at(path) == record
    if record is not None:
        assert path_of(*record) == path


@pytest.mark.parametrize(
    "record",
    [
        {"brokerId": "b1:8080", "disabled": False},
        {"nativeUrl": "pulsar://b1:6650", "httpUrl": "http://b1:8080", "disabled": False, "advertisedListeners": {}},
        {"nativeUrlTls": "pulsar+ssl://b1:6651", "httpUrlTls": "https://b1:8080"},
        {"brokerId": "", "httpUrl": "http://b1:8080"},
    ],
)
def test_an_owner_is_named_by_its_id_or_as_pulsar_4_does_by_its_address(record: object) -> None:
    for _ in range(2):
        assert decode_owner(as_json(record), "here") == "b1:8080"


@pytest.mark.parametrize(
    "record", [{"brokerId": "b1:8080", "serviceUrl": "https://x:1"}, {"serviceUrl": "http://b1:8080"}]
)
def test_a_leader_is_named_by_its_id_or_by_its_address(record: object) -> None:
    assert decode_leader(as_json(record), "here") == "b1:8080"


def test_local_policies_say_how_a_namespace_is_cut_and_which_group_it_is_in() -> None:
    cut = decode_cut(as_json(ZNODES[POLICIES]), POLICIES)
    assert cut.bundles == NamespaceBundles((0, 0x80000000, 0xFFFFFFFF), HashFunction.CRC32)
    assert cut.bundles.range_texts() == (LOWER, UPPER)
    assert cut.group == "g1"


@pytest.mark.parametrize(
    "record", [{}, {"bundles": None}, {"bundles": {"numBundles": 1}}, {"bundles": {"boundaries": []}}]
)
def test_a_namespace_whose_policies_do_not_say_how_is_one_bundle(record: object) -> None:
    assert decode_cut(as_json(record), "here") == WHOLE
    assert WHOLE.bundles.range_texts() == ("0x00000000_0xffffffff",)


def test_isolation_policies_and_failure_domains_are_read_without_fields_that_are_not_known() -> None:
    (name, policy), *none = ZNODES[ISOLATION].items()
    policies = decode_isolation(as_json({name: {**policy, "new": 1}, "empty": {}}), ISOLATION)
    assert policies == {name: policy, "empty": {}}
    assert not none
    assert decode_domain(as_json({"brokers": ["b1:8080"], "new": 1}), "here") == {"brokers": ["b1:8080"]}


def test_averages_have_no_more_samples_than_there_can_be() -> None:
    averages = decode_averages(as_json(HISTORY), "here")
    assert averages.long.tolist() == [1.0, 1.0, 1.0e8, 1.0e8]
    assert (averages.short_samples, averages.long_samples, averages.topics) == (10, 412, 16)
    more = {**HISTORY, "longTermData": {**HISTORY["longTermData"], "numSamples": 5_000}}
    assert decode_averages(as_json(more), "here").long_samples == 1_000


def test_dynamic_configuration_is_any_text() -> None:
    assert decode_texts(b'{"a": "1", "b": 2, "c": "x y"}', "here") == {"a": "1", "c": "x y"}


@pytest.mark.parametrize(
    ("decode", "data", "fault"),
    [
        (decode_owner, b"", "here: empty"),
        (decode_owner, b"{", "here: not JSON"),
        (decode_owner, b"[]", "here: expected a JSON object"),
        (decode_owner, b"{}", "here: broker id ''"),
        (decode_owner, b'{"httpUrl": 3}', "here: broker id ''"),
        (decode_leader, b'{"brokerId": "b1"}', "here: broker id 'b1'"),
        (decode_cut, b"\xff", "here: not UTF-8"),
        (decode_cut, b'{"bundles": {"boundaries": 3}}', "here: bundles.boundaries: expected a list"),
        (decode_cut, b'{"bundles": {"boundaries": [1]}}', "here: bundles.boundaries: expected a list"),
        (decode_cut, b'{"bundles": {"boundaries": ["x"]}}', "here: boundaries: 'x'"),
        (decode_cut, b'{"bundles": {"boundaries": ["0x0", "0x1"]}}', "here: boundaries: expected them to span"),
        (decode_cut, b'{"namespaceAntiAffinityGroup": 3}', "here: namespaceAntiAffinityGroup: expected a name"),
        (decode_isolation, b'{"p": {"primary": 3}}', "here: p.primary"),
        (decode_isolation, b'{"p": {"primary": ["["]}}', "here: isolation policy"),
        (decode_domain, b'{"brokers": ["b1"]}', "here: brokers.0"),
        (decode_averages, b'{"topics": 3}', "here: shortTermData"),
        (decode_texts, b"3", "here: expected a JSON object"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_place(
    decode: Callable[[bytes, str], object], data: bytes, fault: str
) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        decode(data, "here")
    assert str(refused.value).startswith(fault)
