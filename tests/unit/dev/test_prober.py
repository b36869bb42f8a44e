from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from support.virtual_loop import VirtualLoop

from loadmanager.dev.demo.demo_summary import LeaderFailover
from loadmanager.dev.demo.prober import BUNDLES, AssignmentProber, topic_per_bundle
from loadmanager.net.http_client import HttpAnswer, PeerUnavailableError
from loadmanager.util.clock import now_s
from loadmanager.wire.http_bodies import OwnershipAnswer

OWNED_BY_THE_NEXT = OwnershipAnswer(bundle="demo/probe/0x00000000_0x08000000", state="Owned", version=1, epoch=2)


class LateNode:
    """The HTTP interface of a node that answers lookups from `leads_from_s` on."""

    leads_from_s = 0.0

    async def call(self, _: str, url: str, __: float) -> HttpAnswer:
        if now_s() < self.leads_from_s:
            raise PeerUnavailableError("no leader")
        return HttpAnswer(url, 200, OWNED_BY_THE_NEXT.to_json())


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.end()


def test_a_failover_is_measured_though_no_lookup_is_answered_for_a_long_time(loop: VirtualLoop) -> None:
    async def measure() -> LeaderFailover | None:
        node, killed_at_s = LateNode(), now_s()
        node.leads_from_s = killed_at_s + 30.0
        prober = AssignmentProber(lambda: ["http://node"], node)  # type: ignore[arg-type]  # in place of a client
        prober._fresh.extend(topic_per_bundle("probe", BUNDLES))
        return await prober.measure_failover(1, killed_at_s)

    failover = loop.run(measure())
    assert failover is not None
    assert failover.epoch_after == 2
    assert failover.to_next_assignment_s == pytest.approx(30.0, abs=0.1)


class CountingNode:
    """A node that counts the namespaces that exist."""

    def __init__(self) -> None:
        self.namespaces: set[str] = set()
        self.most = 0

    async def call(self, method: str, url: str, _: float, **__: object) -> HttpAnswer:
        if "/namespaces/" not in url:
            return HttpAnswer(url, 200, OWNED_BY_THE_NEXT.to_json())
        change = self.namespaces.add if method == "PUT" else self.namespaces.remove
        change(url)
        self.most = max(self.most, len(self.namespaces))
        return HttpAnswer(url, 204, b"")


def test_used_up_namespaces_are_deleted(loop: VirtualLoop) -> None:
    node = CountingNode()
    prober = AssignmentProber(lambda: ["http://node"], node)  # type: ignore[arg-type]  # in place of a client

    async def probe() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(300):
                await prober.run()

    loop.run(probe())
    assert prober.assignments > 10 * BUNDLES
    assert (len(node.namespaces), node.most) == (3, 4)
