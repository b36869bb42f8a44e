"""`loadmanager pulsar` as a process of its own, over a fake Pulsar's REST."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml
from aiohttp import web
from support.fake_pulsar import FakePulsar
from support.processes import ended
from support.servers import LoopbackServer, closed_port
from support.stores import ZooKeeperWorld, read_all_znodes
from support.waiting import eventually, patience
from support.zookeeper import ZooKeeperFactory

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.store.znode_codec import decode
from loadmanager.store.zookeeper_acl import ANYBODY, Access
from loadmanager.store.zookeeper_store import ZooKeeperStore
from loadmanager.wire.pulsar_records import decode_move_history

pytestmark = pytest.mark.zookeeper

COMMAND = "from loadmanager.cli import main; main()"
SWITCHED_OFF = {"loadBalancerSheddingEnabled": "false", "loadBalancerAutoBundleSplitEnabled": "false"}


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("LOADMANAGER_")}


@dataclass(slots=True)
class PulsarCommand:
    """A process that runs, and a client of its HTTP interface."""

    process: Process
    folder: Path
    http: aiohttp.ClientSession
    url: str = ""

    async def is_up(self) -> None:
        """Wait until it has read everything."""
        ready = self.folder / "ready.json"

        def is_there() -> bool:
            assert self.process.returncode is None, (self.folder / "log").read_text()
            return ready.exists()

        await eventually(is_there)
        self.url = orjson.loads(ready.read_bytes())["url"]

    async def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        async with self.http.request(
            method, f"{self.url}{path}", timeout=aiohttp.ClientTimeout(total=patience())
        ) as answer:
            body = await answer.read()
            return answer.status, orjson.loads(body) if body else None

    async def status(self) -> dict[str, Any]:
        code, body = await self.ask("/loadbalance/v1/pulsar")
        assert code == 200, body
        found: dict[str, Any] = body
        return found

    async def decisions(self, kind: str) -> list[dict[str, Any]]:
        _, body = await self.ask("/loadbalance/v1/decisions?limit=500")
        return [each for each in body["decisions"] if each["kind"] == kind]


@contextlib.asynccontextmanager
async def pulsar_process(folder: Path, *arguments: str, **settings: object) -> AsyncIterator[PulsarCommand]:
    """The command, with these options and a configuration file of these keys; killed at the end if it still runs."""
    config = folder / "pulsar.yaml"
    config.write_text(yaml.safe_dump({"webServicePort": 0, **settings}), encoding="utf-8")
    with (folder / "log").open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            COMMAND,
            "pulsar",
            "act" if settings.get("mode") == "act" else "observe",
            *arguments,
            f"--config={config}",
            f"--ready-file={folder / 'ready.json'}",
            stdin=DEVNULL,
            stdout=said,
            stderr=said,
            env=environment(),
            cwd=folder,
        )
    try:
        async with aiohttp.ClientSession() as http:
            yield PulsarCommand(process, folder, http)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def a_pulsar(
    server: EmbeddedZooKeeper,
    chroot: str,
    access: Access = ANYBODY,
    **how: Any,  # noqa: ANN401 - whatever it takes
) -> AsyncIterator[FakePulsar]:
    world = ZooKeeperWorld(server, chroot, session_timeout_s=60.0, access=access)
    async with FakePulsar(world, **how) as pulsar:
        yield pulsar
    await world.close()


async def test_observe_with_one_address_reports_and_changes_nothing(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path
) -> None:
    async with a_pulsar(zookeeper, chroot) as pulsar:
        first, second, third = pulsar.brokers
        bundles = await pulsar.add_namespace("lm/bench", bundles=8, owners=[first.broker_id])
        for bundle in bundles:
            pulsar.load(bundle, 200.0, bytes_each=100 * 1024.0)
        await pulsar.report()
        before = await read_all_znodes(pulsar.operator)
        async with pulsar_process(tmp_path, f"--admin={second.url}") as command:
            await command.is_up()
            assert (await command.ask("/readyz"))[0] == 200
            status = await command.status()
            assert (status["mode"], status["cluster"], status["brokers"], status["bundles"]) == ("observe", "rp", 3, 8)
            assert (status["acting"], status["faults"]) == (False, {})
            assert any("mode is observe" in obstacle for obstacle in status["obstacles"])

            async def has_planned() -> bool:
                return bool(await command.decisions("would_unload"))

            await eventually(has_planned)
            assert {asked.method for asked in pulsar.asked} == {"GET"}
            assert await read_all_znodes(pulsar.operator) == before

            await pulsar.move(bundles[0], third.broker_id)
            await third.report()

            async def is_followed() -> bool:
                _, body = await command.ask("/loadbalance/v1/fleet")
                brokers = body["brokers"]
                return bool(brokers["bundles"][brokers["id"].index(third.broker_id)] == 1)

            await eventually(is_followed)
            command.process.terminate()
            code, _, _ = await ended(command.process)
    assert code == 0, (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.fixture
async def moving(
    zookeeper: EmbeddedZooKeeper, start_zookeeper: ZooKeeperFactory, chroot: str
) -> AsyncIterator[tuple[FakePulsar, EmbeddedZooKeeper, dict[str, object], MetadataStore]]:
    """A Pulsar that does not balance by itself, its ZooKeeper, what it takes to act, and a session with that store."""
    own = start_zookeeper()
    store = ZooKeeperStore(zookeeper.connect_string, session_timeout_s=60.0, chroot=chroot)
    await store.start()
    async with a_pulsar(own, "") as pulsar:
        await pulsar.set_dynamic(SWITCHED_OFF)
        settings: dict[str, object] = {
            "pollIntervalSeconds": 0.1,
            "adminUrls": pulsar.urls,
            "mode": "act",
            "stateStoreUrl": f"zk:{zookeeper.connect_string}{chroot}",
            "settlingSeconds": 0,
            "movesAtOnce": 1,
            "metadataStoreSessionTimeoutMillis": 4_000,
            "overrides": {"loadBalancerSheddingIntervalMinutes": "100000"},
        }
        yield pulsar, own, settings, store
    await store.close()


async def test_move_of_a_killed_process_is_finished_by_another(
    moving: tuple[FakePulsar, EmbeddedZooKeeper, dict[str, object], MetadataStore], tmp_path: Path
) -> None:
    pulsar, _, settings, store = moving
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder in folders:
        folder.mkdir()
    first, *_ = pulsar.brokers
    await pulsar.add_namespace("lm/bench", bundles=4, owners=[first.broker_id])
    await pulsar.report()

    async def in_progress() -> set[str]:
        znode = await store.get(paths.PULSAR_MOVES)
        return (
            set() if znode is None else set(decode_move_history(decode(znode.data, znode.path), znode.path).in_progress)
        )

    async def is_in_progress() -> bool:
        return bool(await in_progress())

    async def is_empty(broker: str) -> bool:
        return await pulsar.broker(broker).owned() == []

    drain = f"/loadbalance/v1/brokers/{first.broker_id}/drain"
    async with pulsar_process(folders[0], **settings) as one, pulsar_process(folders[1], **settings) as two:
        await asyncio.gather(one.is_up(), two.is_up())
        assert (await one.ask("/readyz"))[0] == (await two.ask("/readyz"))[0] == 200

        async def one_acts() -> bool:
            return await leads(one) != await leads(two)

        await eventually(one_acts)  # both are ready before one has begun to lead
        acting, other = (one, two) if (await leads(one)) else (two, one)
        assert not await leads(other), "one of them acts"
        pulsar.faults.hold("/unload", times=100)
        code, _ = await acting.ask(drain, "PUT")
        assert code == 202
        await eventually(is_in_progress)
        begun = await in_progress()
        acting.process.kill()
        await acting.process.wait()
        cut_short = await in_progress()  # it may have begun more of them before it died
        assert begun <= cut_short
        pulsar.faults.forgive()

        async def has_taken_over() -> bool:
            return await leads(other)

        await eventually(has_taken_over)

        async def is_drained() -> bool:
            return await is_empty(first.broker_id)

        await eventually(is_drained)

        async def is_repaired() -> bool:
            return {each["subject"] for each in await other.decisions("repair")} == cut_short

        await eventually(is_repaired)
        await has_settled(pulsar, in_progress)

        other.process.terminate()
        code, _, _ = await ended(other.process)
    assert code == 0, (other.folder / "log").read_text()
    assert "Traceback" not in (other.folder / "log").read_text()


async def leads(command: PulsarCommand) -> bool:
    _, body = await command.ask("/healthz")
    return bool(body["leading"])


async def bundles_of(pulsar: FakePulsar) -> list[str]:
    return [f"lm/bench/{each}" for each in (await pulsar.bundles("lm/bench")).range_texts()]


async def has_settled(pulsar: FakePulsar, in_progress: Any) -> None:  # noqa: ANN401 - what is asked
    """Nothing is under way any more, and somebody owns each bundle."""

    async def is_over() -> bool:
        owners = [await pulsar.owner(each) for each in await bundles_of(pulsar)]
        return not await in_progress() and None not in owners

    await eventually(is_over)


# What cannot be used


ONE_AFTER_THE_OTHER = """
import json, sys
from loadmanager.cli import main

