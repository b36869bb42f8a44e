from __future__ import annotations

import pytest
from pydantic import ValidationError

from loadmanager.core.domain.controls import NO_CONTROLS, Controls, DrainOrder, ReturnOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.control_records import HoldOff, Pin, Reasoned, decode_controls, encode_controls

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
BUNDLE = "t/ns/0x00000000_0x80000000"
ALL = Controls(
    draining={B1: DrainOrder(1.5, 1_753_000_000_000)},
    returning={B2: ReturnOrder(1.25, (BUNDLE,))},
    excluded=frozenset({B1, B2}),
    held_off={B2: 1_700_000_000.25},
    pinned={BUNDLE: B1},
    frozen_bundles={BUNDLE: "test"},
    frozen="incident",
    dry_run=True,
)


@pytest.mark.parametrize("controls", [ALL, NO_CONTROLS])
def test_controls_survive_a_round_trip(controls: Controls) -> None:
    assert decode_controls(encode_controls(controls), "here") == controls


def test_control_record_has_the_documented_keys() -> None:
    assert encode_controls(ALL) == (
        b'{"draining":{"b1:8080":{"since":1500,"startTimestamp":1753000000000}},'
        b'"returning":{"b2:8080":{"since":1250,"bundles":["t/ns/0x00000000_0x80000000"]}},"heldOff":{"b2:8080":1700000000250},"excluded":["b1:8080","b2:8080"],'
        b'"pinned":{"t/ns/0x00000000_0x80000000":"b1:8080"},"frozenBundles":{"t/ns/0x00000000_0x80000000":"test"},'
        b'"frozen":"incident","dryRun":true}'
    )


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "here"),
        (b"[]", "here"),
        (b'{"drained": {}}', "drained"),
        (b'{"draining": {"b1": 1}}', "draining"),
        (b'{"draining": {"b1:8080": 1}}', "draining"),
        (b'{"draining": {"b1:8080": {"since": -1, "startTimestamp": 0}}}', "draining"),
        (b'{"excluded": ["b1"]}', "excluded"),
        (b'{"heldOff": {"b1:8080": "soon"}}', "heldOff"),
        (b'{"pinned": {"t/ns": "b1:8080"}}', "pinned"),
        (b'{"pinned": {"t/ns/0x00000000_0x80000000": 1}}', "pinned"),
        (b'{"frozenBundles": {"t/ns/0x00000000_0x80000000": ""}}', "frozenBundles"),
        (b'{"frozen": true}', "frozen"),
        (b'{"dryRun": "true"}', "dryRun"),
    ],
)
def test_invalid_control_record_is_rejected_with_path_and_field(data: bytes, field: str) -> None:
    with pytest.raises(InvalidRecordError, match=rf"^here: .*{field}|^here: "):
        decode_controls(data, "here")
    with pytest.raises(InvalidRecordError, match=field):
        decode_controls(data, "here")


def test_bodies_refuse_unknown_fields() -> None:
    for model, body in ((Reasoned, {"reason": "x"}), (HoldOff, {"forS": 1}), (Pin, {"broker": "b1:8080"})):
        model.model_validate(body)
        with pytest.raises(ValidationError, match="more"):
            model.model_validate({**body, "more": 1})
