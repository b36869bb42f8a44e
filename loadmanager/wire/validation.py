"""Validation of untrusted bytes into typed values, with errors that name the place, the field and the fault."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection
from itertools import takewhile
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.resources import MAX_AMOUNT
from loadmanager.errors import InvalidRecordError

T = TypeVar("T")

MAX_COUNT = 2**53
"""Maximum count: larger ones are implausible, and are not exact in JSON."""

STRICT = ConfigDict(extra="forbid", strict=True)
"""Configuration of records that refuse unknown keys and values of another type."""

Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Namespace = Annotated[str, AfterValidator(lambda text: str(NamespaceName.parse(text)))]

MAX_TOPICS = 2**31 - 1
"""Maximum topics in a bundle's history, as in Pulsar; higher numbers are clamped."""

_SHOWN_ERRORS = 3
_SHOWN_CHARACTERS = 60


class WireModel(BaseModel):
    """Immutable record in camelCase JSON; unknown fields are ignored, as by Pulsar's mapper."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")

    def to_json(self) -> bytes:
        """Encode as Pulsar does: no null fields, numbers as they are."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


def parse_json(adapter: TypeAdapter[T], data: bytes, where: str) -> T:
    """Parse `data`; raises `InvalidRecordError`, which names `where` (a path) and each faulty field."""
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        raise InvalidRecordError(f"{where}: {describe(error)}") from None


def parse_model(model: type[M], data: bytes, where: str) -> M:
    """Parse `data` as a model; raises as `parse_json`."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise InvalidRecordError(f"{where}: {describe(error)}") from None


def describe(
    error: ValidationError, keys: Collection[str] = (), is_shown: Callable[[object], bool] = lambda _: True
) -> str:
    """Describe the first faults as `field: fault (got value)`, unknown keys first.

    `keys` are the valid keys of a file, for suggestions; `is_shown` returns True for parts of a path that are in the
    file.
    """
    faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
    shown = [_describe_fault(fault, keys, is_shown) for fault in faults[:_SHOWN_ERRORS]]
    more = len(faults) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _describe_fault(fault: ErrorDetails, keys: Collection[str], is_shown: Callable[[object], bool]) -> str:
    path = [cut(str(part)) for part in fault["loc"] if is_shown(part)]
    field = f"{'.'.join(path)}: " if path else ""
    if fault["type"] == "extra_forbidden":
        close = difflib.get_close_matches(path[-1], keys, n=1)
        return f"{field}unknown key" + (f"; did you mean {close[0]!r}?" if close else "")
    message = fault["msg"].removeprefix("Value error, ")
    got = cut(repr(_start_of(fault["input"], [_SHOWN_CHARACTERS])))
    return f"{field}{message} (got {got})"


def _start_of(value: Any, left: list[int]) -> Any:  # noqa: ANN401 - whatever was in JSON
    """Return a prefix of the value with `left` parts, for display: formatting a large value takes seconds."""
    left[0] -= 1
    if isinstance(value, str | bytes):
        return value[: _SHOWN_CHARACTERS + 1]
    if isinstance(value, list | tuple):
        return [_start_of(each, left) for each in takewhile(lambda _: left[0] > 0, value)]
    if isinstance(value, dict):
        return {
            _start_of(key, left): _start_of(each, left) for key, each in takewhile(lambda _: left[0] > 0, value.items())
        }
    return value


def cut(text: str) -> str:
    """Return the start of a long text, with control characters escaped."""
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: _SHOWN_CHARACTERS + 1])
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


M = TypeVar("M", bound=BaseModel)
