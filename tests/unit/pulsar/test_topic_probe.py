from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.domain.names import HASH_SPACE_END, BundleName, BundleRange, NamespaceName, TopicName
from loadmanager.pulsar.pulsar_admin import topic_in

NAMESPACE = NamespaceName.parse("lm/bench")
HASHES = st.integers(0, HASH_SPACE_END - 1)


def hash_of(bundle: BundleName, domain: str) -> int:
    topic = TopicName.of(domain, bundle.namespace.tenant, bundle.namespace.local_name, topic_in(bundle, domain))
    return zlib.crc32(str(topic).encode())


@given(HASHES, st.sampled_from(["persistent", "non-persistent"]))
def test_every_hash_has_a_topic_name(lower: int, domain: str) -> None:
    assert hash_of(BundleName(NAMESPACE, BundleRange(lower, lower + 1)), domain) == lower


@pytest.mark.parametrize("text", ["0x00000000_0xffffffff", "0x00000000_0x10000000", "0xfffffffe_0xffffffff"])
def test_every_bundle_has_a_topic(text: str) -> None:
    bundle = BundleName(NAMESPACE, BundleRange.parse(text))
    assert hash_of(bundle, "persistent") in bundle.range
    assert topic_in(bundle, "persistent") != topic_in(bundle, "non-persistent")
