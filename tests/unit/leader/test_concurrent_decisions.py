from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.nodes import RunningNode, a_leader
from support.recorded_cluster import OF_STRATEGY, Recorded, a_recorded_leader
from support.waiting import eventually, patience

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.core.diagnosis.explanation import DecisionInput
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Plan
from loadmanager.core.planning import planner
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.errors import TooManyPreviewsError
from loadmanager.history.reader import History
from loadmanager.lab.replay.replayer import ReplayOutcome, replay
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.planning import explanation_service, planner_pool

BUNDLE = "t/ns/0x00000000_0xffffffff"


class Held:
    """Wraps a function that returns only when the test releases it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.begun = 0
        self._go = threading.Event()
        self._work = getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *given: Any) -> Any:  # noqa: ANN401 - whatever it takes and gives
        try:
            return self._work(*given)
        finally:
            self.begun += 1
            self._go.wait(patience())

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def round_of_shedding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch, shedding, "propose")
    yield held
    held.let_go()


@pytest.fixture
def explanation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch, explanation_service, "explain_bundle")
    yield held
    held.let_go()


async def _placed(leader: RunningNode, bundle: str = BUNDLE) -> Plan:
    async with asyncio.timeout(patience()):
        return await leader.node.planner.place([bundle])


async def test_lookup_does_not_wait_for_a_shedding_round(round_of_shedding: Held) -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker()
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        cycle = asyncio.create_task(leader.node.shedding.run_round())
        await eventually(lambda: round_of_shedding.begun)
        async with asyncio.timeout(patience()):
            assert (await leader.lookup("persistent://t/ns/x")).status == 200
        assert not cycle.done()
        round_of_shedding.let_go()
        await cycle


async def test_lookup_does_not_wait_for_explanations_and_plans(explanation: Held) -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker()
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        explained = [asyncio.create_task(leader.get(f"/loadbalance/v1/explain/bundle/{BUNDLE}")) for _ in range(20)]
        await eventually(lambda: explanation.begun)
        planned = asyncio.create_task(leader.node.planner.preview_shed())
        async with asyncio.timeout(patience()):
            assert (await leader.lookup("persistent://t/ns/x")).status == 200
        assert not any(each.done() for each in (*explained, planned))
        explanation.let_go()
        assert {answer.status for answer in await asyncio.gather(*explained)} == {200}
        await planned


async def test_assignment_does_not_wait_for_other_threads() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker()
        go = threading.Event()
        blocking = [asyncio.create_task(asyncio.to_thread(go.wait)) for _ in range(100)]
        await asyncio.sleep(0)  # the threads are queued first
        try:
            (verdict,) = (await _placed(leader)).verdicts
            assert verdict.acted
            assert not any(each.done() for each in blocking)
        finally:
            go.set()
            await asyncio.gather(*blocking)


async def test_preview_with_too_many_waiting_is_refused(explanation: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_pool, "MOST_WAITING", 2)
    async with a_leader() as (cluster, leader):
        await cluster.a_broker()
        await cluster.a_namespace("t/ns", bundles={"numBundles": 1})
        path = f"/loadbalance/v1/explain/bundle/{BUNDLE}"
        looks: list[DecisionInput] = []
        look = leader.node.planner.look

        def noted() -> DecisionInput:
            looks.append(look())
            return looks[-1]

        monkeypatch.setattr(leader.node.planner, "look", noted)
        asked = [asyncio.create_task(leader.get(path)) for _ in range(6)]
        await eventually(lambda: sum(each.done() for each in asked) == 3 and explanation.begun > 0)
        assert len(looks) == explanation.begun == 1, "one at a time, each on what is known when its turn comes"
        for each in asked:
            if each.done():
                answer = each.result()
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert answer.reason == "2 previews are waiting already; try again later"
        with pytest.raises(TooManyPreviewsError):
            await leader.node.planner.preview_drain(BrokerId("b1:8080"))
        explanation.let_go()
        statuses = [answer.status for answer in await asyncio.gather(*asked)]
        assert sorted(statuses) == [200, 200, 200, 503, 503, 503]
        assert (await leader.get(path)).status == 200


async def test_state_of_assignments_during_a_round_is_kept(round_of_shedding: Held) -> None:
    settings = {"load_balancer_load_placement_strategy": "RoundRobinBrokerSelector"}
    async with a_leader(**settings) as (cluster, leader):
        await cluster.a_broker()
        service = leader.node.planner
        shed = asyncio.create_task(service.shed())
        await eventually(lambda: round_of_shedding.begun)
        await _placed(leader)
        round_of_shedding.let_go()
        await shed
        assert service.state["RoundRobinBrokerSelector"]["turn"] == 1


async def test_failed_round_keeps_the_assignment(round_of_shedding: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"load_balancer_load_placement_strategy": "RoundRobinBrokerSelector"}
    async with a_leader(**settings) as (cluster, leader):
        await cluster.a_broker()
        service = leader.node.planner
        service.state = {"ThresholdShedder": "nonsense"}
        placement = Held(monkeypatch, planner, "plan_assignments")
        shed = asyncio.create_task(service.shed())
        await eventually(lambda: round_of_shedding.begun)
        placed = asyncio.create_task(_placed(leader))
        await eventually(lambda: placement.begun)
        round_of_shedding.let_go()
        await asyncio.wait([shed], timeout=0.2)  # the round would end first if nothing held it
        placement.let_go()
        await placed
        with pytest.raises(AttributeError):
            await shed
        assert service.state == {}


async def _begun(recorded: Recorded, held: Held) -> tuple[asyncio.Task[Plan], asyncio.Task[Any]]:
    """Start a round and a preview that run concurrently."""
    node = recorded.leader.node
    await recorded.report()
    round_ = asyncio.create_task(node.shedding.run_round())
    await eventually(lambda: held.begun == 1)
    preview = asyncio.create_task(node.planner.preview_shed())
    await eventually(lambda: held.begun == 2)
    return round_, preview


def _replayed(folder: Path) -> ReplayOutcome:
    history = History(str(folder))
    return replay(recorded_items(history, find_start(history, None), None), planner_settings_of)


@pytest.mark.parametrize("strategy", [*OF_STRATEGY, "LeastResourceUsageWithWeight"])
async def test_concurrent_decisions_are_replayed(tmp_path: Path, round_of_shedding: Held, strategy: str) -> None:
    settings = OF_STRATEGY.get(strategy, {"load_balancer_load_placement_strategy": strategy})
    async with a_recorded_leader(tmp_path, **settings) as recorded:
        leader = recorded.leader
        in_progress = await _begun(recorded, round_of_shedding)
        for bundle in recorded.owned_by("b2:8080")[:3]:
            for _ in range(6):  # more snapshots than a replay keeps
                await leader.unload(bundle)
                await leader.node.assigner.request(bundle)
        await recorded.own("t/third")
        round_of_shedding.let_go()
        plan, _ = await asyncio.gather(*in_progress)
        assert plan.steps
        await recorded.live(2)
    outcome = _replayed(tmp_path)
    assert outcome.difference is None
    assert outcome.is_complete
    assert {"shed", "preview_shed", "place"} <= outcome.compared.keys()
    assert not outcome.left_out


async def test_assignments_do_not_wait_for_the_checkpoint(tmp_path: Path, round_of_shedding: Held) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        node = recorded.leader.node
        assert isinstance(node.mirror.model, RecordedModel)
        await recorded.report()
        cycle = asyncio.create_task(node.shedding.run_round())
        await eventually(lambda: round_of_shedding.begun)
        checkpoint = asyncio.create_task(node.planner.checkpoint(node.mirror.model))
        async with asyncio.timeout(patience()):
            await recorded.own("t/third")
        assert not checkpoint.done()
        round_of_shedding.let_go()
        await asyncio.gather(cycle, checkpoint)
    outcome = _replayed(tmp_path)
    assert outcome.difference is None
    assert not outcome.left_out
    assert outcome.compared["checkpoint"] == 1
