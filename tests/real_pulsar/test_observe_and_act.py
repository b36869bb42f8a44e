"""`loadmanager pulsar` at a real Pulsar: what it must never do, and what it is for. Messages flow all the time."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
from kazoo.exceptions import NoNodeError
from support.pulsar import LeaderLog, Writers, run_loadmanager
from support.waiting import eventually_sync

from examples.pulsar.admin import demand
from examples.pulsar.cluster import Broker, PulsarCluster
from examples.pulsar.command import PulsarCommand
from examples.pulsar.demo import LEVEL_SETTINGS
from examples.pulsar.operations import Operator
from examples.pulsar.skew import RunningLoad, Skew
from examples.pulsar.znodes import connect, sessions_of
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.pulsar.rest_answers import bundle_loads
from loadmanager.store.paths import PULSAR_MOVES
from loadmanager.wire.pulsar_records import decode_move_history

pytestmark = [pytest.mark.pulsar, pytest.mark.zookeeper]

SHEDDING = "loadBalancerSheddingEnabled"
QUICK = {**LEVEL_SETTINGS, "loadBalancerSheddingIntervalMinutes": "0.1"}
"""A round every 6 s, so that a test sees several, by traffic: usage of hosts is measured once a minute."""
NO_SHEDDING = {"loadBalancerLoadSheddingStrategy": "OverloadShedder"}
"""No broker is overloaded, so only an operator's order moves a bundle."""
TIMEOUT_S = 150.0
LEVELLING_S = 400.0
"""A round, two measurements of the hosts, which Pulsar makes once a minute, and the next round; then three more."""

Start = Callable[..., PulsarCommand]


@pytest.fixture
def start(
    cluster: PulsarCluster, skew: Skew, zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path
) -> Iterator[Start]:
    """Starts processes that are elected in one place, which is not Pulsar's; they end with the test."""
    started: list[PulsarCommand] = []

    def start(mode: Literal["observe", "act"] = "act", *arguments: str, **options: object) -> PulsarCommand:
        state = {"stateStoreUrl": f"zk:{zookeeper.connect_string}{chroot}"} if mode == "act" else {}
        mine = {"settlingSeconds": 1, "overrides": QUICK, "includedNamespaces": [skew.namespace]}
        command = PulsarCommand(cluster, tmp_path / str(len(started)), mode, {**mine, **state, **options}, arguments)
        started.append(command)
        command.start()
        return command

    yield start
    for each in started:
        each.__exit__(None, None, None)


@pytest.fixture
def skewed(cluster: PulsarCluster, skew: Skew, load: RunningLoad) -> RunningLoad:
    """The load of the module, with every bundle back where it began."""
    skew.prepare(cluster)
    load.wait_until_flowing()
    return load


@pytest.fixture
def reported(operator: Operator, skew: Skew, skewed: RunningLoad) -> RunningLoad:
    """The skewed load, once the brokers report it: they measure the rates of topics once a minute."""
    eventually_sync(lambda: are_reported(operator, skew), "the load in the brokers' statistics", least_s=TIMEOUT_S)
    return skewed


def are_reported(operator: Operator, skew: Skew) -> bool:
    """Return True if each broker reports about as many messages per second as are sent to it."""
    sent = rates(operator, skew)
    for broker in operator.cluster.serving():
        answer = demand(broker.web_url, "GET", "/admin/v2/broker-stats/topics")
        loads = bundle_loads(answer.body, broker.name)
        found = sum(load["msgRateIn"] for bundle, load in loads.items() if bundle.startswith(f"{skew.namespace}/"))
        if not 0.7 < found / sent[broker.name] < 1.3:
            return False
    return True


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


def planned(command: PulsarCommand) -> list[int]:
    """Return the number of moves in each of its rounds of shedding so far."""
    return [int(each) for each in re.findall(r"shedding_round .* unloads=(\d+)", command.log())]


def wait_for_rounds(command: PulsarCommand, more: int) -> None:
    wanted = len(planned(command)) + more
    eventually_sync(lambda: len(planned(command)) >= wanted, f"{more} more rounds", least_s=TIMEOUT_S)


def has_led(command: PulsarCommand) -> bool:
    """By its log: whoever else is asked lets the one that leads answer."""
    return " elected " in command.log()


def wait_until_level(command: PulsarCommand, operator: Operator, skew: Skew) -> None:
    """Return once the load is level, and three rounds on end have found nothing to do."""
    eventually_sync(
        lambda: planned(command)[-3:] == [0, 0, 0] and imbalance(operator, skew) < 1.4,
        "a level load and nothing more to do",
        least_s=LEVELLING_S,
    )


def wait_until_acting(command: PulsarCommand) -> None:
    try:
        eventually_sync(lambda: command.status()["acting"], "it acts", least_s=TIMEOUT_S)
    except AssertionError:
        pytest.fail(f"it does not act: {command.status()}")


