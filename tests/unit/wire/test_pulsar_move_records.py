from __future__ import annotations

import pytest

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.protocol.guardrails import MoveHistory, PendingMove
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.pulsar_records import decode_move_history, encode_move_history

A, B = BrokerId("a:8080"), BrokerId("b:8080")
LOWER, UPPER = "t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"
ACTS = MoveHistory(
    {UPPER: PendingMove(A, None, 12.5, is_own=False), LOWER: PendingMove(A, B, 13.0, is_own=True)},
    (12.0, 13.0),
    {B: 11.25, A: 10.0},
    2,
)


def test_move_history_has_the_documented_json() -> None:
    assert encode_move_history(ACTS).decode() == (
        '{"inProgress":{"t/ns/0x00000000_0x80000000":'
        '{"source":"a:8080","beganAt":13000,"own":true,"destination":"b:8080"},'
        '"t/ns/0x80000000_0xffffffff":{"source":"a:8080","beganAt":12500,"own":false}},'
        '"began":[12000,13000],"touched":{"a:8080":10000,"b:8080":11250},"failures":2}'
    )
    assert decode_move_history(encode_move_history(ACTS), "/x") == ACTS


def test_empty_record_is_an_empty_history() -> None:
    assert (
        decode_move_history(b"{}", "/x")
        == decode_move_history(encode_move_history(MoveHistory()), "/x")
        == MoveHistory()
    )


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "EOF"),
        (b"[]", "object"),
        (b'{"more":1}', "more: "),
        (b'{"failures":-1}', "failures: "),
        (b'{"began":["now"]}', r"began\.0: "),
        (b'{"touched":{"a":1}}', r"touched.*: expected 'host:port'"),
        (b'{"inProgress":{"t/ns":{"source":"a:8080","beganAt":1,"own":true}}}', r"inProgress\.t/ns.*: expected"),
        (b'{"inProgress":{"t/ns/0x00000000_0x80000000":{"source":"a:8080","own":true}}}', "beganAt: Field required"),
    ],
)
def test_invalid_move_record_is_rejected_with_path_and_field(data: bytes, fault: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"^/x: .*{fault}"):
        decode_move_history(data, "/x")
