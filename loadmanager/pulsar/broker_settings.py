"""Settings of a Pulsar broker, read from its runtime configuration.

Source: `GET /admin/v2/brokers/configuration/runtime` of Pulsar's brokers: every key of theirs and its value as text, a
list as `[a, b]`, what is not set as an empty text or `Optional.empty`; those of their file, under what dynamic
configuration has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from yarl import URL

from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.decision_settings import LISTS, known_settings

RUNTIME_CONFIGURATION = "/admin/v2/brokers/configuration/runtime"
_CLUSTER = "clusterName"
_LOAD_MANAGER = "loadManagerClassName"
_OF_PULSAR = (_CLUSTER, _LOAD_MANAGER)
_UNSET = ("", "Optional.empty")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of the broker at `url`, of `cluster`: the keys known here, as a `broker.conf` has them.

    `load_manager` is the class of its load manager.
    """

    url: str
    cluster: str
    texts: dict[str, str]
    load_manager: str = ""


def web_service(url: str, given_as: str) -> URL:
    """The address of a broker's web service; `ConfigurationError`, which names the option, for what is none."""
    try:
        parsed = URL(url)
        usable = parsed.scheme in ("http", "https") and parsed.host and parsed == parsed.origin() / ""
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{given_as} {url!r}: expected the web service of a broker, such as http://broker:8080"
        )
    return parsed


def settings_in(body: bytes, url: str) -> BrokerSettings | None:
    """Parse a runtime configuration that the broker at `url` answered with; None for anything else."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    told = known_settings(content) if isinstance(content, dict) else {}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in (*_OF_PULSAR, *told)):
        return None
    texts = {key: _format_value(key, text) for key, text in told.items() if text not in _UNSET}
    return BrokerSettings(url, content[_CLUSTER], texts, content[_LOAD_MANAGER])


def _format_value(key: str, text: str) -> str:
    if key not in LISTS:
        return text
    return ",".join(part.strip() for part in text.removeprefix("[").removesuffix("]").split(","))
