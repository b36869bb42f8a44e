"""One real Pulsar for all tests here, and what they do to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.pulsar.artifacts import NotPossibleHereError
from examples.pulsar.cluster import PulsarCluster
from examples.pulsar.operations import Operator
from examples.pulsar.skew import RunningLoad, Skew, running_load

MODULAR = ["4.0.1-modular", "4.2.4-modular"]
EXTENSIBLE = ["4.2.4-extensible", "5.0.0-M1-extensible"]


@pytest.fixture(scope="session", params=[*MODULAR, *EXTENSIBLE])
def cluster(request: pytest.FixtureRequest) -> Iterator[PulsarCluster]:
    """Three brokers whose shedding is off; a test leaves them as it found them, in a namespace of its own.

    All tests run on one cluster before the next one starts; `-k 4.2.4-extensible` chooses one.
    """
    version, _, load_manager = request.param.rpartition("-")
    try:
        cluster = PulsarCluster(version=version, extensible=load_manager == "extensible")
    except NotPossibleHereError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture
def operator(cluster: PulsarCluster) -> Iterator[Operator]:
    """Operator whose dynamic settings are removed at the end."""
    operator = Operator(cluster)
    yield operator
    for key in operator.dynamic():
        operator.unset_dynamic(key)


@pytest.fixture(scope="module")
def skew(request: pytest.FixtureRequest) -> Skew:
    """A namespace of the module's own."""
    return Skew(namespace=f"tests/{request.module.__name__.rpartition('.')[2]}")


@pytest.fixture(scope="module")
def load(cluster: PulsarCluster, skew: Skew) -> Iterator[RunningLoad]:
    """Messages flow, most of them at the first broker."""
    with running_load(cluster, skew.prepare(cluster)) as load:
        yield load
