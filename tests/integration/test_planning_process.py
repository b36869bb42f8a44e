"""Rounds that are worked out in a process of their own: the same to the last bit, whatever becomes of the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.random_clusters import Build, Seeded, some_cluster
from support.recorded_cluster import OF_STRATEGY, a_recorded_leader
from support.waiting import eventually_sync

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.resources import ResourceWeights
from loadmanager.core.domain.settings import PlannerSettings, UnknownStrategyError
from loadmanager.core.model.extensible_load import Listed, TopBundles
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.decision_kinds import InColumns, as_json
from loadmanager.core.planning.planner import State, plan_assignments
from loadmanager.core.planning.shedding_round import Proposal
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES
from loadmanager.history.reader import History
from loadmanager.lab.replay.replayer import replay
from loadmanager.leader.planning.planner_pool import PlannerPool, PlannerProcess
from loadmanager.leader.planning.planner_worker import LostError

SETTINGS = PlannerSettings(
    bundle_unload_min_throughput_threshold=0.0,
    min_unload_message=0,
    min_unload_message_throughput=0,
    lower_boundary_shedding_enabled=True,
    resource_weights=ResourceWeights(1, 0, 0, 0),
    shedding_excluded_namespaces=frozenset({"tenant/ns-1"}),
    avg_shedder_hit_count_low_threshold=1,
    avg_shedder_hit_count_high_threshold=1,
    shedding_condition_hit_count_threshold=0,
    shedding_delay_in_seconds=0,
    broker_load_target_std=0.1,
)
CLUSTERS = 16
POLICIES = Policies(
    (IsolationPolicy("p", ("tenant/ns-0",), (r"broker-00[0-3]", r"\Qelsewhere\E")),), {"tenant/ns-0": "g"}
)


@pytest.fixture(scope="module")
def process() -> Iterator[PlannerProcess]:
    started = PlannerProcess()
    yield started
    started.close()


def a_snapshot(seed: int) -> Snapshot:
    cluster = some_cluster(
        Seeded(np.random.default_rng(seed)), fewest_brokers=3, fewest_bundles=15, settled=seed % 2 > 0
    )
    return replace(Build().snapshot(cluster), policies=POLICIES)


def said(proposal: Proposal) -> str:
    """All of it; figures to the last bit."""
    plan = proposal.plan
    verdicts = [(each.subject, each.verdict, each.acted, dict(each.why)) for each in plan.verdicts]
    return repr((plan.revision, plan.taken_at_s, plan.steps, verdicts, dict(plan.metrics), as_json(proposal.state)))


def planning_processes() -> set[psutil.Process]:
    worker = "loadmanager.leader.planning.planner_worker"
    return {each for each in psutil.Process().children() if worker in each.cmdline()}


def has_ended(process: psutil.Process) -> bool:
    """Also when nobody has looked at how yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE or not process.is_running()
    except psutil.NoSuchProcess:
        return True


def noting(asked: list[int], snapshot: Snapshot) -> TopBundles:
    """The busiest bundles of each broker; who was asked for is noted."""
    top = snapshot.top_bundles
    assert top is not None

    def find(broker: int) -> Listed:
        asked.append(broker)
        return top.find(broker)

    return TopBundles(find)


