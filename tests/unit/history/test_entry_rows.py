from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest
from support.builders import broker
from support.recorded import NOON_MS

from loadmanager.core.domain.plan import Assign, Unload, Verdict
from loadmanager.core.strategies.shedding.threshold_shedder import ThresholdReason
from loadmanager.history.entry_rows import (
    Decision,
    Entry,
    HistoryEvent,
    MoveRow,
    Placed,
    by_table,
    columns_of,
    encode_json,
)


class Columns:
    def as_json(self) -> dict[str, list[int]]:
        return {"hits": [1, 2]}


def row_of(entry: Entry) -> dict[str, Any]:
    ((table, placed),) = by_table([Placed(NOON_MS, 2, 7, entry)]).items()
    row: dict[str, Any] = columns_of(table, placed).to_pylist()[0]
    assert (row.pop("at_ms"), row.pop("epoch"), row.pop("sequence")) == (NOON_MS, 2, 7)
    return row


def test_decision_row_has_steps_and_verdicts_as_lists() -> None:
    steps: list[Assign | Unload | Mapping[str, Any]] = [
        Assign("t/ns/0x0_0x1", broker("b1", 5), ThresholdReason.BROKER_ABOVE_AVERAGE),
        Unload("t/ns/0x1_0x2", broker("b2", 6), None, ThresholdReason.BROKER_ABOVE_AVERAGE),
        {"kind": "split", "bundle": "t/ns/0x2_0x3", "detail": {"boundaries": [1]}},
    ]
    verdicts = [Verdict("b2:8080", ThresholdReason.BROKER_ABOVE_AVERAGE, acted=True, why={"usage_percent": 80.5})]
    row = row_of(Decision("shed", 4, "s1", 1.5, steps, verdicts, rng_state={"x": 2**70}, detail="[]"))
    none = dict.fromkeys(("source", "source_incarnation", "destination", "destination_incarnation", "reason", "detail"))
    reason = ThresholdReason.BROKER_ABOVE_AVERAGE.value
    assert row["steps"] == [
        none
        | {"kind": "assign", "bundle": "t/ns/0x0_0x1", "reason": reason}
        | {"destination": "b1:8080", "destination_incarnation": 5},
        none
        | {"kind": "unload", "bundle": "t/ns/0x1_0x2", "reason": reason}
        | {"source": "b2:8080", "source_incarnation": 6},
        none | {"kind": "split", "bundle": "t/ns/0x2_0x3", "detail": '{"boundaries":[1]}'},
    ]
    assert row["verdicts"] == [{"subject": "b2:8080", "reason": reason, "acted": True, "why": '{"usage_percent":80.5}'}]
    assert (row["rng_state"], row["detail"]) == ('{"x":1180591620717411303424}', "[]")


def test_move_row_has_its_load_and_the_number_of_its_move() -> None:
    row = row_of(MoveRow("measured", "t/ns/0x0_0x1", "a", "b", "why", np.array([1.0, 2.0, 3.0, 4.5]), move=17))
    assert (row["msg_rate_in"], row["msg_throughput_out"], row["move"]) == (1.0, 4.5, 17)
    assert row_of(MoveRow("planned", "x", None, None, "why"))["msg_rate_in"] is None


def test_columns_and_arrays_are_written_as_json() -> None:
    assert row_of(HistoryEvent("x", "y", {"b": Columns()}))["body"] == '{"b":{"hits":[1,2]}}'
    assert row_of(HistoryEvent("x", "y", {"a": np.float64(1.5), "b": np.arange(2)}))["body"] == '{"a":1.5,"b":[0,1]}'


def test_non_finite_numbers_are_quoted() -> None:
    text = encode_json({"a": [math.nan, math.inf], "b": {"c": Columns(), "d": -math.inf}})
    assert text is not None
    assert orjson.loads(text) == {"a": ["NaN", "Infinity"], "b": {"c": {"hits": [1, 2]}, "d": "-Infinity"}}


def test_double_keeps_all_its_digits() -> None:
    value = 0.1 + 0.2
    assert orjson.loads(encode_json([value]) or "") == [value]


def test_value_without_json_form_is_rejected() -> None:
    with pytest.raises(TypeError, match="object: has no form in JSON"):
        encode_json({"x": object()})
