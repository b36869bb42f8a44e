from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import averages, broker, bundle, owned, releasing

from loadmanager.core.domain.bundles import HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import FREE, NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.core.model.load import TimeMean
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.average_records import decode_bundle_data, encode_broker_averages, encode_bundle_data
from loadmanager.wire.http_bodies import LookupData, OwnershipAnswer
from loadmanager.wire.store_records import LeaderRecord, decode_namespace, encode_namespace
from loadmanager.wire.strategy_state import StrategyStateRecord
from loadmanager.wire.validation import parse_model

NAME = NamespaceName("t", "ns")
REGISTRATIONS = st.builds(
    Registration, st.sampled_from([broker("b1").broker, broker("b2").broker]), st.integers(0, 2**63)
)
NUMBERS = st.integers(0, 2**53)


@st.composite
def ownerships(draw: st.DrawFn) -> Ownership:
    state = draw(st.sampled_from(OwnershipState))
    owner = None if state is OwnershipState.FREE else draw(REGISTRATIONS)
    destination = draw(st.none() | REGISTRATIONS) if state is OwnershipState.RELEASING else None
    version, epoch, since_ms = draw(st.integers(1, 2**53)), draw(NUMBERS), draw(NUMBERS)
    return Ownership(state, owner, destination, version, epoch, since_ms, draw(st.text(max_size=20)))


@given(
    st.lists(st.just(FREE) | ownerships(), min_size=1, max_size=8),
    st.sampled_from(HashFunction),
)
def test_namespace_survives_a_round_trip(entries: list[Ownership], function: HashFunction) -> None:
    bundles = NamespaceBundles(equal_boundaries(len(entries)), function)
    state = NamespaceState(NAME, bundles, tuple(entries))
    assert decode_namespace(NAME, encode_namespace(state), "w") == state


def test_records_share_their_owners_and_boundaries() -> None:
    bundles = NamespaceBundles(equal_boundaries(3))
    first, second = broker("b1", 7), broker("b2", 8)
    entries = (owned(first, 3), releasing(second, first), owned(second, 4))
    data = encode_namespace(NamespaceState(NAME, bundles, entries))
    one, other = decode_namespace(NAME, data, "w"), decode_namespace(NAME, data, "w")
    assert one.ownerships == entries
    assert one.ownerships[0].owner is one.ownerships[1].destination is other.ownerships[0].owner
    assert one.ownerships[2].owner is other.ownerships[1].owner
    assert one.bundles is other.bundles
    crc32 = decode_namespace(NAME, data.replace(b"murmur3_32", b"crc32"), "w").bundles
    assert crc32 == replace(bundles, hash_function=HashFunction.CRC32)


def test_namespace_record_is_readable_by_operators() -> None:
    bundles = NamespaceBundles(equal_boundaries(2), HashFunction.CRC32)
    state = NamespaceState(NAME, bundles, (owned(broker("b1", 7), 3), FREE))
    assert orjson.loads(encode_namespace(state)) == {
        "bundles": {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2},
        "hashFunction": "crc32",
        "ownership": {
            "0x00000000_0x80000000": {
                "state": "Owned",
                "owner": "b1:8080",
                "incarnation": 7,
                "version": 3,
                "epoch": 0,
                "since": 0,
                "reason": "",
            }
        },
    }


def a_namespace(**changes: object) -> bytes:
    entry = {"state": "Owned", "owner": "b1:8080", "incarnation": 7, "version": 1, "epoch": 1, "since": 1, **changes}
    bundles = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
    return orjson.dumps({"bundles": bundles, "ownership": {"0x00000000_0xffffffff": entry}})


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "Invalid JSON"),
        (b"{}", "bundles: Field required"),
        (b'{"bundles":{"boundaries":[],"numBundles":0}}', "expected at least 2"),
        (b'{"bundles":{"boundaries":["0x0","0x80000000"],"numBundles":1}}', "expected them to span"),
        (b'{"bundles":{"boundaries":["0x0","0x9","0x5","0xffffffff"],"numBundles":3}}', "does not ascend"),
        (b'{"bundles":{"boundaries":["0x0","x","0xffffffff"],"numBundles":2}}', "'x': expected 0x"),
        (b'{"bundles":{"boundaries":["0x0","0xffffffff"],"numBundles":1},"hashFunction":"md5"}', "hashFunction"),
        (a_namespace(state="Lost"), "ownership.0x00000000_0xffffffff.state: Input should be 'Free'"),
        (a_namespace(state="Free"), "only a free bundle has no owner"),
        (a_namespace(owner=None), "only a free bundle has no owner"),
        (a_namespace(owner="b1"), "broker id 'b1': expected 'host:port'"),
        (a_namespace(version=-1), "version: Input should be greater than or equal to 0"),
        (a_namespace(version="1e400"), "version"),
        (a_namespace(epoch=2**60), "epoch: Input should be less than or equal to"),
        (a_namespace().replace(b"0x00000000_0xffffffff", b"0x00000000_0x80000000"), "no such bundle among"),
        (a_namespace().replace(b"0x00000000_0xffffffff", b"everything"), "ownership of 'everything': no such bundle"),
    ],
)
def test_damaged_namespace_record_is_rejected_with_path_and_field(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRecordError) as refusal:
        decode_namespace(NAME, data, "/the/znode")
    assert str(refusal.value).startswith("/the/znode: ")
    assert complaint in str(refusal.value)


def test_bundle_averages_survive_a_round_trip() -> None:
    history = {bundle(n): averages((1.5 * n, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0), 7, 9) for n in range(3)}
    found = decode_bundle_data("tenant/ns", encode_bundle_data(history), "w")
    assert list(found) == list(history)
    for name, value in history.items():
        assert found[name].short.tolist() == value.short.tolist()
        assert found[name].long.tolist() == value.long.tolist()
        assert (found[name].short_samples, found[name].long_samples, found[name].topics) == (7, 7, 9)


