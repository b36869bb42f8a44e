"""Requests that the OpenAPI document allows, and others: a node answers as the document says, never with a 500.

So does a process beside a Pulsar.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.background import a_cluster_in_another_thread, in_another_thread
from support.deep import deep_except
from support.nodes import Cluster, lookup_timeout
from support.pulsar_harness import NAMESPACE, Harness, pulsar_harness
from support.tokens import CLOSED, bearer, token_of
from support.waiting import eventually, patience

from loadmanager.http import openapi
from loadmanager.http.messages import EVENTS

Operation = APIOperation[Any, Any, Any, Any]
Names = Mapping[str, Sequence[str]]

DECLARED = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
NO_LISTENER = "has no advertised listener named"
"""Pulsar answers a listener that the owner does not have with 500."""

EXAMPLES = settings().max_examples // 25
"""Number of examples of each operation."""

RANGES = ["0x00000000_0x80000000", "0x80000000_0xffffffff", "0x00000000_0x40000000", "0x40000000_0x80000000"]
"""The two bundles at the start, and those of the first after it was split."""

KNOWN = {
    "cluster": ["standalone"],
    "policy": ["p"],
    "failureDomain": ["d"],
    "group": ["g"],
    "key": ["loadBalancerSheddingEnabled", "loadBalancerBrokerMaxTopics"],
    "value": ["true", "5"],
    "tenant": ["t"],
    "namespace": ["ns"],
    "topic": ["x", "y"],
    "range": RANGES,
    "broker": ["b1:8080", "b2:8080"],
    "brokerId": ["b1:8080", "b2:8080"],
    "bundle": [f"t/ns/{each}" for each in RANGES],
    "destinationBroker": ["b1:8080", "b2:8080"],
}


async def _prepare(cluster: Cluster) -> None:
    node = await cluster.start_leader(namespace_bundle_unloading_timeout_ms=300)
    await cluster.a_broker("b1:8080")
    await cluster.a_broker("b2:8080")
    await cluster.a_namespace("t/ns", bundles={"numBundles": 2})

    async def owned() -> bool:
        return (await node.lookup("persistent://t/ns/x")).status == HTTPStatus.OK

    await eventually(owned)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with lookup_timeout(0.3), a_cluster_in_another_thread(_prepare) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    """A node that asks everybody for a token."""

    async def prepare(cluster: Cluster) -> None:
        await cluster.start_leader(**CLOSED)

    with lookup_timeout(0.3), a_cluster_in_another_thread(prepare) as cluster:
        yield cluster.nodes[0].node.service_url


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    @contextlib.asynccontextmanager
    async def made() -> AsyncIterator[Harness]:
        async with pulsar_harness(tmp_path_factory.mktemp("pulsar"), bundles=2) as harness:
            await harness.leader(move_timeout_ms=300)
            yield harness

    with in_another_thread(made) as harness:
        yield harness


@pytest.mark.parametrize(
    "known", [pytest.param({}, marks=pytest.mark.deep), KNOWN], ids=["any-names", "names-that-exist"]
)
def test_node_answers_as_described(cluster: Cluster, known: Names) -> None:
    _ask_everything(cluster.nodes[0].node.service_url, known)


@pytest.mark.parametrize(
    "token", deep_except({""}, ["", "no.to.ken", token_of("root")]), ids=["nobody", "forged", "root"]
)
def test_node_with_tokens_answers_as_described(closed: str, token: str) -> None:
    _ask_everything(closed, {}, bearer(token) if token else {}, examples=1)


@pytest.mark.parametrize("is_known", deep_except({True}, [False, True]), ids=["any-names", "names-that-exist"])
def test_process_beside_a_pulsar_answers_as_described(harness: Harness, is_known: bool) -> None:  # noqa: FBT001 - a case
    tenant, _, namespace = NAMESPACE.partition("/")
    brokers = [broker.broker_id for broker in harness.pulsar.brokers]
    names: dict[str, Sequence[str]] = {
        **dict.fromkeys(("broker", "brokerId"), brokers),
        "tenant": [tenant],
        "namespace": [namespace],
        "range": RANGES[:2],
        "bundle": [f"{NAMESPACE}/{each}" for each in RANGES[:2]],
    }
    _ask_everything(harness.nodes[0].service_url, {**KNOWN, **names} if is_known else {})


def _ask_everything(url: str, known: Names, headers: Mapping[str, str] | None = None, examples: int = EXAMPLES) -> None:
    request = urllib.request.Request(f"{url}{openapi.PATH}", headers=bearer(token_of("root")))
    with urllib.request.urlopen(request) as answer:
        document = orjson.loads(answer.read())
    _insert_known_names(document, known)
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=url)
    faults = {}
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if _is_stream(document["paths"][operation.path][operation.method]):
            continue  # without an end: it is asked in tests/unit/http/test_fleet_routes.py
        try:
            _ask_in_many_ways(operation, headers or {}, examples)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - all faults are shown together
            faults[operation.label] = error
    assert not faults, "\n\n".join(f"{label}: {error}" for label, error in faults.items())


def _is_stream(described: dict[str, Any]) -> bool:
    return EVENTS in described["responses"].get("200", {}).get("content", {})


def _insert_known_names(document: dict[str, Any], known: Names) -> None:
    """Make the names in paths and queries such that there is something of that name."""
    for path in document["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", []):
                names = known.get(parameter["name"])
                if names is not None:
                    parameter["schema"] = {"type": "string", "enum": names}


def _ask_in_many_ways(operation: Operation, headers: Mapping[str, str], examples: int) -> None:
    """Requests that the document allows, and requests that it does not."""
    for mode in schemathesis.GenerationMode:

        @settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case[Operation]) -> None:
            response = case.call(timeout=patience(), headers=dict(headers))
            checks = [status_code_conformance, content_type_conformance, response_schema_conformance]
            if response.status_code not in DECLARED and NO_LISTENER not in response.text:
                checks.append(not_a_server_error)
            case.validate_response(response, checks=checks)

        with contextlib.suppress(Unsatisfiable):
            ask()
