"""`loadmanager serve` as a process: its start, its end, and why it may refuse to start."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import yaml
from kazoo.security import make_digest_acl
from support.deep import deep_except
from support.nodes import FakeAgent, on_zookeeper
from support.processes import ended
from support.registrations import a_record, register
from support.servers import closed_port, listen
from support.tcp_proxy import TcpProxy
from support.waiting import eventually
from support.zookeeper import a_session

from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create

pytestmark = pytest.mark.zookeeper


@dataclass
class Serve:
    process: asyncio.subprocess.Process
    ready_file: Path
    config: Path

    async def url(self) -> str:
        await eventually(lambda: self.ready_file.exists() or self.process.returncode is not None)
        assert self.process.returncode is None, "it ended at its start"
        url = orjson.loads(self.ready_file.read_bytes())["url"]
        assert isinstance(url, str)
        return url

    async def end(self) -> tuple[int, str]:
        """The exit code and what was said on standard error, once it has ended by itself."""
        code, _, said = await ended(self.process)
        return code, said


@contextlib.asynccontextmanager
async def serving(folder: Path, settings: Mapping[str, Any]) -> AsyncIterator[Serve]:
    config, ready_file = folder / "loadmanager.yaml", folder / "ready.json"
    local = {"bindAddress": "127.0.0.1", "advertisedAddress": "127.0.0.1", "webServicePort": 0}
    config.write_text(yaml.safe_dump({**local, **settings}))
    options = ("--config", str(config), "--ready-file", str(ready_file), "--log-json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadmanager", "serve", *options, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Serve(process, ready_file, config)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def store_url(zookeeper: EmbeddedZooKeeper, chroot: str) -> str:
    return f"zk:{zookeeper.connect_string}{chroot}"


@pytest.mark.parametrize("number", deep_except({signal.SIGTERM}, [signal.SIGTERM, signal.SIGINT]))
async def test_node_serves_when_ready_and_ends_on_a_signal(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path, number: signal.Signals
) -> None:
    settings = {"metadataStoreUrl": store_url(zookeeper, chroot)}
    async with serving(tmp_path, settings) as serve, aiohttp.ClientSession() as http:
        url = await serve.url()
        async with http.get(f"{url}/readyz") as answer:
            assert answer.status == 200

        async def leads() -> bool:
            async with http.get(f"{url}/healthz") as answer:
                return bool((await answer.json())["leading"])

        await eventually(leads)
        async with http.get(f"{url}/loadbalance/v1/live") as stream:
            assert await stream.content.readuntil(b"\n\n")
            serve.process.send_signal(number)
            code, said = await serve.end()
            await stream.content.read()  # to its end, which the node has made
    assert code == 0
    assert "Traceback" not in said
    events = [orjson.loads(line)["event"] for line in said.splitlines()]
    assert {"serving", "elected", "term_ended", "history_recorded"} <= set(events)


@pytest.mark.skipif(Path("/var/lib/loadmanager").exists(), reason="there is a place")
async def test_node_starts_without_a_folder_for_the_history(
    zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    for variable in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "file"))
    async with serving(tmp_path, {"metadataStoreUrl": store_url(zookeeper, chroot)}) as serve:
        await serve.url()
        serve.process.send_signal(signal.SIGTERM)
        _, said = await serve.end()
    (off,) = [entry for line in said.splitlines() if (entry := orjson.loads(line))["event"] == "history_off"]
    assert "historyUrl" in off["to_change"]


async def test_half_requests_do_not_block_others(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    settings = {
        "metadataStoreUrl": store_url(zookeeper, chroot),
        "maxHttpServerConnections": 30,
    }
    async with serving(tmp_path, settings) as serve, contextlib.AsyncExitStack() as open_ones:
        url = await serve.url()
        host, _, port = url.removeprefix("http://").partition(":")
        halves = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection(host, port)
            open_ones.callback(writer.close)
            writer.write(b"GET /readyz HTTP/1.1\r\n")
            halves.append(reader)
        async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as answer:
            assert answer.status == 200
        for reader in halves:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""


async def test_open_request_does_not_delay_the_end(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    connect = on_zookeeper(zookeeper, chroot)
    agent = FakeAgent()
    agent.may_answer.clear()
    settings = {"metadataStoreUrl": store_url(zookeeper, chroot)}
    async with serving(tmp_path, settings) as serve, aiohttp.ClientSession() as http, agent:
        url = await serve.url()
        agent.store = await connect()
        await register(agent.store, "b1:8080", a_record("b1:8080", agent_url=agent.url))
        await _put(http, f"{url}/admin/v2/namespaces/t/ns")

        async def owned() -> bool:
            async with http.get(f"{url}/lookup/v2/topic/persistent/t/ns/x") as answer:
                return answer.status == 200

        await eventually(owned)
        unload = asyncio.create_task(_put(http, f"{url}/admin/v2/namespaces/t/ns/unload"))
        await eventually(lambda: agent.unloads)
        serve.process.terminate()
        code, said = await serve.end()
        await asyncio.gather(unload, return_exceptions=True)
        await agent.store.close()
    assert code == 0
    assert "Traceback" not in said


async def _put(http: aiohttp.ClientSession, url: str) -> int:
    async with http.put(url) as answer:
        return answer.status


async def test_missing_zookeeper_ends_the_start_and_names_the_setting(tmp_path: Path) -> None:
    async def start(url: str) -> None:
        folder = tmp_path / url.rpartition(":")[2]
        folder.mkdir()
        async with serving(folder, {"metadataStoreUrl": url}) as serve:
            code, said = await serve.end()
        assert code == 1
        assert said.splitlines()[-1].startswith(f"loadmanager: metadataStoreUrl {url}: ")
        assert "within 15 s" in said.splitlines()[-1]
        assert "Traceback" not in said

    async with TcpProxy(1) as silent:
        silent.blackhole()
        await asyncio.gather(start(f"zk:{silent.address}"), start(f"zk:127.0.0.1:{closed_port()}"))


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"historyUrl": "nosuch://bucket/prefix"}, 2, "historyUrl: history nosuch://bucket/prefix: "),
        ({"auditLogFile": "/no/audit.jsonl"}, 2, "auditLogFile /no/audit.jsonl: No such file or directory\n"),
        ({"bindAddress": "no-such-host.invalid"}, 1, "webServicePort 0 on no-such-host.invalid: "),
    ],
)
async def test_setting_that_cannot_be_used_is_named(
    tmp_path: Path, settings: dict[str, Any], code: int, said: str
) -> None:
    async with serving(tmp_path, settings) as serve:
        ended = await serve.end()
    assert ended[0] == code
    assert ended[1].startswith(f"loadmanager: {said}")
    assert "Traceback" not in ended[1]


async def test_port_in_use_is_named(tmp_path: Path) -> None:
    with listen() as taken:
        port = taken.getsockname()[1]
        async with serving(tmp_path, {"webServicePort": port}) as serve:
            code, said = await serve.end()
    assert (code, said) == (1, f"loadmanager: webServicePort {port} on 127.0.0.1: Address already in use\n")


async def test_start_waits_through_zookeeper_hiccups(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    """Each connection ends a little later than the one before: after the handshake, with a write, with a read."""
    async with TcpProxy(zookeeper.port) as network:
        network.cuts.extend(range(50, 1250, 60))
        settings = {"metadataStoreUrl": f"zk:{network.address}{chroot}", "metadataStoreSessionTimeoutMillis": 20_000}
        async with serving(tmp_path, settings) as serve:
            await serve.url()
            serve.process.terminate()
            code, said = await serve.end()
    assert not network.cuts, "every one of them was met"
    assert code == 0, said
    assert "Traceback" not in said
    waits = [line for line in said.splitlines() if '"start_waits_for_store"' in line]
    assert 1 <= len(waits) <= 2, "the store says it once, and the node"


async def test_read_only_store_ends_the_start(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    witness = await on_zookeeper(zookeeper, chroot)()
    await witness.commit([Create(paths.ROOT, b"", ephemeral=True)])  # nothing can be created below it
    url = store_url(zookeeper, chroot)
    async with serving(tmp_path, {"metadataStoreUrl": url}) as serve:
        code, said = await serve.end()
    await witness.close()
    assert code == 1
    assert said.splitlines()[-1].startswith(f"loadmanager: metadataStoreUrl {url}: transaction refused: ")
    assert "Traceback" not in said


async def test_metadata_of_a_pulsar_are_not_touched(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    witness = await on_zookeeper(zookeeper, chroot)()
    await witness.ensure_path("/admin/clusters")
    url = store_url(zookeeper, chroot)
    async with serving(tmp_path, {"metadataStoreUrl": url}) as serve:
        code, said = await serve.end()
    found = await witness.children("/")
    await witness.close()
    assert code == 2
    assert said.splitlines()[-1].startswith(
        f"loadmanager: metadataStoreUrl {url}: this is a Pulsar's metadata (/admin/"
    )
    assert found == ["admin"]


async def test_node_recovers_when_zookeeper_returns(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    async with TcpProxy(int(zookeeper.connect_string.rpartition(":")[2])) as network:
        settings = {"metadataStoreUrl": f"zk:{network.address}{chroot}", "metadataStoreSessionTimeoutMillis": 4_000}
        async with serving(tmp_path, settings) as serve, aiohttp.ClientSession() as http:
            url = await serve.url()

            async def readiness() -> int:
                async with http.get(f"{url}/readyz") as answer:
                    return answer.status

            network.blackhole()
            await eventually(lambda: _is(readiness(), 503))
            async with http.get(f"{url}/healthz") as answer:
                assert answer.status == 200
            network.heal()
            await eventually(lambda: _is(readiness(), 200))
            serve.process.terminate()
            code, _ = await serve.end()
    assert code == 0


async def _is(status: Any, expected: int) -> bool:  # noqa: ANN401 - a coroutine
    return bool(await status == expected)


async def test_anonymous_node_names_key_and_file(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    secret = tmp_path / "zookeeper-credentials"
    secret.write_text("lm:of-another-cluster")
    with a_session(zookeeper.connect_string) as theirs:
        acl = [make_digest_acl("somebody", "else", all=True)]
        theirs.ensure_path(f"{chroot}{paths.ROOT}")
        theirs.set_acls(f"{chroot}{paths.ROOT}", acl)
    keys = {"metadataStoreUrl": store_url(zookeeper, chroot), "metadataStoreCredentials": f"file://{secret}"}
    async with serving(tmp_path, keys) as serve:
        code, said = await serve.end()
    assert code == 1
    assert f"digest:lm (metadataStoreCredentials file://{secret})" in said
    assert f"the ACL of {paths.ROOT}" in said
    assert "of-another-cluster" not in said
