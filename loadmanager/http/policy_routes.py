"""Pulsar's admin paths for isolation policies, failure domains and anti-affinity groups.

An anti-affinity group is sent as bare text, whatever the content type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Generic, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic.alias_generators import to_snake

from loadmanager.core.domain.names import BrokerId, NamespaceName, broker_host
from loadmanager.core.domain.policies import (
    InvalidPolicyError,
    IsolationPolicy,
    PatternMatch,
    Policies,
    UnloadScope,
    Unplaceable,
    find_unplaceable,
    match_names,
    match_policy,
    namespaces_to_unload,
)
from loadmanager.core.domain.settings import NAMING_NAMESPACES
from loadmanager.errors import BadRequestError, ConflictError, NotFoundError, UnloadFailedError
from loadmanager.http.audit_middleware import noting
from loadmanager.http.leader_proxy import Forwarder, LeaderHandlers, unloading_timeout_s
from loadmanager.http.messages import json_response, parse_broker, parse_flag, parse_namespace, parse_value, problem
from loadmanager.http.openapi import BOOLEAN, JSON, Operation, Parameter, administer, read
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.node import Node
from loadmanager.wire.policy_records import (
    FAILURE_DOMAIN,
    ISOLATION_DATA,
    BrokerUnderPolicy,
    FailureDomain,
    IsolationData,
    ShownMatch,
    isolation_policies,
    isolation_policy,
)

_CLUSTER = "/admin/v2/clusters/{cluster}"
_POLICIES = f"{_CLUSTER}/namespaceIsolationPolicies"
_DOMAINS = f"{_CLUSTER}/failureDomains"
_NOT_BROKERS = "{policy:(?!brokers$)[^/]+}"
_MATCHES = "/loadbalance/v1/matches"
_SHOWN_MATCHES = 10

_Data = TypeVar("_Data")


def check_cluster(node: Node, request: web.Request) -> None:
    """Raise `NotFoundError` unless the path names the node's own cluster."""
    own, name = node.live.current.cluster_name, request.match_info["cluster"]
    if name != own:
        raise NotFoundError(f"cluster {name[:80]!r} not found; this one is {own!r}")


def refuse_to_strand(
    mirror: ClusterMirror,
    unplaceable: Iterable[Unplaceable],
    namespaces: Collection[str],
    force: bool,  # noqa: FBT001 - a query parameter
) -> None:
    """Raise `ConflictError` if unloading bundles of these namespaces would leave them without a possible owner."""
    for each in [] if force else unplaceable:
        for namespace in each.namespaces:
            if namespace in namespaces and any(owned.owner for owned in mirror.namespaces[namespace].state.ownerships):
                raise ConflictError(
                    f"{each.sentence}; nothing was changed: force=true unloads their bundles all the same"
                )


@dataclass(frozen=True, slots=True)
class _Kind(Generic[_Data]):
    """A kind of named operator config. `known` returns all by name; `update` stores the result of a change.

    `variable` is the path's variable for the name.
    """

    called: str
    variable: str
    known: Callable[[], Mapping[str, _Data]]
    update: Callable[[Callable[[Mapping[str, _Data]], Mapping[str, _Data]]], Awaitable[object]]

    def get(self, name: str) -> _Data:
        known = self.known()
        self._check(name, known)
        return known[name]

    async def remove(self, request: web.Request, name: str) -> None:
        def without(known: Mapping[str, _Data]) -> Mapping[str, _Data]:
            self._check(name, known)
            return {other: data for other, data in known.items() if other != name}

        await noting(request, self.update, without)

    def _check(self, name: str, known: Mapping[str, _Data]) -> None:
        if name not in known:
            there_are = ", ".join(sorted(known)) or "none"
            raise NotFoundError(f"{self.called} {name[:80]!r} not found; there are: {there_are}")


