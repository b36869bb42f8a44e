from __future__ import annotations

from collections.abc import Callable

import pytest

from loadmanager.core.domain.names import (
    BundleName,
    BundleRange,
    InvalidNameError,
    NamespaceName,
    TopicName,
    broker_host,
    is_self_test_namespace,
    parse_broker_id,
)


@pytest.mark.parametrize(
    "text",
    ["persistent://t/ns/topic", "non-persistent://my-tenant/my.ns/a/b c", "persistent://t/ns/topic-partition-3"],
)
def test_a_topic_name_is_read_and_written_the_same(text: str) -> None:
    assert str(TopicName.parse(text)) == text


@pytest.mark.parametrize(
    ("parse", "text", "complaint"),
    [
        (TopicName.parse, "t/ns/topic", "expected 'persistent"),
        (TopicName.parse, "persistent://t/ns", "expected 'persistent"),
        (TopicName.parse, "volatile://t/ns/topic", "topic domain 'volatile'"),
        (TopicName.parse, "persistent://t/ns/", "topic name"),
        (TopicName.parse, "persistent://t/ns/" + "x" * 2049, "topic name"),
        (TopicName.parse, "persistent://t/ns/a\0b", "topic name"),
        (TopicName.parse, "persistent://t t/ns/a", "tenant 't t'"),
        (TopicName.parse, "persistent://t/../a", "namespace '..'"),
        (TopicName.parse, "persistent://" + "t" * 2049 + "/ns/a", "tenant"),
        (NamespaceName.parse, "tenant", "expected 'tenant/namespace'"),
        (NamespaceName.parse, "tenant/cluster/ns", "expected 'tenant/namespace'"),
        (BundleName.parse, "0x00000000_0xffffffff", "expected 'tenant/namespace/0x"),
        (BundleName.parse, "tenant/cluster/ns/0x00000000_0xffffffff", "expected 'tenant/namespace'"),
        (BundleName.parse, "tenant/ns/0x0_0xffffffff", "lower-case hexadecimal"),
        (BundleName.parse, "tenant/ns/0x00000000_0xFFFFFFFF", "lower-case hexadecimal"),
        (BundleName.parse, "tenant/ns/0x40000000_0x00000000", "lower < upper"),
        (BundleName.parse_any, "0x00000000_0xffffffff", "expected 'tenant/namespace/0x"),
        (BundleName.parse_any, "tenant/0x00000000_0xffffffff", "expected 'tenant/namespace'"),
        (BundleName.parse_any, "t/c/ns/more/0x00000000_0xffffffff", "expected 'tenant/namespace'"),
        (BundleName.parse_any, "t t/c/ns/0x00000000_0xffffffff", "tenant 't t'"),
        (BundleName.parse_any, "t/c c/ns/0x00000000_0xffffffff", "cluster 'c c'"),
        (BundleName.parse_any, "t/c//0x00000000_0xffffffff", "namespace ''"),
        (BundleName.parse_any, "t/c/ns/nonsense", "bundle range 'nonsense'"),
        *(
            (parse_broker_id, text, "expected 'host:port'")
            for text in ("broker", "broker:", ":8080", "broker:0", "broker:65536", "broker:x", "a/b:80", "broker:८")
        ),
    ],
)
def test_invalid_name_is_refused_with_the_reason(parse: Callable[[str], object], text: str, complaint: str) -> None:
    with pytest.raises(InvalidNameError, match=complaint):
        parse(text)


def test_a_namespace_has_a_tenant_and_a_name() -> None:
    assert str(NamespaceName.parse("tenant/ns")) == "tenant/ns"


def test_a_bundle_name_is_read_and_written_the_same() -> None:
    text = "tenant/ns/0x40000000_0xffffffff"
    assert BundleName.parse(text) == BundleName(NamespaceName("tenant", "ns"), BundleRange(0x40000000, 0xFFFFFFFF))
    assert str(BundleName.parse(text)) == text


@pytest.mark.parametrize("namespace", ["tenant/ns", "tenant/cluster/ns"])
def test_recorded_names_of_either_form_are_kept(namespace: str) -> None:
    bundle = f"{namespace}/0x40000000_0xffffffff"
    assert str(NamespaceName.parse_any(namespace)) == namespace
    assert str(BundleName.parse_any(bundle)) == bundle
    assert BundleName.parse_any(bundle).range == BundleRange(0x40000000, 0xFFFFFFFF)


def test_range_excludes_its_upper_bound_except_the_last() -> None:
    low, last = BundleRange(0, 0x10), BundleRange(0x10, 0xFFFFFFFF)
    assert 0 in low
    assert 0x10 not in low
    assert 0x10 in last
    assert 0xFFFFFFFF in last


def test_broker_id_is_split_at_its_last_colon() -> None:
    assert broker_host(parse_broker_id("broker-1.example.com:8080")) == "broker-1.example.com"
    assert broker_host(parse_broker_id("[::1]:8080")) == "[::1]"


def test_self_test_namespace_is_recognized_in_either_form() -> None:
    own = ["pulsar/b1.example.com:8080", "pulsar/c1/b1.example.com:8080", "sla-monitor/c1/b1:8080"]
    others = ["pulsar/system", "pulsar/c1/functions", "t/b1:8080", "t/c1/b1:8080"]
    assert [name for name in own + others if is_self_test_namespace(name)] == own
