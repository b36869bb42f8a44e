"""Pulsar's admin paths for isolation policies and failure domains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from loadmanager.core.names import BrokerId, NamespaceName, broker_host
from loadmanager.core.policies import UNLOAD_CHANGED, InvalidPolicyError, IsolationPolicy, namespaces_to_unload
from loadmanager.errors import BadRequestError, ConflictError, LoadManagerError, NotFoundError, UnloadFailedError
from loadmanager.http.bodies import value_of
from loadmanager.http.forwarding import Forwarder
from loadmanager.http.openapi import Operation
from loadmanager.http.responses import json_response
from loadmanager.leader.service import Node
from loadmanager.wire.policies import (
    FAILURE_DOMAIN,
    ISOLATION_DATA,
    BrokerUnderPolicy,
    FailureDomain,
    IsolationData,
    isolation_policy,
)

_CLUSTER = "/admin/v2/clusters/{cluster}"
_POLICIES = f"{_CLUSTER}/namespaceIsolationPolicies"
_DOMAINS = f"{_CLUSTER}/failureDomains"
_NOT_BROKERS = "{policy:(?!brokers$)[^/]+}"
_MARGIN_S = 5.0

_Data = TypeVar("_Data")


def check_cluster(node: Node, request: web.Request) -> None:
    """`NotFoundError` unless the path names the cluster of this node."""
    name, own = request.match_info["cluster"], node.settings.cluster_name
    if name != own:
        raise NotFoundError(f"cluster {name[:80]!r} not found; this one is {own!r}")


class PolicyHandlers:
    """Any node tells what is laid down; the leader changes it."""

    def __init__(self, node: Node, forwarder: Forwarder) -> None:
        self._node = node
        self._forwarder = forwarder

    def operations(self) -> list[Operation]:
        policy, domain = f"{_POLICIES}/{_NOT_BROKERS}", f"{_DOMAINS}/{{failureDomain}}"
        found, done = (200, 404), (204, 404, 409)
        policies, domains = dict[str, IsolationData], dict[str, FailureDomain]
        set_policy = "set an isolation policy, and unload what it concerns by its unload_scope"
        brokers = list[BrokerUnderPolicy]
        return [
            Operation(
                "GET", _POLICIES, "all isolation policies", self.list_policies, response_model=policies, statuses=found
            ),
            Operation(
                "GET",
                f"{_POLICIES}/brokers",
                "the registered brokers, and the policy that names each",
                self.list_brokers,
                response_model=brokers,
                statuses=found,
            ),
            Operation(
                "GET",
                f"{_POLICIES}/brokers/{{broker}}",
                "the policy that names a registered broker",
                self.get_broker,
                response_model=BrokerUnderPolicy,
                statuses=found,
            ),
            Operation(
                "GET", policy, "an isolation policy", self.get_policy, response_model=IsolationData, statuses=found
            ),
            Operation(
                "POST", policy, set_policy, self.set_policy, body_model=IsolationData, statuses=(204, 404, 409, 504)
            ),
            Operation("DELETE", policy, "remove an isolation policy", self.delete_policy, statuses=done),
            Operation(
                "GET", _DOMAINS, "all failure domains", self.list_domains, response_model=domains, statuses=found
            ),
            Operation("GET", domain, "a failure domain", self.get_domain, response_model=FailureDomain, statuses=found),
            Operation(
                "POST",
                domain,
                "set the brokers of a failure domain; each broker is in one at most",
                self.set_domain,
                body_model=FailureDomain,
                statuses=done,
            ),
            Operation("DELETE", domain, "remove a failure domain", self.delete_domain, statuses=done),
        ]

    async def list_policies(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        return json_response(dict(sorted(self._node.view.laid_down.isolation.items())))

    async def get_policy(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        name = request.match_info["policy"]
        return json_response(_get("isolation policy", name, self._node.view.laid_down.isolation))

    async def list_brokers(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        policies = self._policies()
        return json_response([_under_policy(broker, policies) for broker in sorted(self._node.view.registrations)])

    async def get_broker(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        broker = self._node.view.get_registration(BrokerId(request.match_info["broker"])).broker
        return json_response(_under_policy(broker, self._policies()))

    def _policies(self) -> list[IsolationPolicy]:
        return [isolation_policy(name, data) for name, data in sorted(self._node.view.laid_down.isolation.items())]

    async def set_policy(self, request: web.Request) -> web.Response:
        """`POST`: 204 once it is stored and the bundles of the namespaces it concerns are unloaded."""
        check_cluster(self._node, request)
        name = request.match_info["policy"]
        data = await value_of(request, ISOLATION_DATA)
        policy = _usable(name, data)

        async def act() -> web.Response:
            replaced: list[IsolationData | None] = []

            def put(policies: Mapping[str, IsolationData]) -> Mapping[str, IsolationData]:
                replaced.append(policies.get(name))
                return {**policies, name: data}

            await self._node.operators.update_isolation(put)
            old = None if replaced[-1] is None else isolation_policy(name, replaced[-1])
            scope = data.get("unload_scope", UNLOAD_CHANGED)
            for namespace in namespaces_to_unload(old, policy, scope, sorted(self._node.view.namespaces)):
                await self._unload(namespace, name)
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._on_leader(
            request, act, self._node.live.current.namespace_bundle_unloading_timeout_ms / 1000 + _MARGIN_S
        )

    async def _unload(self, namespace: str, policy: str) -> None:
        try:
            await self._node.unload_namespace(NamespaceName.parse(namespace))
        except UnloadFailedError as error:
            said = f"isolation policy {policy!r} is stored, but not every bundle of {namespace} was unloaded: {error}"
            raise UnloadFailedError(said) from None

    async def delete_policy(self, request: web.Request) -> web.Response:
        """`DELETE`: 204; nothing is unloaded, and what is placed next goes anywhere."""
        check_cluster(self._node, request)
        name = request.match_info["policy"]

        async def act() -> web.Response:
            await self._node.operators.update_isolation(lambda policies: _without("isolation policy", name, policies))
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._on_leader(request, act)

    async def list_domains(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        return json_response(dict(sorted(self._node.view.laid_down.failure_domains.items())))

    async def get_domain(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        name = request.match_info["failureDomain"]
        return json_response(_get("failure domain", name, self._node.view.laid_down.failure_domains))

    async def set_domain(self, request: web.Request) -> web.Response:
        """`POST`: 204; 409 when one of the brokers is in another domain."""
        check_cluster(self._node, request)
        name = request.match_info["failureDomain"]
        domain = await value_of(request, FAILURE_DOMAIN)

        def put(domains: Mapping[str, FailureDomain]) -> Mapping[str, FailureDomain]:
            for other, brokers in sorted(domains.items()):
                taken = sorted(set(brokers.get("brokers", ())) & set(domain.get("brokers", ())))
                if other != name and taken:
                    raise ConflictError(f"broker {taken[0]} is in failure domain {other!r} already")
            return {**domains, name: domain}

        async def act() -> web.Response:
            await self._node.operators.update_failure_domains(put)
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._on_leader(request, act)

    async def delete_domain(self, request: web.Request) -> web.Response:
        check_cluster(self._node, request)
        name = request.match_info["failureDomain"]

        async def act() -> web.Response:
            await self._node.operators.update_failure_domains(lambda domains: _without("failure domain", name, domains))
            return web.Response(status=HTTPStatus.NO_CONTENT)

        return await self._on_leader(request, act)

    async def _on_leader(
        self, request: web.Request, act: Callable[[], Awaitable[web.Response]], timeout_s: float = 0.0
    ) -> web.Response:
        shortest_s = self._node.settings.lookup_timeout_ms / 1000 + _MARGIN_S
        return await self._forwarder.on_leader(request, act, max(timeout_s, shortest_s))


def _usable(name: str, data: IsolationData) -> IsolationPolicy:
    """The policy; `BadRequestError` names the pattern that cannot be used, or the list that must not be empty."""
    for key in ("namespaces", "primary"):
        if not data.get(key):
            raise BadRequestError(f"body: {key}: at least one pattern is needed")
    try:
        return isolation_policy(name, data)
    except InvalidPolicyError as error:
        raise BadRequestError(f"body: {error}") from None


def _under_policy(broker: str, policies: list[IsolationPolicy]) -> BrokerUnderPolicy:
    """The first policy by name that names the broker."""
    host = broker_host(BrokerId(broker))
    for policy in policies:
        if policy.has_primary(host) or policy.has_secondary(host):
            return BrokerUnderPolicy(
                brokerName=broker,
                policyName=policy.name,
                primary=policy.has_primary(host),
                namespaceRegex=list(policy.namespaces),
            )
    return BrokerUnderPolicy(brokerName=broker, primary=False)


def _get(kind: str, name: str, known: Mapping[str, _Data]) -> _Data:
    if name not in known:
        raise _not_found(kind, name, known)
    return known[name]


def _without(kind: str, name: str, known: Mapping[str, _Data]) -> Mapping[str, _Data]:
    if name not in known:
        raise _not_found(kind, name, known)
    return {other: data for other, data in known.items() if other != name}


def _not_found(kind: str, name: str, known: Mapping[str, object]) -> LoadManagerError:
    return NotFoundError(f"{kind} {name[:80]!r} not found; there are: {', '.join(sorted(known)) or 'none'}")