def test_time_means_survive_a_round_trip_and_are_optional() -> None:
    history, name = averages((1.0, 2.0, 3.0, 4.0)), bundle(0)
    with_mean = replace(history, time_mean=TimeMean(np.array((5.0, 6.0, 7.5, 8.0)), 0.25))
    found = decode_bundle_data("tenant/ns", encode_bundle_data({name: with_mean}), "w")[name].time_mean
    assert found is not None
    assert (found.load.tolist(), found.sigma) == ([5.0, 6.0, 7.5, 8.0], 0.25)
    older = encode_bundle_data({name: history})
    assert b"timeMean" not in older
    assert decode_bundle_data("tenant/ns", older, "w")[name].time_mean is None


def test_bundle_averages_have_the_keys_of_pulsar() -> None:
    data = orjson.loads(encode_bundle_data({bundle(0): averages((1.0, 2.0, 3.0, 4.0), samples=1, topics=5)}))
    assert data["0x00000000_0x00000001"]["shortTermData"] == {
        "maxSamples": 10,
        "numSamples": 1,
        "msgThroughputIn": 3.0,
        "msgThroughputOut": 4.0,
        "msgRateIn": 1.0,
        "msgRateOut": 2.0,
    }
    assert data["0x00000000_0x00000001"]["longTermData"]["maxSamples"] == 1000
    assert data["0x00000000_0x00000001"]["topics"] == 5


MEAN: dict[str, object] = {
    "maxSamples": 10,
    "numSamples": 1,
    "msgThroughputIn": 1,
    "msgThroughputOut": 1,
    "msgRateIn": 1,
    "msgRateOut": 1,
}


@pytest.mark.parametrize("field", ["numSamples", "msgRateIn"])
@pytest.mark.parametrize("value", [b"-1", b"1e300", b'"x"', b"NaN"])
def test_averages_out_of_range_are_rejected(field: str, value: bytes) -> None:
    mean = {**MEAN, field: "HERE"}
    data = orjson.dumps({"0x00000000_0xffffffff": {"shortTermData": mean, "longTermData": mean}})
    with pytest.raises(InvalidRecordError, match=f"/the/znode: .*{field}"):
        decode_bundle_data("t/ns", data.replace(b'"HERE"', value), "/the/znode")


def test_absurd_topic_count_is_rejected() -> None:
    data = orjson.dumps({"0x00000000_0xffffffff": {"shortTermData": MEAN, "longTermData": MEAN, "topics": "HERE"}})
    with pytest.raises(InvalidRecordError, match="topics: Input should be less than or equal to"):
        decode_bundle_data("t/ns", data.replace(b'"HERE"', str(10**30).encode()), "/the/znode")


def test_topic_count_is_capped_at_32_bits() -> None:
    data = orjson.dumps({"0x00000000_0xffffffff": {"shortTermData": MEAN, "longTermData": MEAN, "topics": 2**40}})
    (history,) = decode_bundle_data("t/ns", data, "/the/znode").values()
    assert history.topics == 2**31 - 1


def test_broker_averages_have_the_keys_of_pulsar() -> None:
    sums = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    assert orjson.loads(encode_broker_averages(sums)) == {
        "shortTermMsgThroughputIn": 3.0,
        "shortTermMsgThroughputOut": 4.0,
        "shortTermMsgRateIn": 1.0,
        "shortTermMsgRateOut": 2.0,
        "longTermMsgThroughputIn": 7.0,
        "longTermMsgThroughputOut": 8.0,
        "longTermMsgRateIn": 5.0,
        "longTermMsgRateOut": 6.0,
    }


def test_lookup_data_omits_absent_fields_except_those_of_old_clients() -> None:
    data = LookupData(broker_id="b1:8080", broker_url="pulsar://b1:6650", native_url="pulsar://b1:6650")
    assert orjson.loads(data.to_json()) == {
        "brokerId": "b1:8080",
        "brokerUrl": "pulsar://b1:6650",
        "nativeUrl": "pulsar://b1:6650",
        "brokerUrlSsl": "",
    }


def test_ownership_of_a_free_bundle_survives_a_round_trip() -> None:
    answer = OwnershipAnswer(bundle=bundle(0), state="Free", version=0, epoch=0)
    assert parse_model(OwnershipAnswer, answer.to_json(), "w") == answer


def test_unknown_fields_of_a_leader_record_are_ignored() -> None:
    record = parse_model(LeaderRecord, b'{"brokerId":"b","serviceUrl":"u","epoch":3,"more":1}', "w")
    assert record == LeaderRecord(broker_id="b", service_url="u", epoch=3)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{"states":{"ThresholdShedder":5}}', "states.ThresholdShedder"),
        (b'{"recentlyUnloaded":{"t/ns/x":"NaN"}}', "recentlyUnloaded.t/ns/x: Input should be a finite number"),
        (b'{"recentlyUnloaded":{"t/ns/x":-5}}', "recentlyUnloaded.t/ns/x: Input should be greater than"),
    ],
)
def test_invalid_strategy_state_is_rejected(data: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRecordError, match=complaint):
        parse_model(StrategyStateRecord, data, "/the/znode")


def test_release_record_keeps_its_destination() -> None:
    bundles = NamespaceBundles(equal_boundaries(1))
    state = NamespaceState(NAME, bundles, (releasing(broker("b1", 3), broker("b2", 4)),))
    data = orjson.loads(encode_namespace(state))["ownership"]["0x00000000_0xffffffff"]
    assert (data["destination"], data["destinationIncarnation"]) == ("b2:8080", 4)
