"""`loadmanager beside` at a real Pulsar: what it must never do, and what it is for. Messages flow all the time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pulsar import LeaderLog, Writers
from support.waiting import eventually_sync

from examples.pulsar.cluster import Broker, PulsarCluster
from examples.pulsar.neighbour import Beside
from examples.pulsar.operations import Operator
from examples.pulsar.skew import RunningLoad, Skew
from examples.pulsar.znodes import sessions_of
from loadmanager.embedded.zookeeper import EmbeddedZooKeeper

pytestmark = [pytest.mark.pulsar, pytest.mark.zookeeper, pytest.mark.timeout(900)]

SHEDDING = "loadBalancerSheddingEnabled"
QUICK = {"loadBalancerSheddingIntervalMinutes": "0.1"}
"""A round every 6 s, so that a test sees several."""
PATIENCE_S = 150.0

Start = Callable[..., Beside]


@pytest.fixture
def start(
    cluster: PulsarCluster, skew: Skew, zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path
) -> Iterator[Start]:
    """Starts processes that are elected in one place, which is not Pulsar's; they end with the test."""
    started: list[Beside] = []

    def start(mode: str = "act", *arguments: str, **options: object) -> Beside:
        state = {"stateStoreUrl": f"zk:{zookeeper.connect_string}{chroot}"} if mode == "act" else {}
        mine = {"mode": mode, "settlingSeconds": 1, "overrides": QUICK, "includedNamespaces": [skew.namespace]}
        beside = Beside(cluster, tmp_path / str(len(started)), {**mine, **state, **options}, arguments)
        started.append(beside)
        beside.start()
        return beside

    yield start
    for each in started:
        each.__exit__(None, None, None)


@pytest.fixture
def skewed(cluster: PulsarCluster, skew: Skew, load: RunningLoad) -> RunningLoad:
    """The load of the module, with every bundle back where it began."""
    skew.prepare(cluster)
    load.wait_until_flowing()
    return load


def rates(operator: Operator, skew: Skew) -> dict[str, float]:
    """Messages per second that are sent to each broker, by who owns what."""
    owners = operator.owners(skew.namespace)
    ranges = operator.bundles_of(skew.namespace)
    sent = {each.name: 0.0 for each in operator.cluster.serving()}
    for i, bundle in enumerate(ranges):
        if bundle in owners:
            sent[owners[bundle]] += skew.rate(i) * skew.topics_each
    return sent


def imbalance(operator: Operator, skew: Skew) -> float:
    """The most loaded broker as a multiple of the mean."""
    sent = rates(operator, skew)
    return max(sent.values()) * len(sent) / sum(sent.values())


def decisions(beside: Beside) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = beside.get("/loadbalance/v1/decisions")["decisions"]
    return found


def rounds(beside: Beside) -> int:
    """How many rounds of shedding it has thought through."""
    return beside.log().count("shedding_cycle")


def wait_for_rounds(beside: Beside, more: int) -> None:
    wanted = rounds(beside) + more
    eventually_sync(lambda: rounds(beside) >= wanted, PATIENCE_S, f"{more} more rounds")


def moves(beside: Beside) -> list[tuple[str, int]]:
    """The bundles that it has moved, each with the epoch of its term, in order."""
    found = re.findall(r"unloaded +bundle=(\S+) .*?epoch=(\d+)", beside.log())
    return [(bundle, int(epoch)) for bundle, epoch in found]


