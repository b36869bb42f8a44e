"""Settings of a Pulsar broker, read from its runtime configuration; a decision then needs no `--set`.

Source: `GET /admin/v2/brokers/configuration/runtime` of Pulsar's brokers: every key of theirs and its value as text, a
list as `[a, b]`, what is not set as an empty text or `Optional.empty`; those of their file, under what dynamic
configuration has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from yarl import URL

from loadmanager.errors import ConfigurationError, InvalidRecordError, LoadManagerError
from loadmanager.lab.decide.decision_settings import LISTS, known_settings
from loadmanager.net.http_client import NOBODY, Caller, HttpAnswer, HttpClient, PeerUnavailableError

RUNTIME_CONFIGURATION = "/admin/v2/brokers/configuration/runtime"
_TIMEOUT_S = 10.0
_CLUSTER = "clusterName"
_LOAD_MANAGER = "loadManagerClassName"
_OF_PULSAR = (_CLUSTER, _LOAD_MANAGER)
_UNSET = ("", "Optional.empty")
_EXPECTED = "give the web service of a Pulsar broker, such as http://broker:8080"
_REFUSED = (
    "the broker wants credentials: give a token that may read its configuration with --token-file; or leave --admin-url"
    " out, and give `decide` with --set what differs from the defaults"
)


class BrokerSettingsError(LoadManagerError):
    """No settings could be had from a broker; the message names the address, what came, and what to do."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of the broker at `url`, of `cluster`: the keys known here, as a `broker.conf` has them.

    `load_manager` is the class of its load manager.
    """

    url: str
    cluster: str
    texts: dict[str, str]
    load_manager: str = ""


async def fetch_settings(url: str, timeout_s: float = _TIMEOUT_S, caller: Caller = NOBODY) -> BrokerSettings:
    """Ask the broker whose web service is at `url`, on behalf of the caller.

    Raises `ConfigurationError` for what is no such URL, and `BrokerSettingsError`.
    """
    asked = web_service(url, "--admin-url").with_path(RUNTIME_CONFIGURATION)
    try:
        async with HttpClient(1, caller) as http:
            answer = await http.call("GET", asked, timeout_s)
    except PeerUnavailableError as error:
        raise BrokerSettingsError(f"--admin-url: {error}: {_EXPECTED}, that is running") from None
    except InvalidRecordError as error:
        raise BrokerSettingsError(f"--admin-url: {error}: {_EXPECTED}") from None
    remedy = _find_remedy(answer)
    if remedy is not None:
        raise BrokerSettingsError(f"--admin-url: {answer.shown()}: {remedy}")
    told = settings_in(answer.body, url)
    if told is None:
        raise BrokerSettingsError(f"--admin-url: {answer.shown()}: no settings of a Pulsar broker: {_EXPECTED}")
    return told


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


def _find_remedy(answer: HttpAnswer) -> str | None:
    """Return the remedy for an unusable answer, None for a usable one."""
    if answer.status == 200:  # noqa: PLR2004
        return None
    if answer.status in (401, 403):
        return _REFUSED
    if 300 <= answer.status < 400:  # noqa: PLR2004
        return f"it sends elsewhere, to {answer.headers.get('Location', '')[:200]!r}, and nobody follows: {_EXPECTED}"
    if answer.status >= 500:  # noqa: PLR2004
        return "it cannot answer now: try again, or another broker"
    return _EXPECTED


def settings_in(body: bytes, url: str) -> BrokerSettings | None:
    """Parse a runtime configuration that the broker at `url` answered with; None for anything else."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    told = known_settings(content) if isinstance(content, dict) else {}
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in (*_OF_PULSAR, *told)):
        return None
    texts = {key: _as_written(key, text) for key, text in told.items() if text not in _UNSET}
    return BrokerSettings(url, content[_CLUSTER], texts, content[_LOAD_MANAGER])


def _as_written(key: str, text: str) -> str:
    if key not in LISTS:
        return text
    return ",".join(part.strip() for part in text.removeprefix("[").removesuffix("]").split(","))
