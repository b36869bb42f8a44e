from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.virtual_loop import VirtualLoop

from loadmanager.dev.demo.demo_summary import LeaderFailover
from loadmanager.dev.demo.failover_probe import FailoverProbe
from loadmanager.net.http_client import HttpAnswer, PeerUnavailableError
from loadmanager.util.clock import now_s
from loadmanager.wire.http_bodies import OwnershipAnswer


class LateNode:
    """The HTTP interface of a node that answers lookups from `leads_from_s` on, with owners of `epoch`."""

    def __init__(self, leads_from_s: float, epoch: int) -> None:
        self.leads_from_s = leads_from_s
        self.epoch = epoch
        self.changed: list[str] = []

    async def call(self, method: str, url: str, _: float, **__: object) -> HttpAnswer:
        if "/namespaces/" in url:
            self.changed.append(method)
            return HttpAnswer(url, 204, b"")
        if now_s() < self.leads_from_s:
            raise PeerUnavailableError("no leader")
        owned = OwnershipAnswer(bundle="demo/probe/0x00000000_0x08000000", state="Owned", version=1, epoch=self.epoch)
        return HttpAnswer(url, 200, owned.to_json())


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.end()


async def measure(epoch: int) -> tuple[LeaderFailover | None, list[str]]:
    """A failover after epoch 1 to a leader of this epoch, 30 s later; and the changes of namespaces."""
    killed_at_s = now_s()
    node = LateNode(killed_at_s + 30.0, epoch)
    probe = FailoverProbe(lambda: ["http://node"], node)  # type: ignore[arg-type]  # in place of a client
    await probe.prepare()
    return await probe.measure(1, killed_at_s), node.changed


def test_a_failover_is_measured_though_no_lookup_is_answered_for_a_long_time(loop: VirtualLoop) -> None:
    failover, changed = loop.run(measure(2))
    assert failover is not None
    assert failover.epoch_after == 2
    assert failover.to_next_assignment_s == pytest.approx(30.0, abs=0.6)
    assert changed == ["PUT", "DELETE"]


def test_assignments_of_the_leader_before_are_no_failover(loop: VirtualLoop) -> None:
    failover, changed = loop.run(measure(1))
    assert failover is None
    assert changed == ["PUT", "DELETE"]
