"""Owner of a topic, in a client's view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from loadmanager.errors import InvalidRecordError

_ADDRESSES = {
    "broker_url": "brokerUrl",
    "broker_url_tls": "brokerUrlTls",
    "http_url": "httpUrl",
    "http_url_tls": "httpUrlTls",
}


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker to go to, and where it listens; None for what it does not offer."""

    broker_id: str
    broker_url: str | None = None
    broker_url_tls: str | None = None
    http_url: str | None = None
    http_url_tls: str | None = None

    @classmethod
    def of_json(cls, fields: object, where: str) -> Self:
        """Parse Pulsar's LookupData; raises `InvalidRecordError`, which names its origin `where`."""
        broker_id = text_of(fields, "brokerId", where)
        if broker_id is None:
            raise InvalidRecordError(f"{where}: brokerId: missing")
        return cls(broker_id, **{name: text_of(fields, key, where) for name, key in _ADDRESSES.items()})


def text_of(fields: object, key: str, where: str) -> str | None:
    """A text of a JSON object, None where it has none; `InvalidRecordError` when either is something else."""
    value = object_of(fields, where).get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidRecordError(f"{where}: {key}: expected a text")
    return value


def object_of(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRecordError(f"{where}: expected a JSON object")
    return value