def moves(command: PulsarCommand) -> list[tuple[str, int]]:
    """The bundles that it has moved, each with the epoch of its term, in order."""
    found = re.findall(r"unloaded +bundle=(\S+) .*?epoch=(\d+)", command.log())
    return [(bundle, int(epoch)) for bundle, epoch in found]


def test_observe_writes_nothing(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    before, log = operator.owners(skew.namespace), LeaderLog.follow(cluster)
    command = start("observe")
    wait_for_rounds(command, 3)
    eventually_sync(lambda: any(planned(command)), "a round that would move something", least_s=TIMEOUT_S)
    assert not sessions_of(cluster.zookeeper, command.process.pid)
    assert command.stop() == 0
    assert operator.owners(skew.namespace) == before
    assert operator.dynamic() == {}
    assert not [line for line in log.lines() if "Unloading" in line or "Updated Service configuration" in line]


def test_diary_has_moves_by_others_and_the_history_replays(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    command = start("observe")
    wait_for_rounds(command, 1)
    bundle, source, destination = operator.bundles_of(skew.namespace)[0], *cluster.brokers[:2]
    operator.place(skew.namespace, bundle, destination)
    moved = (f"{skew.namespace}/{bundle}", source.name, destination.name)
    eventually_sync(lambda: moved in diary(command), "the move in the diary", least_s=TIMEOUT_S)
    history = command.folder / "kept" / "history"
    eventually_sync(history.exists, "a history", least_s=TIMEOUT_S)
    assert command.stop() == 0
    done = run_loadmanager("replay", "--history", str(history))
    assert done.returncode == 0, done.stderr


def diary(command: PulsarCommand) -> list[tuple[str, str, str]]:
    """Return subject, source and destination of each entry."""
    told = command.get("/loadbalance/v1/pulsar/diary/entries?limit=1000")
    return [(each["subject"], each["why"].get("source"), each["why"].get("destination")) for each in told]


def test_acting_levels_a_skewed_load_and_then_moves_nothing(
    cluster: PulsarCluster, operator: Operator, skew: Skew, reported: RunningLoad, start: Start
) -> None:
    assert imbalance(operator, skew) > 2
    writers = Writers.watch(cluster)
    command = start()
    wait_until_level(command, operator, skew)
    assert moves(command)
    assert command.stop() == 0
    assert writers.changes_by_others() == []
    assert_nothing_is_lost(reported)


def assert_nothing_is_lost(load: RunningLoad) -> None:
    """Every message that was acknowledged by now is received in the end: what is under way comes first."""
    acknowledged = load.counts[-1]["acknowledged"]
    eventually_sync(lambda: load.counts[-1]["receipts"] >= acknowledged, "all that was acknowledged", least_s=TIMEOUT_S)


def test_drain_empties_a_broker(
    cluster: PulsarCluster, operator: Operator, skew: Skew, skewed: RunningLoad, start: Start
) -> None:
    broker = cluster.brokers[0]
    command = start()
    drain = f"/loadbalance/v1/brokers/{broker.name}/drain"
    assert command.tell("PUT", drain) == 202
    eventually_sync(
        lambda: operator.counts(skew.namespace)[broker.name] == 0, "a broker without bundles", least_s=TIMEOUT_S
    )
    eventually_sync(lambda: command.get(drain)["state"] == "done", "a drain that is done", least_s=TIMEOUT_S)
    owned = operator.owners(skew.namespace)
    assert len(owned) == skew.bundles
    skewed.wait_until_flowing()
    wait_for_rounds(command, 2)
    assert operator.counts(skew.namespace)[broker.name] == 0
    assert command.tell("DELETE", drain) == 204


def test_process_does_not_act_while_pulsar_sheds(
    cluster: PulsarCluster, operator: Operator, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    log = LeaderLog.follow(cluster)
    operator.set_dynamic(SHEDDING, "true")
    command = start()
    assert "Pulsar's own shedding is on at 3 of 3 brokers" in str(command.status()["obstacles"])
    wait_for_rounds(command, 3)
    assert not command.status()["acting"]
    assert moves(command) == []
    unloaded = set(re.findall(r"Unloading namespace bundle (\S+)", "\n".join(log.lines())))
    assert unloaded <= {each.bundle for each in log.moved()}, "its own leader alone"


def test_take_over_disables_shedding_of_pulsar_and_restores_it(
    operator: Operator, skewed: RunningLoad, start: Start
) -> None:
    del skewed
    operator.set_dynamic(SHEDDING, "true")
    command = start("act", "--take-over")
    eventually_sync(lambda: operator.dynamic().get(SHEDDING) == "false", "Pulsar's shedding is off", least_s=TIMEOUT_S)
    wait_until_acting(command)
    assert command.stop() == 0
    assert operator.dynamic()[SHEDDING] == "true"


def test_excluded_namespaces_are_not_moved(operator: Operator, skew: Skew, skewed: RunningLoad, start: Start) -> None:
    del skewed
    before = operator.owners(skew.namespace)
    command = start(includedNamespaces=[], excludedNamespaces=[skew.namespace])
    wait_for_rounds(command, 3)
    assert command.status()["acting"]
    assert moves(command) == []
    assert operator.owners(skew.namespace) == before


def test_killed_broker_stops_acting_until_settled(
    cluster: PulsarCluster, operator: Operator, skew: Skew, reported: RunningLoad, start: Start
) -> None:
    command = start(settlingSeconds=600)
    wait_until_level(command, operator, skew)
    victim = next(each for each in cluster.brokers[1:] if each != operator.leader())
    cluster.kill(victim)
    gone = f"{victim.name} is gone, and its bundles have others"
    eventually_sync(lambda: command.status()["brokers"] == len(cluster.brokers) - 1, gone, least_s=TIMEOUT_S)
    eventually_sync(lambda: all_owned(operator, skew, cluster.serving()), gone, least_s=TIMEOUT_S)
    assert "joined or left" in str(command.status()["obstacles"])
    done = moves(command)
    wait_for_rounds(command, 3)
    assert moves(command) == done
    cluster.start_broker(victim)
    cluster.wait_for_broker(victim)
    eventually_sync(lambda: command.status()["brokers"] == len(cluster.brokers), "it is back", least_s=TIMEOUT_S)
    reported.wait_until_flowing()


def all_owned(operator: Operator, skew: Skew, brokers: list[Broker]) -> bool:
    owners = operator.owners(skew.namespace)
    return len(owners) == skew.bundles and set(owners.values()) <= {each.name for each in brokers}


def test_one_of_two_processes_acts_and_the_other_takes_over(
    operator: Operator, skew: Skew, reported: RunningLoad, start: Start
) -> None:
    first = start(movesPerRound=1)
    eventually_sync(lambda: has_led(first), "one leads", least_s=TIMEOUT_S)
    second = start()
    eventually_sync(lambda: moves(first), "a move of the first", least_s=TIMEOUT_S)
    wait_for_rounds(first, 1)
    assert not has_led(second)
    assert not planned(second)
    assert not moves(second)
    first.kill()
    eventually_sync(lambda: has_led(second), "the second leads", least_s=TIMEOUT_S)
    eventually_sync(lambda: moves(second), "a move of the second", least_s=LEVELLING_S)
    assert {epoch for _, epoch in moves(first)}.isdisjoint(epoch for _, epoch in moves(second))
    wait_until_level(second, operator, skew)
    reported.wait_until_flowing()


def test_move_of_a_killed_process_is_finished_by_the_next(
    cluster: PulsarCluster,
    operator: Operator,
    skew: Skew,
    skewed: RunningLoad,
    start: Start,
    zookeeper: EmbeddedZooKeeper,
    chroot: str,
) -> None:
    command = start(overrides=NO_SHEDDING)
    wait_until_acting(command)
    with connect(f"{zookeeper.connect_string}{chroot}") as store:
        orders = order_moves(command, cluster, operator, skew)
        moving = next(bundle for bundle, answer in orders if is_in_progress(store, bundle, answer))
        command.kill()
    next_one = start(overrides=NO_SHEDDING)
    wait_until_acting(next_one)
    assert re.search(rf"move_recovered +bundle={moving}", next_one.log())
    eventually_sync(lambda: all_owned(operator, skew, cluster.serving()), "every bundle is owned", least_s=TIMEOUT_S)
    skewed.wait_until_flowing()


def order_moves(
    command: PulsarCommand, cluster: PulsarCluster, operator: Operator, skew: Skew
) -> Iterator[tuple[str, Future[Any]]]:
    """Order the move of each bundle of the first broker to the second one; yield it with the answer to come."""
    source, destination = cluster.brokers[:2]
    with ThreadPoolExecutor(1) as thread:
        for each in [each for each, owner in operator.owners(skew.namespace).items() if owner == source.name]:
            move = {"bundle": f"{skew.namespace}/{each}", "destination": destination.name}
            plan = command.post("/loadbalance/v1/plans", {"kind": "moves", "moves": [move]})
            yield move["bundle"], thread.submit(command.post, f"/loadbalance/v1/plans/{plan['hash']}/execute")


def is_in_progress(store: Any, bundle: str, answer: Future[Any]) -> bool:  # noqa: ANN401 - kazoo has no types
    """Wait for the record of a move; return False if the move has ended before it was seen."""
    while not answer.done():
        with contextlib.suppress(NoNodeError):
            if bundle in decode_move_history(store.get(PULSAR_MOVES)[0], PULSAR_MOVES).in_progress:
                return True
    return False


def test_no_message_is_lost(load: RunningLoad) -> None:
    """The last of this file: whatever was done above."""
    outcome = load.finish()
    assert outcome["acknowledged"] > 1_000
    assert (outcome["lost"], outcome["refused"]) == (0, 0)
    assert outcome["received"] == outcome["sent"]
