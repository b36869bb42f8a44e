"""JSON of the events, actions and outcomes of state machines, derived from their dataclasses.

    MoveEnded("t/1", CalledOff("cancelled"))      ["MoveEnded", "t/1", ["CalledOff", "cancelled"]]
    Signal.TIME                                   ["TIME"]
    Registration("b2:8080", 31)                   ["b2:8080", 31]

A named class is a list of its name and fields, another dataclass a list of its fields. Fields at the end that have
their default are omitted, callables always.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic.alias_generators import to_camel

from loadmanager.core.diagnosis.reason_catalogue import reason_of
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, Registration
from loadmanager.core.domain.reasons import Reason
from loadmanager.core.protocol.move_machine import CalledOff, Failed, Kept, Moved, StaleStepError
from loadmanager.core.protocol.state_machine import Signal
from loadmanager.wire.checkpoint_codec import owned_as_json, owned_of

OUTCOMES = (Moved, Kept, CalledOff, Failed)
"""Outcomes of a move, in the events of several machines."""
_COLLECTIONS: Mapping[Any, Callable[[Iterable[Any]], Any]] = {tuple: tuple, Sequence: list, frozenset: frozenset}


class Conversion(NamedTuple):
    """Codec of the values of one class."""

    as_json: Callable[[Any], Any]
    value_of: Callable[[Any], Any]


class _Field(NamedTuple):
    """Field of a dataclass; one without a default has one that no value equals."""

    name: str
    key: str
    hint: Any
    default: Any
    is_required: bool


def registration_as_json(registration: Registration | None) -> list[Any] | None:
    return None if registration is None else [registration.broker, registration.incarnation]


def registration_of(content: Sequence[Any] | None) -> Registration | None:
    return None if content is None else Registration(BrokerId(content[0]), content[1])


def _error_as_json(error: Exception) -> Any:  # noqa: ANN401 - a text, or a name and a text
    return [StaleStepError.__name__, str(error)] if isinstance(error, StaleStepError) else str(error)


def _error_of(content: Any) -> Exception:  # noqa: ANN401 - as above
    return RuntimeError(content) if isinstance(content, str) else StaleStepError(content[1])


_COMMON: Mapping[type, Conversion] = {
    Registration: Conversion(registration_as_json, registration_of),
    Ownership: Conversion(owned_as_json, owned_of),
    Reason: Conversion(lambda reason: reason.value, reason_of),
    Exception: Conversion(_error_as_json, _error_of),
    Signal: Conversion(lambda signal: [signal.name], lambda content: Signal[content[0]]),
}


class DataclassCodec:
    """Codec of the classes and signals in `named`.

    `own` adds or replaces conversions of a class and its subclasses. Fields with a name in `omitted` are not encoded.
    """

    def __init__(
        self,
        named: Iterable[type | Signal],
        own: Mapping[type, Conversion] = MappingProxyType({}),
        omitted: Collection[str] = (),
    ) -> None:
        self._named = {each.name if isinstance(each, Signal) else each.__name__: each for each in named}
        self._conversions = {**_COMMON, **own}
        self._omitted = frozenset(omitted)
        self._encoders: dict[type, Callable[[Any], Any]] = {}

    def as_json(self, value: Any) -> Any:  # noqa: ANN401 - a value of any type, and JSON
        kind = value.__class__
        encode = self._encoders.get(kind)
        if encode is None:
            encode = self._encoders[kind] = self._find_encoder(kind)
        return encode(value)

    def _find_encoder(self, kind: type) -> Callable[[Any], Any]:
        converted = next((base for base in kind.__mro__ if base in self._conversions), None)
        if converted is not None:
            return self._conversions[converted].as_json
        if issubclass(kind, Mapping):
            return lambda value: {key: self.as_json(each) for key, each in value.items()}
        if issubclass(kind, frozenset):
            return lambda value: sorted(self.as_json(each) for each in value)
        if issubclass(kind, list | tuple | deque):
            return lambda value: [self.as_json(each) for each in value]
        if is_dataclass(kind):
            name = [kind.__name__] if kind.__name__ in self._named else []
            encoded = _list_fields(kind, self._omitted)
            return lambda value: [*name, *map(self.as_json, _trim_defaults(value, encoded))]
        return lambda value: value

    def event_of(self, content: Sequence[Any]) -> Any:  # noqa: ANN401 - a value of any named class
        """Decode a value of a named class, or a signal.

        Raises `ValueError` for an unknown one, and for too many or too few fields.
        """
        name, *values = content
        kind = self._named.get(name)
        if kind is None:
            raise ValueError(f"an event that is not known: {content}")
        return kind if isinstance(kind, Signal) else self._build(kind, values)

    def value_of(self, hint: Any, content: Any) -> Any:  # noqa: ANN401 - a type, JSON, and a value of that type
        """Decode a value of this type."""
        conversion = self._conversions.get(hint)
        if conversion is not None:
            return conversion.value_of(content)
        if content is None:
            return None
        origin, args = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            kinds = [each for each in args if each is not NoneType]
            return self.value_of(kinds[0], content) if len(kinds) == 1 else self.event_of(content)
        if origin is Mapping:
            return {key: self.value_of(args[1], each) for key, each in content.items()}
        if origin in _COLLECTIONS:
            is_alike = origin is not tuple or args[1] is Ellipsis
            hints = (args[0],) * len(content) if is_alike else args
            return _COLLECTIONS[origin](map(self.value_of, hints, content))
        return self._build(hint, content) if is_dataclass(hint) else content

    def fields_as_json(self, value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
        """Encode a value by field name, without defaults."""
        values = ((each, getattr(value, each.name)) for each in _list_fields(value.__class__, self._omitted))
        return {each.key: self.as_json(content) for each, content in values if content != each.default}

    def fields_of(self, kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
        """Decode the fields of a class that are in the content."""
        return {
            each.name: self.value_of(each.hint, content[each.key])
            for each in _list_fields(kind, self._omitted)
            if each.key in content
        }

    def _build(self, kind: Any, content: Sequence[Any]) -> Any:  # noqa: ANN401 - a class, and a value of it
        encoded = _list_fields(kind, self._omitted)
        least = sum(each.is_required for each in encoded)
        if not least <= len(content) <= len(encoded):
            raise ValueError(f"{kind.__name__}: {len(content)} fields, expected {least} to {len(encoded)}: {content}")
        pairs = zip(encoded, content, strict=False)
        return kind(**{each.name: self.value_of(each.hint, value) for each, value in pairs})


def _trim_defaults(value: Any, encoded: Sequence[_Field]) -> list[Any]:  # noqa: ANN401 - a dataclass
    """Return the values of the fields up to the last one that is not its default."""
    values = [getattr(value, each.name) for each in encoded]
    while values and values[-1] == encoded[len(values) - 1].default:
        values.pop()
    return values


@cache
def _list_fields(kind: type, omitted: frozenset[str]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    return tuple(
        _Field(
            each.name,
            to_camel(each.name),
            hints[each.name],
            each.default,
            is_required=each.default is MISSING and each.default_factory is MISSING,
        )
        for each in fields(kind)
        if each.init and each.name not in omitted and not _is_callable(hints[each.name])
    )


def _is_callable(hint: Any) -> bool:  # noqa: ANN401 - a type
    return Callable in {get_origin(each) for each in (hint, *get_args(hint))}
