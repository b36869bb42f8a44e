"""Golden traces of the protocol: a file of commands and all resulting messages, as plain text.

A file has a comment, commands, a rule, and the output. Runs are deterministic: messages have equal latency, clocks
agree, and callbacks run in order of readiness. Lines of one millisecond are sorted by process, so they do not depend on
the steps of an event loop. `traces/README.md` explains commands and lines.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog
from aiohttp import web
from protocol.network import Message
from protocol.parties import Party, current_party
from protocol.schedules import DO, Step, kill, live, stop
from protocol.world import NAMESPACE, Shape, World

from loadmanager.core.domain.names import NamespaceName, TopicName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.errors import TransactionFailedError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Check, Create, Op, Put, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.http_bodies import (
    BUNDLE_VERSION_HEADER,
    DESTINATION_HEADER,
    EPOCH_HEADER,
    INCARNATION_HEADER,
    OWNER_HEADER,
)
from loadmanager.wire.store_records import decode_namespace

RULE = "-" * 79
_ANSWERED_S = 40.0
_SET_UP_S = 30.0

_FACTS = (
    *("state", "owned", "isLeader", "owner", "brokerId", "incarnation", "destination", "version", "epoch"),
    *("validForMs", "bundles", "bundle", "topics", "waitMs", "reason", "forS"),
)
"""Fields of bodies that traces show."""
_RECURRING = {
    "leases": ("broker", "/loadmanager/v1/lease"),
    "statistics": ("agent", "/loadmanager/v1/stats"),
    "bundles": ("agent", f"/admin/v2/namespaces/{NAMESPACE}"),
    "probes": ("node", "/loadbalance/v1/term"),
}
"""Periodic requests, hidden unless shown by this word: client and path."""
_SET_UP = {paths.ROOT, *paths.PERSISTENT_PARENTS}
"""Parents of all other znodes, created once."""
_RECORDS = (paths.BROKERS, paths.BUNDLE_DATA, paths.BROKER_TIME_AVERAGE, paths.STRATEGY_STATE)
"""Znodes written periodically, with loads."""
_LOGGED = {
    "elected": "leads now, with epoch {epoch}",
    "stepped_down": "leads no more: {reason}",
    "leader_process_ended": "knows that the leader's process has ended",
    "leader_suspected": "has not heard the leader: asks it through ZooKeeper",
    "leader_silent": "has not heard the leader for {silent_s} s, not through ZooKeeper either",
    "leader_has_zookeeper": "leaves the leader in office: it has ZooKeeper",
}
"""Log events of nodes that explain later messages."""


class Even(random.Random):
    """A deterministic generator: always the middle, or the first choice."""

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2

    def choice(self, seq: Sequence[Any]) -> Any:  # type: ignore[override]  # noqa: ANN401 - random's
        return seq[0]


def retrace(text: str) -> str:
    """Return the file with the current output of its commands. Raises `ValueError` for an unknown command."""
    head, _, _ = text.partition(RULE)
    commands = [line for line in head.splitlines() if line and not line.startswith("#")]
    recorders: list[Recorder] = []

    async def main(world: World) -> None:
        recorder = Recorder(world)
        recorders.append(recorder)
        for command in commands[1:]:
            await recorder.do(command)
        recorder.state()

    world = live(1, _shape(commands[0]), main, Even)
    output = [*recorders[0].lines, *(f"VIOLATION: {each}" for each in world.violations)]
    return "\n".join([head.rstrip("\n"), "", RULE, *output, ""])


def _shape(command: str) -> Shape:
    """`cluster nodes=2 brokers=2 bundles=2 topics=3`."""
    name, *sizes = command.split()
    if name != "cluster":
        raise ValueError(f"{command!r}: the first command is `cluster`")
    given: dict[str, Any] = {key: int(value) for key, _, value in (each.partition("=") for each in sizes)}
    return Shape(**given)


@dataclass
class Recorder:
    """Executes commands and records the output in `lines`."""

    world: World
    lines: list[str] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    _begun_s: float = 0.0
    _noted: list[tuple[int, str, str]] = field(default_factory=list)
    _incarnations: dict[int, str] = field(default_factory=dict)
    _lives: Counter[str] = field(default_factory=Counter)
    _namespaces: dict[str, NamespaceState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        world = self.world
        world.network.slow_share = world.zookeeper.slow_share = 0.0
        world.network.on_message.append(self._message)
        world.zookeeper.on_commit.append(self._committed)
        world.zookeeper.on_refusal.append(self._refused)
        world.zookeeper.on_set_back.append(self._set_back)
        world.served.on_event = self._served
        structlog.configure(
            processors=[self._logged], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG)
        )

    async def do(self, command: str) -> None:
        name, *words = command.split()
        if name not in COMMANDS:
            raise ValueError(f"{command!r}: expected one of {', '.join(COMMANDS)}")
        self.flush()
        self.lines += ["", f"> {command}"]
        await COMMANDS[name](self, words)
        self.flush()

    def begin(self) -> None:
        """Start recording and counting time."""
        self._noted.clear()
        self._begun_s = self.world.loop.now_s
        self.state()

    def state(self) -> None:
        """Leader, registrations, owners and served topics."""
        self.flush()
        world = self.world
        leaders = [each.name for each in world.of("node") if each.is_up and each.node and each.node.is_leading]
        epoch = world.zookeeper.znodes[paths.EPOCH].version
        registered = [self._incarnations[each] for each in sorted(world.records.registered.values())]
        self.lines += [
            "",
            f"  leading: {', '.join(leaders) or 'nobody'}; epoch {epoch}",
            f"  registered: {', '.join(sorted(registered)) or 'nobody'}",
            *self._bundles(),
        ]

    def _bundles(self) -> Iterator[str]:
        for state in self.world.records.namespaces.values():
            for index, ownership in enumerate(state.ownerships):
                topics = [topic for topic in self.world.topics if state.bundles.index_of_topic(topic) == index]
                yield f"  {state.bundles.range_at(index)}: {self._text(ownership)}"
                for topic in topics:
                    serving = " and ".join(_name(each) for each in self.world.served.serving(topic)) or "nobody"
                    yield f"      {_short(topic)} is served by {serving}"

    def flush(self) -> None:
        for at_ms, source, text in sorted(self._noted, key=lambda each: each[:2]):
            self.lines.append(f"{at_ms / 1000:8.2f}  {source:<9} {text}".rstrip())
        self._noted.clear()

    def note(self, source: str, text: str) -> None:
        self._noted.append((round((self.world.loop.now_s - self._begun_s) * 1000), source, text))

    # What happens

    def _message(self, message: Message) -> None:
        if self._is_hidden(message):
            return
        client, server = _name(message.client.name), _name(message.server)
        request = f"{message.method} {_path(message)}"
        if message.failure:
            self.note(client, f"✗ {server:<9} {request}: {message.failure}")
        elif message.response is None:
            self.note(client, f"→ {server:<9} {request}{self._fence(message.headers)}{self._facts(message.body)}")
        else:
            body = message.response.body if isinstance(message.response, web.Response) else b""
            facts = self._facts(body if isinstance(body, bytes) else b"")
            self.note(server, f"→ {client:<9} {message.response.status}{facts}")

    def _is_hidden(self, message: Message) -> bool:
        kinds = set(_RECURRING) - self.shown
        return any(
            message.client.name.startswith(client) and message.url.path == path
            for client, path in (_RECURRING[kind] for kind in kinds)
        )

    def _fence(self, headers: Mapping[str, str]) -> str:
        """Fencing headers of an unload."""
        if BUNDLE_VERSION_HEADER not in headers:
            return ""
        owner = self._incarnations.get(int(headers[INCARNATION_HEADER]), headers[OWNER_HEADER])
        destination = f", for {headers[DESTINATION_HEADER]}" if DESTINATION_HEADER in headers else ""
        return f" [epoch {headers[EPOCH_HEADER]}, version {headers[BUNDLE_VERSION_HEADER]} of {owner}{destination}]"

    def _facts(self, body: bytes) -> str:
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError:
            return ""
        if not isinstance(found, dict):
            return ""
        return "".join(f" {key}={self._fact(key, found[key])}" for key in _FACTS if found.get(key) is not None)

    def _fact(self, key: str, value: Any) -> str:  # noqa: ANN401 - of JSON
        match value:
            case int() if key == "incarnation":
                return self._incarnations.get(value, str(value))
            case {"boundaries": [*boundaries]}:
                return str(len(boundaries) - 1)
            case dict():
                return orjson.dumps(value).decode()
            case list():
                names = [each["topic"] if isinstance(each, dict) else each for each in value]
                return ",".join(_without_namespace(str(each)) for each in names)
            case bool():
                return str(value).lower()
            case _:
                text = re.sub(r"\S+ \(incarnation (\d+)\)", self._life_in_text, str(value))
                return _without_namespace(text)

    def _life_in_text(self, found: re.Match[str]) -> str:
        return self._incarnations.get(int(found[1]), found[0])

    def _committed(self, session: int, ops: Sequence[Op], changes: Mapping[str, Znode | None]) -> None:
        client = _name(self.world.zookeeper.clients[session].name)
        for path, znode in changes.items():
            if path.startswith(f"{paths.BROKERS}/") and znode is not None and znode.czxid not in self._incarnations:
                broker = path.rpartition("/")[2].partition(":")[0]
                self._lives[broker] += 1
                self._incarnations[znode.czxid] = f"{broker}#{self._lives[broker]}"
        if not ops:
            self.note("zookeeper", f"the session of {client} is over")
            for path in changes:
                self.note("zookeeper", f"  {path} goes with it")
        elif texts := [text for op in ops for text in self._op(op, changes)]:
            self._write(client, texts)
        for op in ops:
            self._namespace_written(op)

    def _refused(self, party: Party, ops: Sequence[Op], error: TransactionFailedError) -> None:
        if error.path in _SET_UP and error.cause == "node_exists":
            return
        texts = [text for op in ops for text in self._op(op, {})]
        self._write(_name(party.name), texts)
        self.note("zookeeper", f"→ {_name(party.name):<9} refused: {error.path}: {error.cause}")

    def _set_back(self, _: Mapping[str, Znode]) -> None:
        self.note("zookeeper", "is back, with what was saved")
        self._namespaces = dict(self.world.records.namespaces)

    def _write(self, client: str, texts: Sequence[str]) -> None:
        """Record a write, unless it only checks versions."""
        if all(text.startswith("if ") for text in texts):
            return
        self.note(client, f"→ zookeeper {texts[0]}")
        for text in texts[1:]:
            self.note(client, f"            {text}")

    def _op(self, op: Op, changes: Mapping[str, Znode | None]) -> Iterator[str]:
        path = op.path
        match op:
            case Check(paths.EPOCH, version):
                yield f"if the epoch is {version}:"
            case Put(paths.EPOCH, _, version):
                yield f"raise the epoch from {version}"
            case Put() if path.startswith(_RECORDS):
                pass
            case Create() if path in _SET_UP or path.startswith((paths.BUNDLE_DATA, paths.STRATEGY_STATE)):
                pass
            case Create() if path.startswith(f"{paths.BROKERS}/"):
                znode = changes.get(path)
                yield f"create {path}{f' ({self._incarnations[znode.czxid]})' if znode is not None else ''}"
            case Create() | Put() if path.startswith(f"{paths.NAMESPACES}/") and op.data:
                yield f"{'create' if isinstance(op, Create) else 'set'} {path}"
                yield from self._differences(op)
            case Check():
                yield f"if {path} is as it was read:"
            case _:
                yield f"{type(op).__name__.lower().replace('put', 'set')} {path}"

    def _differences(self, op: Create | Put) -> Iterator[str]:
        after = _namespace(op)
        before = self._namespaces.get(str(after.name))
        was = {} if before is None else dict(zip(before.bundle_names(), before.ownerships, strict=True))
        for name, now in zip(after.bundle_names(), after.ownerships, strict=True):
            if was.get(name) != now:
                yield f"  {name.rpartition('/')[2]}: {self._text(now)}"

    def _namespace_written(self, op: Op) -> None:
        if op.path.startswith(f"{paths.NAMESPACES}/") and isinstance(op, Create | Put) and op.data:
            after = _namespace(op)
            self._namespaces[str(after.name)] = after

    def _text(self, ownership: Ownership) -> str:
        owner = "" if ownership.owner is None else f" by {self._life(ownership.owner)}"
        destination = ""
        if ownership.state is OwnershipState.RELEASING:
            destination = f" for {self._life(ownership.destination) if ownership.destination else 'nobody'}"
        reason = f" ({ownership.reason})" if ownership.reason else ""
        return f"{ownership.state}{owner}{destination}, version {ownership.version}{reason}"

    def _life(self, life: Registration) -> str:
        return self._incarnations.get(life.incarnation, str(life))

    def _served(self, record: Mapping[str, Any]) -> None:
        if record["event"] in {"opened", "closed"}:
            reason = f": {record['reason']}" if "reason" in record else ""
            self.note(_name(record["instance"]), f"{record['event']} {_short(record['topic'])}{reason}")

    def _logged(self, _logger: object, _method: str, event: Mapping[str, Any]) -> Any:  # noqa: ANN401 - structlog's
        party, text = current_party(), _LOGGED.get(event["event"])
        if party is not None and text is not None:
            self.note(_name(party.name), text.format(**event))
        raise structlog.DropEvent


def _namespace(op: Create | Put) -> NamespaceState:
    name = NamespaceName.parse(op.path.removeprefix(f"{paths.NAMESPACES}/"))
    return decode_namespace(name, decode(op.data, op.path), op.path)


def _name(party: str) -> str:
    """Process name without the number of its restart; others are clients or operators."""
    return "client" if party == "people" else party.rpartition(".")[0] or party


def _short(topic: str) -> str:
    return TopicName.parse(topic).local_name


def _path(message: Message) -> str:
    return _without_namespace(message.url.path_qs)


def _without_namespace(text: str) -> str:
    return text.replace(f"persistent://{NAMESPACE}/", "")


# Commands

Command = Callable[[Recorder, list[str]], Awaitable[None]]


async def _begin(recorder: Recorder, words: list[str]) -> None:
    """Start all processes, `node-0` first so that it leads; create the namespace, and use every topic unless `idle`."""
    world = recorder.world
    for name in world.processes:
        world.start(name)
        await world.wait_until(lambda: world.records.has_leader, _SET_UP_S)
    await world.wait_until(lambda: len(world.records.registered) == world.shape.brokers, _SET_UP_S)
    await _create(recorder, [])
    if words != ["idle"]:
        await _use(recorder, [_short(topic) for topic in world.topics])
    await world.wait(2.0)
    recorder.begin()


async def _create(recorder: Recorder, _: list[str]) -> None:
    bundles = orjson.dumps({"bundles": {"numBundles": recorder.world.shape.bundles}}).decode()
    await _ask(recorder, ["node-0", "PUT", f"/admin/v2/namespaces/{NAMESPACE}", bundles])


async def _start(recorder: Recorder, names: list[str]) -> None:
    for name in names:
        recorder.world.start(name)


def _each(act: Callable[[World, str], None]) -> Command:
    async def do(recorder: Recorder, names: list[str]) -> None:
        for name in names:
            act(recorder.world, name)

    return do


def _step(what: str) -> Command:
    return _each(lambda world, name: DO[what](world, Step(0.0, what, name)))


def _on_machine(what: str) -> Command:
    return _each(lambda world, name: DO[what](world, Step(0.0, what, world.processes[name].host)))


async def _use(recorder: Recorder, topics: list[str]) -> None:
    for topic in topics:
        recorder.world.use(f"persistent://{NAMESPACE}/{topic}", recorder.world.shape.nodes - 1)
        await _answered(recorder)


async def _ask(recorder: Recorder, words: list[str]) -> None:
    await _send(recorder, words)
    await _answered(recorder)


async def _send(recorder: Recorder, words: list[str]) -> None:
    """Send a request without waiting for the answer."""
    node, method, path, *body = words
    url = f"{recorder.world.node_url(int(node.removeprefix('node-')))}{path}"
    recorder.world.ask(method, url, orjson.loads("".join(body)) if body else None)


async def _answered(recorder: Recorder) -> None:
    """Wait until all requests are answered."""
    world = recorder.world
    await asyncio.sleep(0.001)
    await world.wait_until(lambda: not world.unanswered, _ANSWERED_S)


async def _wait(recorder: Recorder, words: list[str]) -> None:
    await recorder.world.wait(float(words[0]))


def _hosts(recorder: Recorder, names: list[str]) -> list[str]:
    processes = recorder.world.processes
    return [processes[name].host if name in processes else name for name in names]


async def _cut(recorder: Recorder, words: list[str]) -> None:
    """Cut the hosts of two processes, or of a process and zookeeper."""
    world, (first, second) = recorder.world, _hosts(recorder, words)
    if second == "zookeeper":
        world.zookeeper.cut(first)
    else:
        world.network.cuts |= {(first, second), (second, first)}


async def _reject(recorder: Recorder, words: list[str]) -> None:
    first, second = _hosts(recorder, words)
    recorder.world.network.rejects |= {(first, second), (second, first)}


async def _mend(recorder: Recorder, _: list[str]) -> None:
    world = recorder.world
    world.network.cuts.clear()
    world.network.rejects.clear()
    for host in list(world.zookeeper.cut_hosts):
        world.zookeeper.heal(host)


async def _save(recorder: Recorder, _: list[str]) -> None:
    recorder.world.zookeeper.save()


async def _set_back(recorder: Recorder, words: list[str]) -> None:
    recorder.world.zookeeper.set_back(float(words[0]))


async def _show(recorder: Recorder, words: list[str]) -> None:
    recorder.shown |= set(words)


async def _hide(recorder: Recorder, words: list[str]) -> None:
    recorder.shown -= set(words)


async def _state(recorder: Recorder, _: list[str]) -> None:
    recorder.state()


COMMANDS: dict[str, Command] = {
    "begin": _begin,
    "start": _start,
    "create-namespace": _create,
    "use": _use,
    "ask": _ask,
    "send": _send,
    "wait": _wait,
    "kill": _each(kill),
    "stop": _each(stop),
    "pause": _step("pause"),
    "resume": _step("resume"),
    "freeze": _on_machine("freeze the machine"),
    "thaw": _on_machine("thaw the machine"),
    "cut": _cut,
    "reject": _reject,
    "mend": _mend,
    "save-zookeeper": _save,
    "set-zookeeper-back": _set_back,
    "show": _show,
    "hide": _hide,
    "state": _state,
}