def here(
    snapshot: Snapshot, settings: PlannerSettings, state: State, seed: int
) -> tuple[Proposal, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return shedding.propose(snapshot, settings, state, rng), rng


@pytest.mark.parametrize("strategy", SHEDDING_STRATEGIES)
def test_round_in_a_process_is_bit_for_bit_the_same(process: PlannerProcess, strategy: str) -> None:
    """Several rounds, each with what the one before remembers; the process goes on from cluster to cluster."""
    moves, asked = 0, list[int]()
    for seed in range(CLUSTERS):
        placement = sorted(PLACEMENT_STRATEGIES)[seed % len(PLACEMENT_STRATEGIES)]
        settings = replace(SETTINGS, shedding_strategy=strategy, placement_strategy=placement)
        state_here, state_there = State(), State()
        for round_number in range(2):
            snapshot, rng_there = a_snapshot(seed), np.random.default_rng(round_number)
            listed = replace(snapshot, top_bundles=noting(asked, snapshot))
            of_here, rng_here = here(snapshot, settings, state_here, round_number)
            of_there = process.propose(listed, settings, state_there, rng_there)
            assert isinstance(of_there, Proposal)
            assert said(of_there) == said(of_here)
            assert rng_there.bit_generator.state == rng_here.bit_generator.state
            assert of_there.snapshot is listed
            state_here, state_there = of_here.state, of_there.state
            moves += len(of_here.plan.steps)
    assert moves, "nothing was compared"
    assert bool(asked) == (strategy == "TransferShedder"), "what few strategies go by is not sent unasked"


def test_unchanged_state_keeps_its_identity(process: PlannerProcess) -> None:
    """`core.planning.decision_kinds.merged` knows by identity what a decision has left alone."""
    simple = replace(SETTINGS, load_manager_class_name="SimpleLoadManagerImpl")
    snapshot, rng = a_snapshot(1), np.random.default_rng(1)
    _, before = plan_assignments(snapshot, ["tenant/ns-0/0x00000000_0xffffffff"], simple, {}, rng)
    (held,) = (part for remembered in before.values() for part in remembered.values() if isinstance(part, InColumns))
    proposal = process.propose(snapshot, SETTINGS, before, rng)
    assert isinstance(proposal, Proposal)
    assert any(part is held for remembered in proposal.state.values() for part in remembered.values())


def test_error_is_the_same_and_the_process_continues(process: PlannerProcess) -> None:
    snapshot, rng = a_snapshot(1), np.random.default_rng(1)
    nonsense: State = {"ThresholdShedder": "nonsense"}
    with pytest.raises(AttributeError) as raised:
        here(snapshot, SETTINGS, nonsense, 1)
    failed = process.propose(snapshot, SETTINGS, nonsense, rng)
    assert isinstance(failed, AttributeError)
    assert str(failed) == str(raised.value)
    assert "In the planner worker" in failed.__notes__[0]
    unknown = process.propose(snapshot, replace(SETTINGS, shedding_strategy="Unknown"), {}, rng)
    assert isinstance(unknown, UnknownStrategyError)
    assert isinstance(process.propose(snapshot, SETTINGS, {}, rng), Proposal)


async def test_round_lost_with_its_process_is_repeated() -> None:
    snapshot = a_snapshot(1)
    of_here, _ = here(snapshot, SETTINGS, {}, 1)
    started: list[PlannerProcess] = []

    def start() -> PlannerProcess:
        started.append(PlannerProcess())
        return started[-1]

    planning, rng = PlannerPool(1, start), np.random.default_rng(1)
    untouched = deepcopy(rng)
    assert said(await planning.propose(snapshot, SETTINGS, {}, rng)) == said(of_here)
    started[0].kill()
    assert said(await planning.propose(snapshot, SETTINGS, {}, untouched)) == said(of_here)
    assert untouched.bit_generator.state == rng.bit_generator.state
    assert len(started) == 2
    await planning.end_term()
    assert not any(psutil.pid_exists(each.pid) for each in started)


@pytest.mark.parametrize("command", [("/nowhere/python",), (sys.executable, "-c", "")])
async def test_thread_plans_when_no_process_can_be_started(command: tuple[str, ...]) -> None:
    snapshot, rng = a_snapshot(1), np.random.default_rng(1)
    planning = PlannerPool(1, lambda: PlannerProcess(command))
    assert said(await planning.propose(snapshot, SETTINGS, {}, rng)) == said(here(snapshot, SETTINGS, {}, 1)[0])


async def test_unpicklable_state_is_planned_in_a_thread() -> None:
    """A leader that could not shed would be worse than one that answers slowly."""
    snapshot, rng = a_snapshot(1), np.random.default_rng(1)
    planning, state = PlannerPool(1), {"Another": {"of its own": lambda: 0}}
    proposal = await planning.propose(snapshot, SETTINGS, state, rng)
    assert proposal.plan.steps == here(snapshot, SETTINGS, {}, 1)[0].plan.steps
    assert proposal.state["Another"] == state["Another"]
    await planning.end_term()


async def test_few_bundles_start_no_process() -> None:
    def start() -> PlannerProcess:
        raise AssertionError("it is not worth it")

    snapshot, rng = a_snapshot(1), np.random.default_rng(1)
    for least in (0, len(snapshot.bundles) + 1):
        await PlannerPool(least, start).propose(snapshot, SETTINGS, {}, rng)


@pytest.mark.parametrize("is_asked", [True, False])
async def test_pending_round_ends_with_the_term(is_asked: bool) -> None:  # noqa: FBT001 - a parameter
    """Covers a slow planner process, and one that is still starting."""
    started, goes_on = asyncio.Event(), threading.Event()
    loop, processes = asyncio.get_running_loop(), list[PlannerProcess]()

    def start() -> PlannerProcess:
        processes.append(PlannerProcess((sys.executable, "-c", "import time; time.sleep(600)")))
        loop.call_soon_threadsafe(started.set)
        if not is_asked:
            goes_on.wait()
        return processes[0]

    planning = PlannerPool(1, start)
    proposed = asyncio.create_task(planning.propose(a_snapshot(1), SETTINGS, {}, np.random.default_rng(1)))
    await started.wait()
    ended = asyncio.create_task(planning.end_term())
    await asyncio.sleep(0)
    goes_on.set()
    await ended
    with pytest.raises(LostError):
        await proposed
    assert not psutil.pid_exists(processes[0].pid)


def test_process_exits_with_its_parent() -> None:
    """However that ended."""
    lines = "from loadmanager.leader.planning.planner_pool import *; print(PlannerProcess().pid, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        process = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    eventually_sync(lambda: has_ended(process))


@pytest.mark.parametrize("strategy", ["TransferShedder", "SimpleLoadManagerImpl"])
async def test_rounds_of_a_process_replay_to_the_same_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Places decided meanwhile remember things of their own; the process ends with the term."""
    before = planning_processes()
    monkeypatch.setattr("loadmanager.leader.node.PROCESS_BUNDLES", 1)
    async with a_recorded_leader(tmp_path, **OF_STRATEGY[strategy]) as recorded:
        assert await recorded.live(3) > 0
        assert len(planning_processes() - before) == 1
        await recorded.live(1)
    assert planning_processes() == before
    history = History(str(tmp_path))
    outcome = replay(recorded_items(history, find_start(history, None), None), planner_settings_of)
    assert outcome.difference is None
    assert outcome.compared["shed"] == 4
