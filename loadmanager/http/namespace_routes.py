"""Pulsar's admin paths for namespaces and bundles, with splits and merges."""

from __future__ import annotations

import re
from http import HTTPStatus
from itertools import pairwise

from aiohttp import web
from pydantic import ValidationError

from loadmanager.core.domain.bundles import (
    MAX_BUNDLES,
    BoundariesError,
    HashFunction,
    NamespaceBundles,
    equal_boundaries,
)
from loadmanager.core.domain.names import BrokerId, BundleName, BundleRange, InvalidNameError, NamespaceName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.errors import BadRequestError
from loadmanager.http.audit_middleware import note_change
from loadmanager.http.leader_proxy import LeaderHandlers, unloading_timeout_s
from loadmanager.http.messages import (
    json_bytes,
    json_response,
    parse_body,
    parse_bundle,
    parse_flag,
    parse_namespace,
    problem,
)
from loadmanager.http.openapi import BOOLEAN, Operation, Parameter, administer, operate, read
from loadmanager.http.policy_routes import refuse_to_strand
from loadmanager.leader.node import Node
from loadmanager.wire.bundle_bodies import HOT, LARGEST, MergedBundle, MergeRequest, SplitPositions, TopicHashPositions
from loadmanager.wire.http_bodies import NamespaceAnswer, NamespacePolicies
from loadmanager.wire.store_records import BundlesData, parse_boundaries
from loadmanager.wire.validation import describe

_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE = _NAMESPACE + "/{range}"


