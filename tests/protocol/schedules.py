"""A schedule: timed faults and operator actions in a cluster, drawn from a seed; can be run and shrunk.

    start, a namespace, clients ──▶ the steps, with pauses between them ──▶ everything is mended ──▶ it heals, in time

Invariants are checked after each step and at each change of a record or of a served topic (`brokers`, `records`). Once
all faults are repaired, every topic is served (also to lookup clients), every request answered, and no move under way.
Operator settings stay. One broker is never drained, so that one can always serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import warnings
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from unittest.mock import patch

import orjson
from aiohttp import web_app
from protocol.command_answers import Manner
from protocol.parties import Party, StuckError, VirtualLoop
from protocol.world import AGENT_PORT, BROKER_PORT, DRIFT, NAMESPACE, Shape, World, in_virtual_time

from loadmanager.core.domain.ownership import Ownership
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.store.store_session import LEASE_RATIO

_SETTLE_S = 60.0
_ANSWER_S = 25.0
_TRY_EVERY = 40
_CREATE_AGAIN_S = 0.2
_PAUSES_S = (0.01, 0.1, 0.5, 1.5)
_CLOSES_S = (0.0, 0.0, 0.0, 0.05, 1.0, 3.0)
"""Durations of closing a topic; the last is longer than one attempt at an unload."""
_LONG_PAUSES = 1.2
"""Multiple of the nodes' session timeout."""
_AVAILABLE_IN = 4
"""One schedule in so many has an available namespace: open topics outlast leases."""
_SESSIONS_S = ((6.0, 6.0), (10.0, 2.7))
"""Session timeouts of nodes and agents: equal ones, and the defaults."""
_STUTTERS = ((0.02, 0.05), (0.02, 0.5), (0.002, 3.0), (0.0005, 12.0))
"""Slowness of processes: the share of callbacks followed by a halt, and the longest halt in seconds."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action after a pause, on `target` if it has one; `number` is drawn."""

    pause_s: float
    what: str
    target: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.what} {self.target} [{self.number}]".replace("  ", " ")


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    shape: Shape
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a schedule: `violations` is empty if all invariants held."""

    violations: tuple[str, ...]
    messages: int
    duration_s: float
    transitions: int
    states: frozenset[int]
    story: tuple[str, ...]


def _on_process(act: Callable[[World, str], None], *, up: bool) -> Callable[[World, Step], None]:
    def do(world: World, step: Step) -> None:
        if world.processes[step.target].is_up == up:
            act(world, step.target)

    return do


def kill(world: World, name: str) -> None:
    party = world.processes[name].party
    assert party is not None
    world.loop.kill(party)


def stop(world: World, name: str) -> None:
    stop = world.processes[name].stop
    if stop is not None:
        party = world.processes[name].party
        assert party is not None
        world.loop.as_party(party, 0.0, stop.set)


def _pause(world: World, name: str) -> None:
    party = world.processes[name].party
    assert party is not None
    world.loop.pause(party)


def _freeze(world: World, step: Step) -> None:
    """Suspend a machine together with the clocks that do not count suspensions."""
    for party in _on_machine(world, step.target):
        world.loop.freeze(party)


def _thaw(world: World, step: Step) -> None:
    for party in _on_machine(world, step.target):
        world.loop.resume(party)


def _on_machine(world: World, host: str) -> list[Party]:
    parties = [process.party for process in world.processes.values() if process.host == host]
    return [party for party in parties if party is not None and not party.is_dead]


def _slow_down(world: World, step: Step) -> None:
    """Let a process halt at random between callbacks; every other time, make it fast again."""
    party = world.processes[step.target].party
    if party is not None:
        party.stutter = _STUTTERS[step.number // 2 % len(_STUTTERS)] if step.number % 2 else None


def _resume(world: World, name: str) -> None:
    party = world.processes[name].party
    assert party is not None
    world.loop.resume(party)


def _cut(world: World, step: Step) -> None:
    """Cut the link from one host to another; every other time in both directions."""
    hosts = world.hosts
    other = hosts[step.number % len(hosts)]
    world.network.cuts.add((step.target, other))
    if step.number % 2:
        world.network.cuts.add((other, step.target))


def _reject(world: World, step: Step) -> None:
    """Refuse connections from one host to another; every other time in both directions."""
    hosts = world.hosts
    other = hosts[step.number % len(hosts)]
    if other != step.target:
        world.network.rejects.add((step.target, other))
        if step.number % 2:
            world.network.rejects.add((other, step.target))


def _mend_network(world: World, _: Step) -> None:
    world.network.cuts.clear()
    world.network.rejects.clear()


def _limit_znodes(world: World, step: Step) -> None:
    """Limit the size of znodes, so that larger records are refused. Every third time, lift the limit."""
    world.zookeeper.most_bytes = 300 + step.number if step.number % 3 else None


def _lag(world: World, step: Step) -> None:
    followers = world.zookeeper.followers
    followers[step.number % len(followers)].lag_s = (step.number % 7) * 0.3


def _break_connections(world: World, step: Step) -> None:
    for connection in list(world.zookeeper.followers[step.number % 3].connections):
        connection.end()


def _set_back(world: World, step: Step) -> None:
    """Restore older data of ZooKeeper, once all earlier leases lapsed: see `zookeeper`."""
    longest_s = max(world.shape.node_session_s, world.shape.agent_session_s)
    world.zookeeper.set_back((LEASE_RATIO * (1 + DRIFT) + step.number % 7 / 4) * longest_s)


def _behave(world: World, step: Step) -> None:
    """Change how one agent answers commands, until it restarts."""
    agent = world.network.servers.get(f"b{step.number % world.shape.brokers}:{AGENT_PORT}")
    if agent is not None:
        agent.manner = list(Manner)[step.number // 3 % len(Manner)]


def _use(world: World, step: Step) -> None:
    world.use(world.topics[step.number % len(world.topics)], step.number // 7)


def _use_as_client(world: World, step: Step) -> None:
    world.use_as_client(world.topics[step.number % len(world.topics)], "client-0")


def _bundle(world: World, number: int) -> str | None:
    state = world.records.namespaces.get(NAMESPACE)
    return None if state is None else str(state.bundles.range_at(number % len(state.bundles)))


def _on_bundle(verb: str, query: Callable[[World, Step], str] = lambda *_: "") -> Callable[[World, Step], None]:
    def do(world: World, step: Step) -> None:
        bundle = _bundle(world, step.number)
        if bundle is not None:
            url = f"{world.node_url(step.number // 5)}/admin/v2/namespaces/{NAMESPACE}/{bundle}/{verb}"
            world.ask("PUT", url + query(world, step))

    return do


def _destination(world: World, step: Step) -> str:
    return f"?destinationBroker=b{step.number // 3 % world.shape.brokers}:{BROKER_PORT}"


def _manner_of_split(_: World, step: Step) -> str:
    algorithm = ("range_equally_divide", "topic_count_equally_divide")[step.number // 3 % 2]
    return f"?splitAlgorithmName={algorithm}&unload={'true' if step.number // 2 % 2 else 'false'}"


def _broker(world: World, number: int) -> str:
    return f"b{number % world.shape.brokers}:{BROKER_PORT}"


def _ours(world: World, step: Step, path: str) -> str:
    return f"{world.node_url(step.number // 11)}/loadbalance/v1/{path}"


def _drain(world: World, step: Step) -> None:
    """Drain any broker but the first, which is left to serve."""
    method = "DELETE" if step.number % 3 == 0 else "PUT"
    broker = _broker(world, 1 + step.number % (world.shape.brokers - 1))
    world.ask(method, _ours(world, step, f"brokers/{broker}/drain"))


def _hold_off(world: World, step: Step) -> None:
    """Hold off any broker. Every third time, exclude one instead, or include it again; the first always stays."""
    if step.number % 3:
        url = _ours(world, step, f"brokers/{_broker(world, step.number)}/hold-off")
        world.ask("PUT", url, {"forS": 1 + step.number % 9})
    else:
        broker = _broker(world, 1 + step.number % (world.shape.brokers - 1))
        world.ask("DELETE" if step.number % 4 == 0 else "PUT", _ours(world, step, f"brokers/{broker}/exclusion"))


def _freeze_balancing(world: World, step: Step) -> None:
    """Freeze all balancing, or a bundle of it; or thaw it."""
    method, body = ("DELETE", None) if step.number % 2 else ("PUT", {"reason": "somebody is looking"})
    bundle = _bundle(world, step.number) if step.number % 3 == 0 else None
    path = "freeze" if bundle is None else f"bundles/{NAMESPACE}/{bundle}/freeze"
    world.ask(method, _ours(world, step, path), body)


def _merge(world: World, step: Step) -> None:
    bundle = _bundle(world, step.number)
    if bundle is not None:
        world.ask("POST", _ours(world, step, f"bundles/{NAMESPACE}/{bundle}/merge"), {})


def _cancel(world: World, step: Step) -> None:
    bundle = _bundle(world, step.number)
    if bundle is not None:
        world.ask("DELETE", _ours(world, step, f"bundles/{NAMESPACE}/{bundle}/unload"))


def _pin(world: World, step: Step) -> None:
    """Pin a bundle; every fourth time, unpin it."""
    bundle = _bundle(world, step.number)
    if bundle is not None:
        method, body = ("PUT", {"broker": _broker(world, step.number // 3)}) if step.number % 4 else ("DELETE", None)
        world.ask(method, _ours(world, step, f"bundles/{NAMESPACE}/{bundle}/pin"), body)


def _delete(world: World, step: Step) -> None:
    """Delete the namespace; every other time, create it again with another number of bundles."""
    url = f"{world.node_url(step.number)}/admin/v2/namespaces/{NAMESPACE}"
    made = {"bundles": {"numBundles": 1 + step.number % 5}}
    world.ask(
        "DELETE",
        f"{url}?force={'true' if step.number % 3 else 'false'}",
        then=lambda *_: world.ask("PUT", url, made) if step.number % 2 else None,
    )


_SETTINGS = (
    ("maxConcurrentUnloads", "1"),
    ("maxConcurrentUnloadsPerBroker", "1"),
    ("namespaceBundleUnloadingTimeoutMs", "1500"),
    ("namespaceBundleUnloadingTimeoutMs", "15000"),
    ("namespaceBundleUnloadingTimeoutMs", "1800"),
    ("namespaceBundleUnloadingTimeoutMs", "36000"),
    ("loadBalancerSheddingEnabled", "false"),
    ("loadBalancerSheddingIntervalMinutes", "0.02"),
    ("loadBalancerAutoBundleSplitEnabled", "false"),
    ("maxConcurrentUnloads", "as many as there are"),
)
"""Settings that operators change; the last one is mistyped."""


def _change_a_setting(world: World, step: Step) -> None:
    """Change a setting; every third time, remove it."""
    key, value = _SETTINGS[step.number // 3 % len(_SETTINGS)]
    url = f"{world.node_url(step.number)}/admin/v2/brokers/configuration/{key}"
    world.ask(*(("DELETE", url) if step.number % 3 == 0 else ("POST", f"{url}/{value}")))


def _plan(world: World, step: Step) -> None:
    url = f"{world.node_url(step.number)}/loadbalance/v1/plans"
    broker = f"b{step.number % world.shape.brokers}:{BROKER_PORT}"

    def computed(status: int, body: bytes) -> None:
        if status < 300:
            world.ask("POST", f"{url}/{orjson.loads(body)['hash']}/execute")

    world.ask("POST", url, {"kind": "drain", "broker": broker}, then=computed)


DO: dict[str, Callable[[World, Step], None]] = {
    "kill": _on_process(kill, up=True),
    "stop": _on_process(stop, up=True),
    "pause": _on_process(_pause, up=True),
    "resume": _on_process(_resume, up=True),
    "start": _on_process(World.start, up=False),
    "slow down": _slow_down,
    "freeze the machine": _freeze,
    "thaw the machine": _thaw,
    "cut network": _cut,
    "reject connections": _reject,
    "mend network": _mend_network,
    "break connections": lambda world, step: world.network.break_connections(step.target),
    "cut off from ZooKeeper": lambda world, step: world.zookeeper.cut(step.target),
    "mend ZooKeeper's network": lambda world, step: world.zookeeper.heal(step.target),
    "stop ZooKeeper": lambda world, _: world.zookeeper.stop(),
    "let ZooKeeper go on": lambda world, _: world.zookeeper.go_on(),
    "save ZooKeeper's data": lambda world, _: world.zookeeper.save(),
    "set ZooKeeper back": _set_back,
    "let a follower lag": _lag,
    "break connections to ZooKeeper": _break_connections,
    "behave": _behave,
    "let records be too large": _limit_znodes,
    "use a topic": _use,
    "use a topic as a client": _use_as_client,
    "unload": _on_bundle("unload"),
    "transfer": _on_bundle("unload", _destination),
    "split": _on_bundle("split", _manner_of_split),
    "merge": _merge,
    "cancel an unload": _cancel,
    "pin": _pin,
    "hold off": _hold_off,
    "drain": _drain,
    "freeze balancing": _freeze_balancing,
    "plan": _plan,
    "change a setting": _change_a_setting,
    "delete the namespace": _delete,
}
"""Steps of a schedule, by name."""

_WEIGHTS = {
    "use a topic": 14,
    "unload": 5,
    "transfer": 6,
    "split": 2,
    "merge": 2,
    "cancel an unload": 2,
    "pin": 1,
    "hold off": 1,
    "drain": 2,
    "plan": 1,
    "change a setting": 2,
    "freeze balancing": 1,
    "use a topic as a client": 5,
    "kill": 3,
    "stop": 1,
    "start": 6,
    "pause": 4,
    "resume": 7,
    "slow down": 3,
    "freeze the machine": 2,
    "thaw the machine": 3,
    "cut network": 3,
    "reject connections": 2,
    "mend network": 3,
    "break connections": 2,
    "behave": 2,
    "cut off from ZooKeeper": 3,
    "mend ZooKeeper's network": 4,
    "stop ZooKeeper": 1,
    "let ZooKeeper go on": 3,
    "save ZooKeeper's data": 1,
    "set ZooKeeper back": 0.3,
    "let a follower lag": 2,
    "let records be too large": 1,
    "break connections to ZooKeeper": 2,
}
_OF_PROCESSES = frozenset({"kill", "stop", "start", "pause", "resume", "slow down"})
_OF_HOSTS = frozenset(
    {
        "cut network",
        "reject connections",
        "break connections",
        "cut off from ZooKeeper",
        "mend ZooKeeper's network",
        "freeze the machine",
        "thaw the machine",
    }
)


def draw(seed: int, steps: int = 40) -> Schedule:
    """Draw the schedule of a seed."""
    rng = random.Random(seed)
    size = rng.randint(1, 3), rng.randint(2, 3), rng.choice((1, 2, 4)), rng.randint(2, 5)
    node_session_s, agent_session_s = rng.choice(_SESSIONS_S)
    shape = Shape(
        *size,
        clients=1,
        node_session_s=node_session_s,
        agent_session_s=agent_session_s,
        available=seed % _AVAILABLE_IN == 0,
    )
    processes = [f"node-{n}" for n in range(shape.nodes)]
    processes += [f"{kind}-{n}" for n in range(shape.brokers) for kind in ("agent", "broker")]
    hosts = [f"n{n}" for n in range(shape.nodes)] + [f"b{n}" for n in range(shape.brokers)]
    names, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    drawn = []
    for what in rng.choices(names, weights, k=steps):
        target = rng.choice(processes) if what in _OF_PROCESSES else rng.choice(hosts) if what in _OF_HOSTS else ""
        is_long = rng.random() < 0.05
        pause_s = _LONG_PAUSES * node_session_s if is_long else rng.uniform(0.0, rng.choice(_PAUSES_S))
        drawn.append(Step(round(pause_s, 3), what, target, rng.randrange(1_000)))
    _draw_deletions(rng, drawn)
    return Schedule(seed, shape, tuple(drawn))


def _draw_deletions(rng: random.Random, drawn: list[Step]) -> None:
    """Add deletions of the namespace to every third schedule; the others stay unchanged."""
    for _ in range(rng.choice((0, 0, 0, 0, 1, 4))):
        at = rng.randrange(len(drawn) + 1)
        drawn.insert(at, Step(0.0, "delete the namespace", number=rng.randrange(1_000)))


def run(schedule: Schedule) -> Outcome:
    """Run a schedule."""
    world = live(schedule.seed, schedule.shape, lambda world: _play(world, schedule.steps))
    return Outcome(
        tuple(world.violations),
        world.messages,
        world.loop.now_s,
        world.records.transitions,
        frozenset(world.states.seen),
        tuple(world.story),
    )


def live(
    seed: int,
    shape: Shape,
    main: Callable[[World], Coroutine[None, None, None]],
    chance: Callable[[int], random.Random] = random.Random,
) -> World:
    """Run `main` in a new world and return it; `chance` makes the generators of the simulation."""
    loop = VirtualLoop(chance(seed ^ 0x5EED))
    world = World(seed, shape, loop, chance)
    asyncio.set_event_loop(loop)
    try:
        with in_virtual_time(loop, world.network, world.kernels):
            try:
                loop.run_until_complete(main(world))
            except StuckError as error:
                world.failures.append(str(error))
            finally:
                _leave_behind(loop)
    finally:
        asyncio.set_event_loop(None)
    return world


async def _play(world: World, steps: Sequence[Step]) -> None:
    slow = world.network.slow_share, world.zookeeper.slow_share
    calm(world)
    await begin(world)
    world.network.slow_share, world.zookeeper.slow_share = slow
    world.served.closes_s = _CLOSES_S
    for step in steps:
        await world.wait(step.pause_s)
        if world.violations:
            return
        world.tell(f"— {step}")
        DO[step.what](world, step)
    _mend(world)
    await world.wait_until(lambda: not world.zookeeper.is_stopped, _SETTLE_S)
    await _create_namespace(world)
    await _expect_answers(world)
    await _expect_health(world)
    await _expect_owners_let_go(world)
    await _expect_answers(world)
    await _lift_controls(world)


async def begin(world: World) -> None:
    for name in world.processes:
        world.start(name)
    await _create_namespace(world)
    for number, topic in enumerate(world.topics):
        world.use(topic, number)


async def _create_namespace(world: World) -> None:
    """Create the namespace if it is missing: ZooKeeper may have lost it."""
    url, made = f"{world.node_url(0)}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": world.shape.bundles}}
    until_s = world.loop.now_s + _SETTLE_S
    await world.wait(_CREATE_AGAIN_S)
    while NAMESPACE not in world.records.namespaces and world.loop.now_s < until_s and not world.violations:
        _restart_ended(world)
        world.ask("PUT", url, made)
        await world.wait_until(lambda: NAMESPACE in world.records.namespaces, _CREATE_AGAIN_S)


def _create_again(world: World, at_s: list[float]) -> None:
    """Create a missing namespace again, once a second: a deletion may end long after its request."""
    if NAMESPACE not in world.records.namespaces and (not at_s or world.loop.now_s - at_s[-1] > 1.0):
        at_s.append(world.loop.now_s)
        url = f"{world.node_url(len(at_s))}/admin/v2/namespaces/{NAMESPACE}"
        world.ask("PUT", url, {"bundles": {"numBundles": world.shape.bundles}})


def calm(world: World) -> None:
    """Switch off slow messages and slow closing of topics."""
    world.network.slow_share = world.zookeeper.slow_share = 0.0
    world.served.closes_s = (0.0,)


def _mend(world: World) -> None:
    calm(world)
    world.tell("— everything is mended")
    _mend_network(world, Step(0.0, "mend network"))
    world.zookeeper.most_bytes = None
    for server in world.network.servers.values():
        server.manner = Manner.OBEYS
    for host in list(world.zookeeper.cut_hosts):
        world.zookeeper.heal(host)
    world.zookeeper.go_on()
    for follower in world.zookeeper.followers:
        follower.lag_s = 0.0
    for name, process in world.processes.items():
        if process.is_up:
            assert process.party is not None
            process.party.stutter = None
            _resume(world, name)
        else:
            world.start(name)


async def _expect_answers(world: World) -> None:
    """Expect an answer to every pending request."""
    waiting = dict(world.unanswered)
    answered = await world.wait_until(lambda: not waiting.keys() & world.unanswered.keys(), _ANSWER_S)
    if not answered and not world.violations:
        world.failures.append(f"never answered: {sorted(waiting.keys() & world.unanswered.keys())}")


async def _lift_controls(world: World) -> None:
    """Expect that operators can lift all drains, with retries."""
    undone: set[str] = set()
    wanted = [("DELETE", f"/loadbalance/v1/brokers/{_broker(world, n)}/drain") for n in range(world.shape.brokers)]
    tries = 0

    def lifted() -> bool:
        nonlocal tries
        tries += 1
        _restart_ended(world)
        if tries % _TRY_EVERY == 1:
            for method, path in wanted:
                if path not in undone:
                    url = world.node_url(tries // _TRY_EVERY) + path
                    world.ask(method, url, then=lambda status, _, path=path: _note(undone, path, status))  # type: ignore[misc]
        return len(undone) == len(wanted)

    if not await world.wait_until(lifted, _SETTLE_S) and not world.violations:
        world.failures.append(f"{_SETTLE_S:g} s after everything was mended no operator can change the controls")


def _note(undone: set[str], path: str, status: int) -> None:
    if status in {200, 204, 404}:
        undone.add(path)


async def _expect_health(world: World) -> None:
    """Expect that every topic is served in time and no bundle is releasing."""
    served: set[tuple[str, bool]] = set()
    wanted = [(topic, by_client) for topic in world.topics for by_client in (False, True)[: 1 + world.shape.clients]]

    def all_served() -> bool:
        for number, each in enumerate(wanted):
            topic, by_client = each
            if not world.served.serving(topic):
                served.discard(each)
            if each not in served and each not in waiting:
                waiting[each] = world.loop.now_s
                if by_client:
                    world.use_as_client(topic, "client-0", then=lambda each=each: served.add(each))  # type: ignore[misc]
                else:
                    world.use(topic, number, then=lambda each=each: served.add(each))  # type: ignore[misc]
        for each in [each for each, at_s in waiting.items() if world.loop.now_s - at_s > 1.0]:
            del waiting[each]
        _create_again(world, created)
        return len(served) == len(wanted) and not world.records.released_at_s

    waiting: dict[tuple[str, bool], float] = {}
    created: list[float] = []
    for name in [name for name, process in world.processes.items() if not process.is_up]:
        world.start(name)
    if not await world.wait_until(lambda: _restart_ended(world) and all_served(), _SETTLE_S) and not world.violations:
        missing = [f"{topic}{' to a client that keeps owners' * by_client}" for topic, by_client in wanted]
        missing = [name for name, each in zip(missing, wanted, strict=True) if each not in served]
        world.failures.append(
            f"{_SETTLE_S:g} s after everything was mended: not served {missing},"
            f" on their way {sorted(world.records.released_at_s)}"
        )


async def _expect_owners_let_go(world: World) -> None:
    """Expect that each owner confirms an unload, at least the second one."""
    owned = {name: ownership for name, ownership in world.records.bundles() if ownership.owner is not None}
    tries = 0

    def all_left() -> bool:
        nonlocal tries
        tries += 1
        _restart_ended(world)
        kept = {name for name, now in world.records.bundles() if name in owned and not _was_left(owned[name], now)}
        for name in owned.keys() - kept:
            del owned[name]
        if tries % _TRY_EVERY == 1:
            for name in owned:
                world.ask("PUT", f"{world.node_url(0)}/admin/v2/namespaces/{name}/unload")
        return not owned

    if not await world.wait_until(all_left, _SETTLE_S) and not world.violations:
        world.failures.append(f"{_SETTLE_S:g} s of asking for it, and not unloaded: {[str(name) for name in owned]}")


def _was_left(before: Ownership, now: Ownership) -> bool:
    """Return true if the bundle left its owner meanwhile; a release and its end add two versions."""
    is_back = now.version >= before.version + 2 and now.reason != OwnershipReason.UNLOAD_FAILED
    return now.owner != before.owner or is_back


def _restart_ended(world: World) -> bool:
    """Restart ended processes, as a service manager does."""
    for name, process in world.processes.items():
        if not process.is_up:
            world.start(name)
    return True


def _leave_behind(loop: VirtualLoop) -> None:
    """Close the tasks of killed processes, all pending ones and those which their ends start; close the loop."""
    loop.is_over = True
    loop.set_exception_handler(lambda *_: None)
    with warnings.catch_warnings(), patch("sys.unraisablehook", lambda _: None):
        warnings.simplefilter("ignore")
        for task in loop.tasks:  # it grows meanwhile
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody waits for it
            with contextlib.suppress(BaseException):  # whatever its end wants to do, there is no world to do it in
                task.get_coro().close()
            for callback, _ in task._callbacks or ():  # close what a task never began
                with contextlib.suppress(BaseException):
                    callback(task)
        loop.close()
    web_app._cached_build_middleware.cache_clear()  # it would keep hundreds of worlds


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Find a minimal failing schedule by leaving out ever smaller parts."""
    size = max(1, len(schedule.steps) // 2)
    while size:
        at = 0
        while at < len(schedule.steps):
            less = replace(schedule, steps=schedule.steps[:at] + schedule.steps[at + size :])
            if fails(less):
                schedule = less
            else:
                at += size
        size //= 2
    return schedule
