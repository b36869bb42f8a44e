"""Client of Pulsar's REST API with one method per request; `rest_call.py` sends the requests.

Each method raises `PulsarRefusedError` or `PulsarUnreachableError` (`rest_call.py`). Source: the admin and lookup REST
API of Pulsar 4.0. `topic_in` makes a topic name whose hash lies in a bundle, for lookups of the bundle.

Under the modular load manager the answer to an unload only means that the owner has released the bundle. Pulsar's
leader keeps the destination in memory until the next lookup of the bundle. So a lookup and a check of the owner must
follow each unload.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import orjson
from yarl import URL

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.outgoing_token import TokenFile
from loadmanager.net.http_client import HttpAnswer
from loadmanager.net.tls_contexts import TlsOptions
from loadmanager.pulsar import rest_answers
from loadmanager.pulsar.broker_settings import RUNTIME_CONFIGURATION, BrokerSettings, settings_in
from loadmanager.pulsar.rest_call import PulsarCalls, PulsarRefusedError, RestRequest, not_a_pulsar, web_service
from loadmanager.wire.policy_records import FailureDomain, IsolationData

_ADMIN = "/admin/v2"
_BROKERS = f"{_ADMIN}/brokers"
_CONFIGURATION = f"{_BROKERS}/configuration"
_STATS = f"{_ADMIN}/broker-stats"
_NAMESPACES = f"{_ADMIN}/namespaces"
_CLUSTERS = f"{_ADMIN}/clusters"
_NOT_FOUND = 404
_NO_TLS = TlsOptions()


class PulsarAdmin:
    """Client of one Pulsar; asks the first of `urls` that answers. Create it in a running event loop, and close it or
    use it with `async with`.

    Raises `ConfigurationError` for unusable addresses, token files or TLS keys. `timeout_s` limits one answer; each
    redirect restarts it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token_file: Path | None = None,
        tls: TlsOptions = _NO_TLS,
        timeout_s: float = 10.0,
        suffixes: Sequence[str] = (),
    ) -> None:
        token = None if token_file is None else TokenFile(token_file)
        self._calls = PulsarCalls(urls, token, tls, timeout_s, suffixes)

    async def close(self) -> None:
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def trust(self, brokers: Iterable[BrokerId]) -> None:
        """Set the registered brokers, to which redirects are followed."""
        self._calls.trust(map(self.address, brokers))

    def address(self, broker: BrokerId) -> str:
        """Return the URL of a broker's web service. http: its id; https: its host with the port of the first URL."""
        return self._calls.address(broker)

    # Reads

    async def settings(self, url: str) -> BrokerSettings:
        """Return the settings of the broker at `url`, dynamic configuration included."""
        answer = await self._calls.ask_at(_web(url), RestRequest("GET", RUNTIME_CONFIGURATION))
        settings = settings_in(answer.body, url)
        if settings is None:
            raise not_a_pulsar(answer)
        return settings

    async def version(self, url: str) -> str:
        answer = await self._calls.ask_at(_web(url), RestRequest("GET", f"{_BROKERS}/version"))
        return answer.body[:100].decode("utf-8", errors="replace").strip().strip('"')

    async def brokers(self) -> list[BrokerId]:
        """Return the registered brokers, sorted."""
        return [BrokerId(name) for name in rest_answers.names_in(*await self._get(_BROKERS))]

    async def leader(self) -> BrokerId | None:
        """Return Pulsar's leader, None without one."""
        answer = await self._find(f"{_BROKERS}/leaderBroker")
        if answer is None:
            return None
        found = _texts(answer)
        leader = found.get("brokerId") or found.get("serviceUrl", "").partition("://")[2]
        if not leader:
            raise not_a_pulsar(answer)
        return BrokerId(leader)

    async def dynamic(self) -> dict[str, str]:
        """Return the values of dynamic configuration by key."""
        return _texts(await self._calls.ask(RestRequest("GET", f"{_CONFIGURATION}/values")))

    async def load_report(self, broker: BrokerId) -> rest_answers.Record:
        """Return the load report of a broker under the modular load manager."""
        return rest_answers.modular_report(*await self._get(f"{_STATS}/load-report", broker))

    async def usage(self, broker: BrokerId) -> bytes:
        """Return the metrics of a broker, which include its usage under the extensible load manager."""
        return (await self._get(f"{_STATS}/metrics", broker))[0]

    async def bundle_loads(self, broker: BrokerId) -> dict[str, rest_answers.Record]:
        """Return the load of each bundle that has topics on a broker."""
        return rest_answers.bundle_loads(*await self._get(f"{_STATS}/topics", broker))

    async def owned(self, cluster: str, broker: BrokerId) -> list[str]:
        """Return the bundles that a broker owns."""
        path = f"{_BROKERS}/{cluster}/{_quote(broker)}/ownedNamespaces"
        return rest_answers.owned_bundles(*await self._get(path, broker))

    async def namespaces(self) -> list[str]:
        """Return the namespaces of all tenants."""
        tenants = rest_answers.names_in(*await self._get(f"{_ADMIN}/tenants"))
        found = [rest_answers.names_in(*await self._get(f"{_NAMESPACES}/{tenant}")) for tenant in tenants]
        return [name for names in found for name in names]

    async def bundles(self, namespace: str) -> NamespaceBundles | None:
        """Return the bundles of a namespace; None if it does not exist."""
        answer = await self._find(f"{_NAMESPACES}/{namespace}/bundles")
        return None if answer is None else rest_answers.bundles_in(answer.body, answer.url)

    async def group(self, namespace: str) -> str | None:
        """Return the anti-affinity group of a namespace, None without one."""
        answer = await self._find(f"{_NAMESPACES}/{namespace}/antiAffinity")
        return None if answer is None else rest_answers.group_in(answer.body, answer.url)

    async def isolation(self, cluster: str) -> dict[str, IsolationData]:
        """Return the isolation policies of the cluster by name. Pulsar answers 404 before the first one is created."""
        answer = await self._find(f"{_CLUSTERS}/{cluster}/namespaceIsolationPolicies")
        return {} if answer is None else rest_answers.isolation_in(answer.body, answer.url)

    async def domains(self, cluster: str) -> dict[str, FailureDomain]:
        """Return the failure domains of the cluster, by name."""
        return rest_answers.domains_in(*await self._get(f"{_CLUSTERS}/{cluster}/failureDomains"))

    async def _get(self, path: str, broker: BrokerId | None = None) -> tuple[bytes, str]:
        """Return the answer of `broker`, or of any broker, and its URL."""
        request = RestRequest("GET", path)
        calls = self._calls
        answer = await (calls.ask(request) if broker is None else calls.ask_at(_web(self.address(broker)), request))
        return answer.body, answer.url

    async def _find(self, path: str) -> HttpAnswer | None:
        try:
            return await self._calls.ask(RestRequest("GET", path))
        except PulsarRefusedError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    # Changes

    async def unload(
        self, bundle: BundleName, destination: BrokerId | None = None, timeout_s: float | None = None
    ) -> None:
        """Have the owner release a bundle, and Pulsar's leader note the destination.

        A bundle without an owner gets none, but the leader still notes the destination. 409: the destination is not
        registered. 412: the range is no bundle, or there is no leader. 404: the leader is not registered.
        """
        wanted: dict[str, str] = {} if destination is None else {"destinationBroker": destination}
        await self._calls.ask(_bundle_request(bundle, "unload", wanted), timeout_s)

    async def split(
        self,
        bundle: BundleName,
        *,
        algorithm: str | None = None,
        positions: Sequence[int] = (),
        unload: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Split a bundle by `algorithm`, or by the brokers' default. `unload` also unloads the parts.

        `positions` are for `specified_positions_divide`. Pulsar reports no error if the bundle cannot be split.
        """
        wanted = {"unload": str(unload).lower()} | ({"splitAlgorithmName": algorithm} if algorithm else {})
        body = orjson.dumps(list(positions)) if positions else b""
        await self._calls.ask(_bundle_request(bundle, "split", wanted, body), timeout_s)

    async def look_up(self, bundle: BundleName, timeout_s: float | None = None) -> BrokerId | None:
        """Look a topic of the bundle up and return the owner. Pulsar places the bundle first if nobody owns it.

        The lookup creates no topic. If automatic creation is off, Pulsar answers 404 for a persistent topic that does
        not exist. Then a non-persistent topic is looked up. It comes second: after it the leader prefers brokers with
        non-persistent topics for the bundle.
        """
        try:
            answer = await self._calls.ask(_lookup(bundle, "persistent"), timeout_s)
        except PulsarRefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            answer = await self._calls.ask(_lookup(bundle, "non-persistent"), timeout_s)
        found = _content(answer)
        url = (found.get("httpUrl") or found.get("httpUrlTls")) if isinstance(found, dict) else None
        try:
            return BrokerId(urlsplit(url).netloc) if isinstance(url, str) else None
        except ValueError:
            raise not_a_pulsar(answer) from None

    async def set_dynamic(self, key: str, value: str) -> None:
        """Set a key on all brokers. 412: the key needs a restart. Pulsar ignores an invalid value."""
        await self._calls.ask(RestRequest("POST", f"{_CONFIGURATION}/{_quote(key)}/{_quote(value)}"))

    async def delete_dynamic(self, key: str) -> None:
        """Remove a key, so that brokers use their own files again."""
        await self._calls.ask(RestRequest("DELETE", f"{_CONFIGURATION}/{_quote(key)}"))


def _web(url: str) -> URL:
    """Parse the web service URL that a broker has registered, which may be invalid."""
    try:
        return web_service(url, "the web service of a broker")
    except ConfigurationError as error:
        raise PulsarRefusedError(str(error), 0) from None


def _bundle_request(bundle: BundleName, verb: str, query: dict[str, str], body: bytes = b"") -> RestRequest:
    """Return the request. Like Pulsar's own clients it percent-encodes `:`, which Pulsar's redirects keep."""
    path = f"{_ADMIN}/namespaces/{bundle.namespace}/{bundle.range}/{verb}"
    return RestRequest("PUT", f"{path}?{urlencode(query)}" if query else path, body)


def _lookup(bundle: BundleName, domain: str) -> RestRequest:
    return RestRequest("GET", f"/lookup/v2/topic/{domain}/{bundle.namespace}/{topic_in(bundle, domain)}")


def _quote(text: str) -> str:
    return quote(text, safe="")


def _texts(answer: HttpAnswer) -> dict[str, str]:
    """Return the answer as an object whose values are strings."""
    content = _content(answer)
    if not isinstance(content, dict) or not all(isinstance(each, str) for each in content.values()):
        raise not_a_pulsar(answer)
    return content


def _content(answer: HttpAnswer) -> Any:  # noqa: ANN401 - whatever came
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        raise not_a_pulsar(answer) from None


_DIGITS = 32
_PREFIX = "loadmanager-lookup-"


def topic_in(bundle: BundleName, domain: str) -> str:
    """Return the local name of a topic of `domain` (`persistent`, `non-persistent`) whose hash is in the bundle.

    A lookup needs one, and only the owner knows the real topics. Pulsar hashes topics with CRC-32, which is linear:
    each bit of a name contributes to the hash independently. So the name, 32 digits `0` and `1`, is computed by
    Gaussian elimination instead of a search. Each digit contributes a power of x^8 modulo the polynomial of CRC-32.
    That polynomial is irreducible, so the 32 contributions are independent, and every hash has a name.
    """
    start = f"{domain}://{bundle.namespace}/{_PREFIX}"
    plain = _hash(start, 0)
    digits = _solve([_hash(start, 1 << bit) ^ plain for bit in range(_DIGITS)], plain ^ bundle.range.lower)
    return f"{_PREFIX}{digits:0{_DIGITS}b}"


def _hash(start: str, digits: int) -> int:
    return zlib.crc32(f"{start}{digits:0{_DIGITS}b}".encode())


def _solve(contributions: list[int], wanted: int) -> int:
    """Return the digits, as bits, whose contributions sum to `wanted`: Gaussian elimination over XOR."""
    by_highest_bit: dict[int, tuple[int, int]] = {}
    for number, contribution in enumerate(contributions):
        rest, digits = _reduce(contribution, 1 << number, by_highest_bit)
        by_highest_bit[rest.bit_length()] = (rest, digits)
    return _reduce(wanted, 0, by_highest_bit)[1]


def _reduce(rest: int, digits: int, by_highest_bit: dict[int, tuple[int, int]]) -> tuple[int, int]:
    while rest and rest.bit_length() in by_highest_bit:
        known, its_digits = by_highest_bit[rest.bit_length()]
        rest, digits = rest ^ known, digits ^ its_digits
    return rest, digits