class PolicyHandlers(LeaderHandlers[Node]):
    """Isolation policies and failure domains: any node reads them, the leader changes them."""

    def __init__(self, node: Node, forwarder: Forwarder) -> None:
        super().__init__(node, forwarder)
        self._isolation: _Kind[IsolationData] = _Kind(
            "isolation policy", "policy", lambda: node.mirror.operator_config.isolation, node.operators.update_isolation
        )
        self._domains: _Kind[FailureDomain] = _Kind(
            "failure domain",
            "failureDomain",
            lambda: node.mirror.operator_config.failure_domains,
            node.operators.update_failure_domains,
        )

    def operations(self) -> list[Operation]:
        matches = read(
            _MATCHES,
            self.list_matches,
            list[ShownMatch],
            Parameter("policy", "this isolation policy"),
            Parameter("failureDomain", "this failure domain"),
            Parameter("setting", f"this setting: {' or '.join(NAMING_NAMESPACES)}"),
            statuses=(200, 400, 404),
        )
        return [*self._of_policies(), *self._of_domains(), matches]

    def _of_policies(self) -> list[Operation]:
        policy, found = f"{_POLICIES}/{_NOT_BROKERS}", (200, 404)
        kind, policies, brokers = self._isolation, dict[str, IsolationData], list[BrokerUnderPolicy]
        return [
            read(_POLICIES, self._list(kind), policies, summary="Return all isolation policies.", statuses=found),
            read(f"{_POLICIES}/brokers", self.list_brokers, brokers, statuses=found),
            read(f"{_POLICIES}/brokers/{{broker}}", self.get_broker, BrokerUnderPolicy, statuses=found),
            read(policy, self._get(kind), IsolationData, summary="Return an isolation policy.", statuses=found),
            administer(
                "POST",
                policy,
                self.set_policy,
                parameters=(Parameter("force", "unload also bundles that no broker may own then", BOOLEAN),),
                body=IsolationData,
                statuses=(204, 404, 409, 504),
            ),
            administer(
                "DELETE", policy, self._delete(kind), summary="Remove an isolation policy.", statuses=(204, 404, 409)
            ),
        ]

    def _of_domains(self) -> list[Operation]:
        domain, found, done = f"{_DOMAINS}/{{failureDomain}}", (200, 404), (204, 404, 409)
        kind, domains = self._domains, dict[str, FailureDomain]
        return [
            read(_DOMAINS, self._list(kind), domains, summary="Return all failure domains.", statuses=found),
            read(domain, self._get(kind), FailureDomain, summary="Return a failure domain.", statuses=found),
            administer("POST", domain, self.set_domain, body=FailureDomain, statuses=done),
            administer("DELETE", domain, self._delete(kind), summary="Remove a failure domain.", statuses=done),
        ]

    def _list(self, kind: _Kind[_Data]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            check_cluster(self._node, request)
            return json_response(dict(sorted(kind.known().items())))

        return handle

    def _get(self, kind: _Kind[_Data]) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            check_cluster(self._node, request)
            return json_response(kind.get(request.match_info[kind.variable]))

        return handle

    def _delete(self, kind: _Kind[_Data]) -> Handler:
        """`DELETE`: 204; nothing is unloaded, and later placements follow the remaining policies."""

        async def handle(request: web.Request) -> web.Response:
            check_cluster(self._node, request)
            name = request.match_info[kind.variable]
            return await self._forwarder.on_leader(request, lambda: kind.remove(request, name))

        return handle

    async def list_brokers(self, request: web.Request) -> web.Response:
        """Return the registered brokers, and the policy that names each."""
        check_cluster(self._node, request)
        policies = self._policies()
        return json_response([_under_policy(broker, policies) for broker in sorted(self._node.mirror.registrations)])

    async def get_broker(self, request: web.Request) -> web.Response:
        """Return the policy that names a registered broker."""
        check_cluster(self._node, request)
        broker = self._node.mirror.get_registration(parse_broker(request)).broker
        return json_response(_under_policy(broker, self._policies()))

    def _policies(self) -> list[IsolationPolicy]:
        return [isolation_policy(name, data) for name, data in sorted(self._isolation.known().items())]

    async def set_policy(self, request: web.Request) -> web.Response:
        """Set an isolation policy, and unload the affected bundles according to its `unload_scope`.

        409 if no broker could own one of these then, unless `force`.
        """
        check_cluster(self._node, request)
        name, force = request.match_info["policy"], parse_flag(request, "force")
        data = await parse_value(request, ISOLATION_DATA)
        policy = _usable(name, data)

        async def act() -> None:
            concerned: list[str] = []

            def put(policies: Mapping[str, IsolationData]) -> Mapping[str, IsolationData]:
                changed = {**policies, name: data}
                usable = _require_usable(changed)
                old = isolation_policy(name, policies[name]) if name in policies else None
                scope = data.get("unload_scope", UnloadScope.CHANGED)
                concerned[:] = namespaces_to_unload(old, policy, scope, sorted(self._node.mirror.namespaces))
                unplaceable = find_unplaceable(
                    Policies(usable), self._node.mirror.registrations, self._node.mirror.namespaces
                )
                refuse_to_strand(self._node.mirror, unplaceable, concerned, force)
                return changed

            await noting(request, self._isolation.update, put)
            for namespace in concerned:
                await self._unload(namespace, name)

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._node.live.current))

    async def _unload(self, namespace: str, policy: str) -> None:
        try:
            await self._node.bundles.unload_namespace(NamespaceName.parse(namespace))
        except UnloadFailedError as error:
            reason = f"isolation policy {policy!r} is stored, but not every bundle of {namespace} was unloaded: {error}"
            raise UnloadFailedError(reason) from None

    async def list_matches(self, request: web.Request) -> web.Response:
        """Return the current matches of an isolation policy, a failure domain, or a setting that names namespaces.

        There is a row per pattern or name, and one for namespaces that no broker may own.
        """
        # Only the leader certainly has the latest change.
        return await self._forwarder.run_on_leader(request, lambda: self._matches(request.query))

    def _matches(self, query: Mapping[str, str]) -> list[ShownMatch]:
        mirror = self._node.mirror
        found: list[PatternMatch] = []
        if "policy" in query:
            policy = isolation_policy(query["policy"], self._isolation.get(query["policy"]))
            found += match_policy(policy, mirror.registrations, mirror.namespaces)
        if "failureDomain" in query:
            brokers = self._domains.get(query["failureDomain"]).get("brokers", [])
            found += match_names("brokers", brokers, mirror.registrations)
        if "setting" in query:
            found += match_names("namespaces", self._named_by(query["setting"]), mirror.namespaces)
        stranded = [
            PatternMatch("no broker", each.policy, each.namespaces, each.sentence) for each in mirror.unplaceable()
        ]
        return [self._shown_match(each) for each in (*found, *stranded)]

    def _named_by(self, key: str) -> list[str]:
        """Return the namespaces that a setting names, sorted."""
        if key not in NAMING_NAMESPACES:
            raise BadRequestError(f"setting {key[:80]!r}: expected {' or '.join(NAMING_NAMESPACES)}")
        return sorted(getattr(self._node.live.current, to_snake(key)))

    def _shown_match(self, found: PatternMatch) -> ShownMatch:
        of_namespaces = [
            self._node.mirror.namespaces[name] for name in found.matches if name in self._node.mirror.namespaces
        ]
        are_namespaces = found.kind in ("namespaces", "no broker")
        return ShownMatch(
            kind=found.kind,
            pattern=found.pattern,
            count=len(found.matches),
            bundles=sum(len(each.state.bundles) for each in of_namespaces) if are_namespaces else None,
            matches=list(found.matches[:_SHOWN_MATCHES]),
            sentence=found.hint,
        )

    async def set_domain(self, request: web.Request) -> web.Response:
        """Set a failure domain; 409 if one of the brokers is in another domain."""
        check_cluster(self._node, request)
        name = request.match_info["failureDomain"]
        domain = await parse_value(request, FAILURE_DOMAIN)

        def put(domains: Mapping[str, FailureDomain]) -> Mapping[str, FailureDomain]:
            for other, brokers in sorted(domains.items()):
                taken = sorted(set(brokers.get("brokers", ())) & set(domain.get("brokers", ())))
                if other != name and taken:
                    raise ConflictError(f"broker {taken[0]} is in failure domain {other!r} already")
            return {**domains, name: domain}

        return await self._forwarder.on_leader(request, lambda: noting(request, self._domains.update, put))


