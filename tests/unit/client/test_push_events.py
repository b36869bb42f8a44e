from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.client.push_events import EventReader, StreamEvent, parse_gone, parse_update
from loadmanager.errors import InvalidRecordError

STREAM = (
    b'event: hello\ndata: {"protocol":1}\n\n: nothing new\n\n'
    b"event: snapshot\nid: t/ns@1\ndata: {}\n\nevent:gone\nretry\ndata:x\n\n"
)
EVENTS = [
    StreamEvent("hello", "", b'{"protocol":1}'),
    StreamEvent("snapshot", "t/ns@1", b"{}"),
    StreamEvent("gone", "", b"x"),
]
BUNDLE = {"state": "Owned", "version": 1, "owner": "b:1"}
WHOLE = {
    "namespace": "t/ns",
    "hashFunction": "murmur3_32",
    "bundles": {"0x00000000_0xffffffff": BUNDLE},
    "brokers": {"b:1": {"lookup": {"brokerId": "b:1"}}},
}


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_do_not_depend_on_chunk_boundaries(cuts: list[int]) -> None:
    reader = EventReader()
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(places)]
    assert [event for chunk in chunks for event in reader.feed(chunk)] == EVENTS


def test_endless_event_is_rejected() -> None:
    reader = EventReader(most_bytes=100)
    assert list(reader.feed(b"data: " + b"x" * 90)) == []
    with pytest.raises(InvalidRecordError, match="more than 100 bytes"):
        list(reader.feed(b"x" * 90))


def test_snapshot_has_every_field_of_a_namespace() -> None:
    update = parse_update(StreamEvent("snapshot", "", json.dumps(WHOLE).encode()))
    assert (update.namespace, update.hash_function, [str(each.range) for each in update.bundles]) == (
        "t/ns",
        "murmur3_32",
        ["0x00000000_0xffffffff"],
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"namespace": None}, "snapshot: namespace ''"),
        ({"namespace": 7}, "snapshot: namespace: expected a text"),
        ({"hashFunction": "md5"}, "hashFunction 'md5': expected murmur3_32 or crc32"),
        ({"hashFunction": None}, "hashFunction ''"),
        ({"bundles": []}, "snapshot: bundles: expected a JSON object"),
        ({"bundles": {"0x0_0x1": BUNDLE}}, "bundle range '0x0_0x1'"),
        ({"bundles": {"0x00000000_0xffffffff": {**BUNDLE, "version": "1"}}}, "version: expected a whole number"),
        ({"bundles": {"0x00000000_0xffffffff": {**BUNDLE, "owner": 7}}}, "owner: expected a text"),
        ({"bundles": {"0x00000000_0xffffffff": 7}}, "0x00000000_0xffffffff: expected a JSON object"),
        ({"brokers": {"b:1": {}}}, "brokers: b:1: expected a JSON object"),
        ({"brokers": {"b:1": {"lookup": {}}}}, "brokers: b:1: brokerId: missing"),
        ({"brokers": {"b:1": {"lookup": {"brokerId": "b:1", "httpUrl": 7}}}}, "httpUrl: expected a text"),
    ],
)
def test_invalid_snapshot_field_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        parse_update(StreamEvent("snapshot", "", json.dumps({**WHOLE, **wrong}).encode()))
    assert said in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000])
def test_malformed_json_is_rejected(data: bytes) -> None:
    for name in ("snapshot", "change"):
        with pytest.raises(InvalidRecordError, match=f"{name}: expected"):
            parse_update(StreamEvent(name, "", data))
    with pytest.raises(InvalidRecordError, match="gone: expected"):
        parse_gone(data)