class AdminHandlers(LeaderHandlers[Node]):
    """Namespaces and bundles: the leader creates, deletes and unloads; any node reads from memory."""

    def operations(self) -> list[Operation]:
        tenant, found, unloaded = "/admin/v2/namespaces/{tenant}", (200, 404, 412), (204, 404, 409, 412, 504)
        destination = Parameter(
            "destinationBroker", "the broker that shall own it next; none: placed at the next lookup"
        )
        force = Parameter("force", "also with open topics, which are closed", BOOLEAN)
        strand = Parameter("force", "also when no broker may own a bundle afterwards", BOOLEAN)
        return [
            read("/admin/v2/tenants", self.list_tenants, list[str]),
            administer("DELETE", _NAMESPACE, self.delete_namespace, parameters=(force,), statuses=unloaded),
            read(tenant, self.list_namespaces, list[str]),
            administer(
                "PUT",
                _NAMESPACE,
                self.create_namespace,
                body=NamespacePolicies,
                body_required=False,
                statuses=(204, 409, 412),
            ),
            read(_NAMESPACE, self.get_policies, NamespaceAnswer, statuses=found),
            read(f"{_NAMESPACE}/bundles", self.get_bundles, BundlesData, statuses=found),
            operate("PUT", f"{_NAMESPACE}/unload", self.unload_namespace, parameters=(strand,), statuses=unloaded),
            operate(
                "PUT", f"{_BUNDLE}/unload", self.unload_bundle, parameters=(destination, strand), statuses=unloaded
            ),
        ]

    async def list_namespaces(self, request: web.Request) -> web.Response:
        """Return the namespaces of a tenant."""
        prefix = f"{request.match_info['tenant']}/"
        return json_response(sorted(name for name in self._node.mirror.namespaces if name.startswith(prefix)))

    async def list_tenants(self, _: web.Request) -> web.Response:
        """Return the tenants that have namespaces."""
        return json_response(sorted({name.partition("/")[0] for name in self._node.mirror.namespaces}))

    async def delete_namespace(self, request: web.Request) -> web.Response:
        """Delete a namespace and all its records; 409 while topics are open, unless `force`.

        503 if an owner does not answer; 504 as for an unload.
        """
        name, force = parse_namespace(request), parse_flag(request, "force")

        async def act() -> None:
            self._node.must_lead()
            before = _to_json(self._bundles_of(request))
            await self._node.deletion.delete(name, force=force)
            note_change(request, before, None)

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._node.live.current))

    async def create_namespace(self, request: web.Request) -> web.Response:
        """Create a namespace; only the bundle settings of Pulsar's policies are used.

        409 if it exists; 400 for an unusable body; 412 for a bad name.
        """
        name = parse_namespace(request)
        bundles = self._wanted_bundles(await request.read())

        async def act() -> None:
            await self._node.bundles.create_namespace(name, bundles)
            note_change(request, None, _to_json(bundles))

        return await self._forwarder.on_leader(request, act)

    def _wanted_bundles(self, body: bytes) -> NamespaceBundles:
        settings = self._node.live.current
        try:
            policies = NamespacePolicies.model_validate_json(body) if body.strip() else NamespacePolicies()
            wanted = policies.bundles
            if wanted is not None and wanted.boundaries:
                boundaries = tuple(sorted(set(parse_boundaries(wanted.boundaries))))
                fitting = {0, len(wanted.boundaries) - 1, len(boundaries) - 1}
                if wanted.num_bundles is not None and wanted.num_bundles not in fitting:
                    raise BadRequestError(
                        f"bundles.numBundles: {wanted.num_bundles} does not fit {len(boundaries)} boundaries"
                    )
            else:
                asked = wanted.num_bundles if wanted is not None else None
                boundaries = equal_boundaries(asked or settings.default_number_of_namespace_bundles)
            if len(boundaries) - 1 > MAX_BUNDLES:
                raise BadRequestError(f"bundles.boundaries: {len(boundaries) - 1} bundles, at most {MAX_BUNDLES} fit")
            return NamespaceBundles(boundaries, policies.hash_function or HashFunction.MURMUR3_32)
        except ValidationError as error:
            raise BadRequestError(describe(error)) from None
        except InvalidNameError as error:
            raise BadRequestError(f"bundles: {error}") from None

    async def get_policies(self, request: web.Request) -> web.Response:
        """Return the policies of a namespace."""
        bundles = self._bundles_of(request)
        return json_response(
            {
                "bundles": BundlesData.of(bundles),
                "hashFunction": bundles.hash_function.value,
                "isAvailable": str(parse_namespace(request)) in self._node.live.current.available_namespaces,
            }
        )

    async def get_bundles(self, request: web.Request) -> web.Response:
        """Return the boundaries of a namespace's bundles."""
        return json_response(BundlesData.of(self._bundles_of(request)))

    def _bundles_of(self, request: web.Request) -> NamespaceBundles:
        return self._node.mirror.get_namespace(str(parse_namespace(request))).state.bundles

    async def unload_namespace(self, request: web.Request) -> web.Response:
        """Release every bundle; 504 if an owner did not do so in time.

        The next lookup places each of them. 409 if no broker could own one then, unless `force`.
        """
        name, force = parse_namespace(request), parse_flag(request, "force")

        async def act() -> None:
            refuse_to_strand(self._node.mirror, self._node.mirror.unplaceable(), {str(name)}, force)
            before = self._owners(name)
            await self._node.bundles.unload_namespace(name)
            note_change(request, before, self._owners(name))

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._node.live.current))

    async def unload_bundle(self, request: web.Request) -> web.Response:
        """Release a bundle, or move it to a broker; 504 if the owner did not release it in time and keeps it.

        412 for a range that is no current bundle, 409 for an unregistered destination, or if no broker could own it
        then, unless `force`.
        """
        name = parse_bundle(request)
        wanted, force = request.query.get("destinationBroker", ""), parse_flag(request, "force")

        async def act() -> web.Response | None:
            self._node.get_term()  # only the leader certainly knows the registered brokers
            destination = self._destination(wanted)
            if wanted and destination is None:
                known = ", ".join(sorted(self._node.mirror.brokers)) or "none"
                return problem(HTTPStatus.CONFLICT, f"destinationBroker {wanted!r} is not registered; known: {known}")
            before = self._owners(name.namespace).get(str(name.range))
            if destination is None and before is not None:
                refuse_to_strand(self._node.mirror, self._node.mirror.unplaceable(), {str(name.namespace)}, force)
            await self._node.bundles.unload(name, destination, OwnershipReason.ADMIN_UNLOAD)
            note_change(request, before, self._owners(name.namespace).get(str(name.range)))
            return None

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._node.live.current))

    def _owners(self, name: NamespaceName) -> dict[str, str]:
        """Return the owner of each owned bundle of a namespace, by its range."""
        state = self._node.mirror.get_namespace(str(name)).state
        return {
            str(state.bundles.range_at(index)): each.owner.broker
            for index, each in enumerate(state.ownerships)
            if each.owner is not None
        }

    def _destination(self, wanted: str) -> Registration | None:
        broker_id = wanted.removeprefix("http://").removeprefix("https://")
        entry = self._node.mirror.brokers.get(BrokerId(broker_id))
        return None if entry is None else entry.registration


def _to_json(bundles: NamespaceBundles) -> dict[str, object]:
    return {"bundles": len(bundles), "hashFunction": bundles.hash_function.value}