def test_shadow_writes_nothing(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    before, writers, log = operator.owners(skew.namespace), Writers.watch(cluster), LeaderLog.follow(cluster)
    beside = start("shadow")
    wait_for_rounds(beside, 3)
    assert any(each["kind"] == "unload" for each in decisions(beside)), "it had something to plan"
    sessions = sessions_of(cluster.zookeeper, beside.process.pid)
    assert sessions
    assert sessions <= {each.session for each in writers.others()}
    assert beside.stop() == 0
    assert writers.changes_by_others() == []
    assert operator.owners(skew.namespace) == before
    assert operator.dynamic() == {}
    assert not [line for line in log.lines() if "Unloading" in line or "Updated Service configuration" in line]


def test_acting_levels_a_skewed_load_and_then_lets_it_be(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    assert imbalance(operator, skew) > 2
    writers = Writers.watch(cluster)
    beside = start()
    eventually_sync(lambda: imbalance(operator, skew) < 1.4, PATIENCE_S, "a load that is level")
    done = len(moves(beside))
    wait_for_rounds(beside, 4)
    assert len(moves(beside)) <= done + 2
    assert imbalance(operator, skew) < 1.4
    assert beside.stop() == 0
    assert writers.changes_by_others() == []
    assert_nothing_is_lost(skewed)


def assert_nothing_is_lost(load: RunningLoad) -> None:
    """Every message that was acknowledged by now is received in the end: what is under way comes first."""
    acknowledged = load.told[-1]["acknowledged"]
    eventually_sync(lambda: load.told[-1]["receipts"] >= acknowledged, PATIENCE_S, "all that was acknowledged")


def test_a_drain_empties_a_broker(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    broker = cluster.brokers[0]
    beside = start()
    drain = f"/loadbalance/v1/brokers/{broker.name}/drain"
    assert beside.tell("PUT", drain) == 202
    eventually_sync(lambda: operator.counts(skew.namespace)[broker.name] == 0, PATIENCE_S, "a broker without bundles")
    eventually_sync(lambda: beside.get(drain)["state"] == "done", PATIENCE_S, "a drain that is done")
    owned = operator.owners(skew.namespace)
    assert len(owned) == skew.bundles
    skewed.wait_until_flowing()
    wait_for_rounds(beside, 2)
    assert operator.counts(skew.namespace)[broker.name] == 0
    assert beside.tell("DELETE", drain) == 204


def stays_still(beside: Beside, operator: Operator, skew: Skew, why: str) -> None:
    """Rounds pass, it says why nothing is moved, and nothing is."""
    before = operator.owners(skew.namespace)
    eventually_sync(lambda: why in str(beside.status()["obstacles"]), PATIENCE_S, f"the obstacle {why!r}")
    assert not beside.status()["acting"]
    wait_for_rounds(beside, 2)
    assert moves(beside) == []
    assert operator.owners(skew.namespace) == before


def test_it_does_not_act_while_pulsar_sheds_by_itself(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    log = LeaderLog.follow(cluster)
    operator.set_dynamic(SHEDDING, "true")
    beside = start()
    stays_still_but_for(log, beside, operator, skew)


def stays_still_but_for(log: LeaderLog, beside: Beside, operator: Operator, skew: Skew) -> None:
    """Nothing is moved by us, whatever Pulsar itself moves meanwhile."""
    eventually_sync(lambda: "sheds by itself" in str(beside.status()["obstacles"]), PATIENCE_S)
    wait_for_rounds(beside, 3)
    assert moves(beside) == []
    by_pulsar = {each.bundle for each in log.moved()}
    untouched = {f"{skew.namespace}/{each}" for each in operator.bundles_of(skew.namespace)} - by_pulsar
    unloaded = set(re.findall(r"Unloading namespace bundle (\S+)", "\n".join(log.lines())))
    assert not unloaded & untouched


def test_taking_over_switches_pulsars_own_off_and_gives_it_back(
    operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    del skewed, skew
    operator.set_dynamic(SHEDDING, "true")
    beside = start("act", "--take-over")
    eventually_sync(lambda: operator.dynamic().get(SHEDDING) == "false", PATIENCE_S, "Pulsar's shedding is off")
    eventually_sync(lambda: beside.status()["acting"], PATIENCE_S, "it acts")
    assert beside.stop() == 0
    assert operator.dynamic()[SHEDDING] == "true"


def test_excluded_namespaces_stay_where_they_are(
    operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    before = operator.owners(skew.namespace)
    beside = start(includedNamespaces=[], excludedNamespaces=[skew.namespace])
    wait_for_rounds(beside, 3)
    assert beside.status()["acting"]
    assert moves(beside) == []
    assert operator.owners(skew.namespace) == before


def test_a_broker_that_was_killed_stops_it_until_all_has_settled(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    beside = start(settlingSeconds=600)
    stays_still(beside, operator, skew, "joined or left")
    victim = next(each for each in cluster.brokers[1:] if each != operator.leader())
    cluster.kill(victim)
    gone = f"{victim.name} is gone, and its bundles have others"
    eventually_sync(lambda: beside.status()["brokers"] == len(cluster.brokers) - 1, PATIENCE_S, gone)
    eventually_sync(lambda: all_owned(operator, skew, cluster.serving()), PATIENCE_S, gone)
    wait_for_rounds(beside, 2)
    assert moves(beside) == []
    cluster.start_broker(victim)
    cluster.wait_for_broker(victim)
    eventually_sync(lambda: beside.status()["brokers"] == len(cluster.brokers), PATIENCE_S, "it is back")
    skewed.wait_until_flowing()


def all_owned(operator: Operator, skew: Skew, brokers: list[Broker]) -> bool:
    owners = operator.owners(skew.namespace)
    return len(owners) == skew.bundles and set(owners.values()) <= {each.name for each in brokers}


def test_of_two_processes_one_acts_and_the_other_takes_its_place(
    operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    both = [start(movesPerRound=1), start(movesPerRound=1)]
    acting = [each for each in both if each.status()["leading"]]
    assert len(acting) == 1
    first = acting[0]
    second = next(each for each in both if each is not first)
    eventually_sync(lambda: moves(first), PATIENCE_S, "a move of the first")
    assert not second.status()["acting"]
    assert moves(second) == []
    first.kill()
    eventually_sync(lambda: second.status()["leading"], PATIENCE_S, "the second leads")
    eventually_sync(lambda: moves(second), PATIENCE_S, "a move of the second")
    assert {epoch for _, epoch in moves(first)}.isdisjoint(epoch for _, epoch in moves(second))
    eventually_sync(lambda: imbalance(operator, skew) < 1.4, PATIENCE_S, "a load that is level")
    skewed.wait_until_flowing()


def test_killed_in_the_middle_of_a_move_the_next_one_sees_it_through(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    destination = next(each for each in cluster.brokers[1:] if each != operator.leader())
    bundle = operator.bundles_of(skew.namespace)[0]
    beside = start(overrides={})  # no round of its own for a minute
    cluster.pause(destination)  # it can take nothing, so the move cannot end
    try:
        pin = f"/loadbalance/v1/bundles/{skew.namespace}/{bundle}/pin"
        assert beside.tell("PUT", pin, {"broker": destination.name}) == 204
        eventually_sync(lambda: bundle not in operator.owners(skew.namespace), PATIENCE_S, "a bundle on its way")
        beside.kill()
    finally:
        cluster.resume(destination)
    next_one = start(overrides={})
    eventually_sync(lambda: next_one.status()["acting"], PATIENCE_S, "the next one acts")
    assert "move_seen_through" in next_one.log()
    eventually_sync(lambda: operator.owners(skew.namespace).get(bundle) == destination.name, PATIENCE_S, "it is home")
    assert next_one.tell("DELETE", pin) == 204
    skewed.wait_until_flowing()


def test_of_all_messages_none_is_lost(load: RunningLoad) -> None:
    """The last of this file: whatever was done above."""
    outcome = load.finish()
    assert outcome["acknowledged"] > 1_000
    assert (outcome["lost"], outcome["refused"]) == (0, 0)
    assert outcome["received"] == outcome["sent"]
