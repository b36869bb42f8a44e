"""Settings of a Pulsar broker, read from its runtime configuration.

Source: `GET /admin/v2/brokers/configuration/runtime` of Pulsar's brokers. It has every key of the broker's file, with
the changes of dynamic configuration. Values are text: a list is `[a, b]`, an unset value is empty or `Optional.empty`.
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
    """Settings of the broker at `url`, of `cluster`. `texts` has the keys known here, in the form of `broker.conf`.

    `load_manager` is the class of its load manager.
    """

    url: str
    cluster: str
    texts: dict[str, str]
    load_manager: str = ""


def web_service(url: str, given_as: str) -> URL:
    """Parse the address of a broker's web service. An invalid one raises `ConfigurationError`, which names
    `given_as`.
    """
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
    """Parse the runtime configuration of the broker at `url`; None if the body is not one."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    known = known_settings(content) if isinstance(content, dict) else {}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in (*_OF_PULSAR, *known)):
        return None
    texts = {key: _format_value(key, text) for key, text in known.items() if text not in _UNSET}
    return BrokerSettings(url, content[_CLUSTER], texts, content[_LOAD_MANAGER])


def _format_value(key: str, text: str) -> str:
    if key not in LISTS:
        return text
    return ",".join(part.strip() for part in text.removeprefix("[").removesuffix("]").split(","))
