"""JSON of dataclasses: conversions, omitted fields, and the number of fields."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Registration
from loadmanager.wire.machines.dataclass_codec import Conversion, DataclassCodec


@dataclass(frozen=True)
class Parted:
    bundle: str
    because: str = ""
    parts: list[str] = field(default_factory=list)


class PartError(Exception):
    """An error with a conversion."""


def test_fields_are_omitted_only_by_the_codec_that_names_them() -> None:
    parted = Parted("t/1", "large", ["a"])
    assert DataclassCodec([Parted]).as_json(parted) == ["Parted", "t/1", "large", ["a"]]
    assert DataclassCodec([Parted]).event_of(["Parted", "t/1", "large", ["a"]]) == parted
    brief = DataclassCodec([Parted], omitted=["because"])
    assert brief.as_json(parted) == ["Parted", "t/1", ["a"]]
    assert brief.fields_as_json(parted) == {"bundle": "t/1", "parts": ["a"]}
    assert brief.event_of(["Parted", "t/1", ["a"]]) == Parted("t/1", parts=["a"])


def test_conversions_of_a_codec_precede_the_common_ones() -> None:
    by_name = Conversion(lambda registration: registration.broker, lambda content: Registration(content, 1))
    by_text = Conversion(lambda error: {"part": str(error)}, lambda content: PartError(content["part"]))
    codec = DataclassCodec((), {Registration: by_name, PartError: by_text})
    registration = Registration(BrokerId("b:8080"), 1)
    assert codec.as_json(registration) == "b:8080"
    assert codec.value_of(Registration, "b:8080") == registration
    assert codec.as_json(PartError("a")) == {"part": "a"}
    assert codec.as_json(RuntimeError("a")) == "a"


@pytest.mark.parametrize("values", [[], ["t/1", "large", ["a"], "surplus"]])
def test_too_many_or_too_few_fields_are_refused(values: list[object]) -> None:
    with pytest.raises(ValueError, match=rf"^Parted: {len(values)} fields, expected 1 to 3: "):
        DataclassCodec([Parted]).event_of(["Parted", *values])
    assert DataclassCodec([Parted]).event_of(["Parted", "t/1"]) == Parted("t/1")