def _usable(name: str, data: IsolationData) -> IsolationPolicy:
    """Validate the policy; raises `BadRequestError` for a bad pattern or an empty list."""
    for key in ("namespaces", "primary"):
        if not data.get(key):
            raise BadRequestError(f"body: {key}: at least one pattern is needed")
    return _require_usable({name: data})[0]


def _require_usable(isolation: Mapping[str, IsolationData]) -> tuple[IsolationPolicy, ...]:
    try:
        return isolation_policies(isolation)
    except InvalidPolicyError as error:
        raise BadRequestError(f"body: {error}") from None


def _under_policy(broker: str, policies: list[IsolationPolicy]) -> BrokerUnderPolicy:
    """Return the first policy by name that names the broker."""
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


_GROUP = "/admin/v2/namespaces/{tenant}/{namespace}/antiAffinity"
_MEMBERS = "/admin/v2/namespaces/{cluster}/antiAffinity/{group}"
_MOST_CHARACTERS = 200


class AntiAffinityHandlers(LeaderHandlers[Node]):
    """Anti-affinity groups: any node reads them, the leader changes them."""

    def operations(self) -> list[Operation]:
        tenant = Parameter("tenant", "of this tenant alone", required=True)
        return [
            read(_MEMBERS, self.members, list[str], tenant, statuses=(200, 400, 404)),
            read(_GROUP, self.get_group, None, statuses=(200, 204, 404, 412), media_type=JSON),
            administer(
                "POST", _GROUP, self.set_group, body=str, body_media_type="text/plain", statuses=(204, 404, 409, 412)
            ),
            administer("DELETE", _GROUP, self.delete_group, statuses=(204, 404, 409, 412)),
        ]

    async def members(self, request: web.Request) -> web.Response:
        """Return the namespaces of an anti-affinity group; the case of its name is ignored."""
        check_cluster(self._node, request)
        tenant = request.query.get("tenant", "")
        if not tenant:
            raise BadRequestError("tenant: is required")
        wanted = request.match_info["group"].strip().lower()
        groups = self._node.mirror.operator_config.anti_affinity
        return json_response(
            sorted(
                name
                for name, group in groups.items()
                if name.startswith(f"{tenant}/") and group.strip().lower() == wanted
            )
        )

    async def get_group(self, request: web.Request) -> web.Response:
        """Return the namespace's anti-affinity group, as bare text despite the JSON content type; 204 without one."""
        group = self._node.mirror.operator_config.anti_affinity.get(self._namespace(request))
        if group is None:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        return web.Response(text=group, content_type="application/json")

    async def set_group(self, request: web.Request) -> web.Response:
        """Set the namespace's anti-affinity group: the body is its name as bare text, without quotes.

        412 for a blank group, as in Pulsar.
        """
        name = self._namespace(request)
        try:
            group = (await request.read()).decode("utf-8").strip()
        except UnicodeDecodeError:
            raise BadRequestError("body: expected the name of a group in UTF-8") from None
        if not group:
            return problem(HTTPStatus.PRECONDITION_FAILED, "body: the name of a group is needed")
        if len(group) > _MOST_CHARACTERS or not group.isprintable():
            raise BadRequestError(f"body: expected up to {_MOST_CHARACTERS} printable characters")
        return await self._change_group(request, name, group)

    async def delete_group(self, request: web.Request) -> web.Response:
        """Remove the namespace from its anti-affinity group."""
        return await self._change_group(request, self._namespace(request), None)

    async def _change_group(self, request: web.Request, name: str, group: str | None) -> web.Response:
        def change(groups: Mapping[str, str]) -> Mapping[str, str]:
            others = {other: known for other, known in groups.items() if other != name}
            return others if group is None else {**others, name: group}

        update = self._node.operators.update_anti_affinity
        return await self._forwarder.on_leader(request, lambda: noting(request, update, change))

    def _namespace(self, request: web.Request) -> str:
        """Return the namespace in the path; raises `NamespaceNotFoundError` if it does not exist."""
        name = str(parse_namespace(request))
        self._node.mirror.get_namespace(name)
        return name