_PARTITION = re.compile(r"-partition-[0-9]+$")


class BundleHandlers(LeaderHandlers[Node]):
    """Bundles: the leader splits and merges them; any node asks their owners for topics."""

    def operations(self) -> list[Operation]:
        return [
            operate(
                "PUT",
                f"{_BUNDLE}/split",
                self.split,
                parameters=(
                    Parameter("splitAlgorithmName", "where to cut; none: the configured default"),
                    Parameter("unload", "release the parts, so that the next lookup places each of them", BOOLEAN),
                ),
                body=SplitPositions,
                body_required=False,
                statuses=(204, 404, 409, 412),
            ),
            read(
                f"{_BUNDLE}/topicHashPositions",
                self.topic_hash_positions,
                TopicHashPositions,
                Parameter("topics", "only these; repeatable; a name without its partition stands for all of them"),
                statuses=(200, 404, 412),
            ),
            operate(
                "POST",
                "/loadbalance/v1/bundles/{tenant}/{namespace}/{range}/merge",
                self.merge,
                body=MergeRequest,
                answer=MergedBundle,
                body_required=False,
                statuses=(200, 404, 409, 412),
            ),
        ]

    async def split(self, request: web.Request) -> web.Response:
        """Split a bundle, or the one with the most topics (`LARGEST`) or the highest throughput (`HOT`).

        204 even if there is no place to cut. 412 for a range that is no current bundle or cannot be cut, or an
        unsupported algorithm; 400 for positions that do not ascend; 404 if `LARGEST` or `HOT` finds nothing; 503 if the
        owner does not name its topics.
        """
        namespace, text = parse_namespace(request), request.match_info["range"]
        positions = await parse_positions(request)
        unload = parse_flag(request, "unload")
        algorithm = request.query.get("splitAlgorithmName", "")
        own = None if text in (LARGEST, HOT) else BundleName(namespace, BundleRange.parse(text.lower()))

        async def act() -> web.Response | None:
            name = own or self._node.bundles.find(namespace, text)
            if name is None:
                return problem(HTTPStatus.NOT_FOUND, f"{text}: no bundle of namespace {namespace} carries anything")
            parts = await self._node.bundles.split(name, algorithm=algorithm, positions=positions, unload=unload)
            note_change(request, [str(name)], [str(part) for part in parts] or [str(name)])
            return None

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._node.live.current))

    async def merge(self, request: web.Request) -> web.Response:
        """Merge this bundle with a neighbour of the same owner.

        400 for bundles that are not adjacent, 409 for two owners.
        """
        name = parse_bundle(request)
        wanted = (await parse_body(request, MergeRequest)).with_
        with_ = None if wanted is None else BundleRange.parse(wanted.lower())

        async def act() -> MergedBundle:
            merged = await self._node.bundles.merge(name, with_)
            neighbours = [str(name)] if with_ is None else [str(name), f"{name.namespace}/{with_}"]
            note_change(request, neighbours, [str(merged)])
            return MergedBundle(bundle=str(merged))

        return await self._forwarder.on_leader(request, act, unloading_timeout_s(self._node.live.current))

    async def topic_hash_positions(self, request: web.Request) -> web.Response:
        """Return the hashes of a bundle's topics that its owner has open.

        412 for a range that is no current bundle, or has no owner.
        """
        name = parse_bundle(request)
        topics = await self._node.bundles.get_topics(name)
        if topics is None:
            return problem(HTTPStatus.PRECONDITION_FAILED, f"bundle {name} has no owner that could name its topics")
        wanted = set(request.query.getall("topics", ()))
        positions = {
            each.topic: each.hash
            for each in topics
            if not wanted or each.topic in wanted or _PARTITION.sub("", each.topic) in wanted
        }
        answer = TopicHashPositions(
            namespace=str(name.namespace), bundle=str(name.range), topic_hash_positions=positions
        )
        return json_bytes(answer.to_json())


async def parse_positions(request: web.Request) -> list[int]:
    """Return the body of a split; an empty body, or `null`, means a split without positions."""
    content = (await request.read()).strip()
    if content in (b"", b"null"):
        return []
    try:
        positions = SplitPositions.model_validate_json(content).root
    except ValidationError as error:
        raise BadRequestError(f"body: {describe(error)}") from None
    if any(left >= right for left, right in pairwise(positions)):
        raise BoundariesError("body: expected split positions that ascend, each of them once")
    return positions
