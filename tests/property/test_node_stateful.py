"""Whole nodes against brokers that answer as they like, operators who do as they like, and misfortune: any order of it.

It runs in virtual time and draws every delay from a seed, so an example that fails fails again. It is not made
smaller: that takes minutes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.fickle_broker import Manner
from support.fickle_fleet import BROKERS, BUNDLES, FickleFleet
from support.virtual_loop import VirtualLoop

pytestmark = pytest.mark.timeout(900)
"""An example takes up to five seconds of CPU: a crowded machine must not look like a fault."""

_NODE = st.integers(0, 1)
_BROKER = st.integers(0, BROKERS - 1)
_BUNDLE = st.integers(0, 5)
_TOPIC = st.integers(0, 3)
_THEN_S = st.sampled_from([0.0, 0.01, 0.3, 1.2])
"""What passes before the next step: nothing, so that both arrive together, or enough for most things to end."""
_FOR_S = st.sampled_from([0.5, 4.0, 15.0])
"""How long a misfortune lasts: unnoticed, longer than a call, longer than a session."""


class NodesAndBrokers(RuleBasedStateMachine):
    """Operations begun in one step may still be open many steps later."""

    @initialize(
        seed=st.integers(0, 2**16),
        slowness_s=st.sampled_from([0.0, 0.05, 0.6]),
        manners=st.tuples(*[st.sampled_from(Manner)] * BROKERS),
    )
    def begin(self, seed: int, slowness_s: float, manners: tuple[Manner, ...]) -> None:
        self.is_sound = True
        self.stack = AsyncExitStack()
        self.fleet = FickleFleet(seed, slowness_s)
        self.loop = VirtualLoop(self.fleet.delay_s)
        self._run(lambda: self.fleet.start(self.stack))
        for broker, manner in zip(self.fleet.brokers, manners, strict=True):
            broker.manner = manner
        self.look_everything_up(0, 1.2)

    def _run(self, step: Callable[[], Any], then_s: float = 0.0) -> None:
        async def go() -> None:
            outcome = step()
            if inspect.isawaitable(outcome):
                await outcome
            await asyncio.sleep(then_s)
            self.fleet.check()

        self.is_sound = False
        self.loop.run(go())
        self.is_sound = True

    def _ask(self, node: int, method: str, path: str, then_s: float, body: object = None) -> None:
        self._run(lambda: self.fleet.ask(node, method, path, body), then_s)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            if self.is_sound:
                self._run(self.fleet.settles)
        finally:
            self._end()

    def _end(self) -> None:
        if not self.is_sound:
            self.loop.run(self.fleet.crash())
        self.loop.run(self.stack.aclose())
        self.loop.end()

    # Clients and operators

    @rule(node=_NODE, topic=_TOPIC, then_s=_THEN_S)
    def look_up(self, node: int, topic: int, then_s: float) -> None:
        self._run(lambda: self.fleet.look_up(node, topic), then_s)

    @rule(node=_NODE, then_s=_THEN_S)
    def look_everything_up(self, node: int, then_s: float) -> None:
        self._run(lambda: self.fleet.look_up(node), then_s)

    @rule(node=_NODE, bundle=_BUNDLE, then_s=_THEN_S)
    def unload(self, node: int, bundle: int, then_s: float) -> None:
        self._ask(node, "PUT", f"/admin/v2/namespaces/{self.fleet.bundle(bundle)}/unload", then_s)

    @rule(node=_NODE, then_s=_THEN_S)
    def unload_all_the_time(self, node: int, then_s: float) -> None:
        self._run(lambda: self.fleet.unload_all_the_time(node), then_s)

    @rule(node=_NODE, bundle=_BUNDLE, broker=_BROKER, then_s=_THEN_S)
    def transfer(self, node: int, bundle: int, broker: int, then_s: float) -> None:
        destination = self.fleet.brokers[broker].broker_id
        path = f"/admin/v2/namespaces/{self.fleet.bundle(bundle)}/unload?destinationBroker={destination}"
        self._ask(node, "PUT", path, then_s)

    @rule(node=_NODE, bundle=_BUNDLE, then_s=_THEN_S)
    def cancel(self, node: int, bundle: int, then_s: float) -> None:
        self._ask(node, "DELETE", f"/loadbalance/v1/bundles/{self.fleet.bundle(bundle)}/unload", then_s)

    @rule(node=_NODE, bundle=_BUNDLE, unload=st.sampled_from(["true", "false"]), then_s=_THEN_S)
    def split(self, node: int, bundle: int, unload: str, then_s: float) -> None:
        query = f"splitAlgorithmName=range_equally_divide&unload={unload}"
        self._ask(node, "PUT", f"/admin/v2/namespaces/{self.fleet.bundle(bundle)}/split?{query}", then_s)

    @rule(node=_NODE, bundle=_BUNDLE, then_s=_THEN_S)
    def merge(self, node: int, bundle: int, then_s: float) -> None:
        self._ask(node, "POST", f"/loadbalance/v1/bundles/{self.fleet.bundle(bundle)}/merge", then_s)

    @rule(node=_NODE, broker=_BROKER, method=st.sampled_from(["PUT", "DELETE"]), then_s=_THEN_S)
    def drain(self, node: int, broker: int, method: str, then_s: float) -> None:
        self._ask(node, method, f"/loadbalance/v1/brokers/{self.fleet.brokers[broker].broker_id}/drain", then_s)

    @rule(node=_NODE, bundle=_BUNDLE, then_s=_THEN_S)
    def freeze(self, node: int, bundle: int, then_s: float) -> None:
        path = f"/loadbalance/v1/bundles/{self.fleet.bundle(bundle)}/freeze"
        self._ask(node, "PUT", path, then_s, {"reason": "a step"})

    # Brokers

    @rule(broker=_BROKER, manner=st.sampled_from(Manner))
    def behave(self, broker: int, manner: Manner) -> None:
        self.fleet.brokers[broker].manner = manner

    @rule(broker=_BROKER, cpu_percent=st.sampled_from([1.0, 99.0]), then_s=_THEN_S)
    def report(self, broker: int, cpu_percent: float, then_s: float) -> None:
        self._run(lambda: self.fleet.report(broker, cpu_percent), then_s)

    @rule(broker=_BROKER, then_s=_THEN_S)
    def restart_broker(self, broker: int, then_s: float) -> None:
        self._run(lambda: self.fleet.restart_broker(broker), then_s)

    @rule(broker=_BROKER, for_s=_FOR_S, then_s=_THEN_S)
    def kill_broker(self, broker: int, for_s: float, then_s: float) -> None:
        self._run(lambda: self.fleet.kill_broker(broker, for_s), then_s)

    @rule(broker=_BROKER, for_s=_FOR_S, then_s=_THEN_S)
    def cut_broker_off(self, broker: int, for_s: float, then_s: float) -> None:
        self._run(lambda: self.fleet.cut_broker_off(broker, for_s), then_s)

    # Nodes

    @rule(then_s=_THEN_S)
    def replace_leader(self, then_s: float) -> None:
        self._run(self.fleet.replace_leader, then_s)

    @rule(for_s=_FOR_S, noticed=st.booleans(), then_s=_THEN_S)
    def cut_leader_off(self, for_s: float, then_s: float, *, noticed: bool) -> None:
        self._run(lambda: self.fleet.cut_leader_off(for_s, noticed=noticed), then_s)

    @rule(for_s=_FOR_S, then_s=_THEN_S)
    def lose_answer(self, for_s: float, then_s: float) -> None:
        self._run(lambda: self.fleet.lose_answer(for_s), then_s)

    @rule(then_s=_THEN_S)
    def expire_leader(self, then_s: float) -> None:
        self._run(self.fleet.expire_leader, then_s)

    @rule(then_s=_THEN_S)
    def depose_leader(self, then_s: float) -> None:
        self._run(self.fleet.depose_leader, then_s)

    @rule(then_s=st.sampled_from([5.0, 35.0]))
    def time_passes(self, then_s: float) -> None:
        self._run(lambda: None, then_s)


TestNodesAndBrokers = NodesAndBrokers.TestCase
TestNodesAndBrokers.settings = settings(
    max_examples=settings().max_examples // 5,  # each takes half a second of CPU
    stateful_step_count=30,
    phases=[Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)


def test_a_bundle_on_its_way_to_a_broker_that_is_drained_keeps_nobody_busy() -> None:
    machine = NodesAndBrokers()
    machine.begin(seed=0, slowness_s=0.0, manners=(Manner.OBEYS, Manner.REFUSES, Manner.REFUSES))
    machine.drain(node=0, broker=0, method="PUT", then_s=0.0)
    for bundle in range(BUNDLES):
        machine.transfer(node=0, bundle=bundle, broker=0, then_s=0.3)
    machine.teardown()