for config in json.loads(sys.argv[1]):
    mode = "act" if "mode: act" in open(config).read() else "observe"
    sys.argv = ["loadmanager", "pulsar", mode, f"--config={config}"]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    print(f"ended with {code}", file=sys.stderr, flush=True)
"""


class NoPulsar(LoopbackServer):
    """Answers as any web site does."""

    def routes(self) -> list[web.RouteDef]:
        async def hello(_: web.Request) -> web.Response:
            return web.Response(text="<html>It works!</html>", content_type="text/html")

        return [web.get("/{path:.*}", hello)]


async def refusals(folder: Path, all_settings: Sequence[Mapping[str, object]]) -> list[tuple[int, str]]:
    """With what exit code the command ends with each of these configurations, and what it says."""
    configs = []
    for number, settings in enumerate(all_settings):
        config = folder / f"{number}.yaml"
        given = {"webServicePort": 0, "folder": str(folder / "diary")}
        config.write_text(yaml.safe_dump({**given, **settings}), encoding="utf-8")
        configs.append(str(config))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ONE_AFTER_THE_OTHER,
        orjson.dumps(configs).decode(),
        stdout=PIPE,
        stderr=PIPE,
        env=environment(),
        cwd=folder,
    )
    code, _, errors = await ended(process)
    assert code == 0, errors
    assert "Traceback" not in errors
    found, said = [], ""
    for line in errors.splitlines(keepends=True):
        if line.startswith("ended with "):
            found.append((int(line.removeprefix("ended with ")), said))
            said = ""
        else:
            said += line
    return found


async def test_invalid_configuration_ends_with_a_sentence_and_the_remedy(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("wrong", encoding="utf-8")

    def at(pulsar: FakePulsar, **more: object) -> dict[str, object]:
        return {"adminUrls": pulsar.urls, **more}

    async with contextlib.AsyncExitStack() as stack:
        names = ["rp", "other", "closed"]
        pulsar, other, closed = [
            await stack.enter_async_context(a_pulsar(zookeeper, f"{chroot}-{name}", brokers=2, cluster=name))
            for name in names
        ]
        site = await stack.enter_async_context(NoPulsar())
        closed.token = "right"
        nobody = f"http://127.0.0.1:{closed_port()}"
        theirs = f"zk:{zookeeper.connect_string}{chroot}-rp"
        before = await read_all_znodes(pulsar.operator)
        cases: list[tuple[dict[str, object], int, list[str]]] = [
            (at(pulsar, adminUrls=[site.url]), 2, [f"adminUrls: {site.url}", "give the web service of a broker"]),
            (at(pulsar, adminUrls=[nobody]), 1, [nobody]),
            (
                at(pulsar, adminUrls=[*pulsar.urls, *other.urls]),
                2,
                [f"adminUrls {other.urls[0]}: a broker of the cluster 'other'", "give brokers of one cluster"],
            ),
            (at(closed), 2, [f"adminUrls: {closed.urls[0]}", "answered 401", "token"]),
            (at(closed, tokenFile=str(token)), 2, [f"adminUrls: {closed.urls[0]}", "answered 401", "token"]),
            (at(pulsar, mode="act"), 2, ["stateStoreUrl: is required to act", "give a chroot of its own"]),
            (
                at(pulsar, mode="act", stateStoreUrl=theirs),
                2,
                [f"stateStoreUrl {theirs}: this is a Pulsar's metadata", "give loadmanager a chroot of its own"],
            ),
        ]
        found = await refusals(tmp_path, [settings for settings, _, _ in cases])
        for (_, code, words), (ended_with, said) in zip(cases, found, strict=True):
            assert ended_with == code, said
            assert [word for word in words if word not in said] == [], said
        assert {asked.method for each in (pulsar, other, closed) for asked in each.asked} == {"GET"}
        assert await read_all_znodes(pulsar.operator) == before
