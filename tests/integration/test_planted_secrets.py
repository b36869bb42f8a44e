"""A real node has a secret in each place where one can be, and is sent more: nothing that comes out of it has any."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.lm_node import NodeProcess
from support.nodes import settings as settings_in_tests
from support.processes import Processes
from support.tokens import bearer, token_of
from support.waiting import eventually

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.dynamic_settings import values_as_text
from loadmanager.config.node_settings import Settings
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.config.settings_base import is_secret
from loadmanager.dev.embedded.embedded_zookeeper import EmbeddedZooKeeper
from loadmanager.errors import HistoryError
from loadmanager.history.files import Directory
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import TABLES
from loadmanager.http.openapi import PATH
from loadmanager.net.auth.token_keys import create_token

pytestmark = pytest.mark.zookeeper

KEY = b"planted: the key that signs, of more than 32 bytes"
OWN = create_token(KEY, "HS256", {"sub": "planted-node"})
ROOT = create_token(KEY, "HS256", {"sub": "root"})
PLANTED = {
    "tokenSecretKey": f"data:;base64,{base64.b64encode(KEY).decode()}",
    "brokerClientAuthenticationParameters": f"token:{OWN}",
}
IN_REQUESTS = [
    {"Authorization": "Bearer planted-in-a-header"},
    {"Authorization": "Basic cGxhbnRlZC1iYXNpYw=="},
    bearer(token_of("root")),
]
QUERY = "token=planted-in-a-query"
NAMES = {"tenant": "t", "namespace": "ns", "range": "0x00000000_0xffffffff", "broker": "b1:8080", "file": "index.html"}


def secrets() -> list[str]:
    """Secrets in every encoding in which they may leak."""
    found = [KEY.decode(), base64.b64encode(KEY).decode(), OWN, ROOT, token_of("root")]
    found += [found[0][10:30], OWN.rpartition(".")[2], ROOT.rpartition(".")[2]]
    return [*found, "planted-in-a-header", "cGxhbnRlZC1iYXNpYw", "planted-in-a-query", "planted-password"]


@pytest.mark.parametrize("model", [Settings, AgentSettings, PulsarServiceSettings])
def test_every_secret_setting_is_planted(model: type[Settings]) -> None:
    keys = {model.key(name) for name, field in model.model_fields.items() if is_secret(field)}
    assert keys <= PLANTED.keys(), "plant the new one, too"


def test_password_in_a_url_is_hidden() -> None:
    url = "s3://access:planted-password@bucket/prefix"
    assert values_as_text(settings_in_tests(history_url=url))["historyUrl"] == "s3://***@bucket/prefix"
    with pytest.raises(HistoryError) as error:
        Directory.of("nosuch://access:planted-password@bucket/prefix")
    assert "planted" not in str(error.value)
    assert "nosuch://***@bucket/prefix" in str(error.value)


async def test_no_output_contains_a_secret(zookeeper: EmbeddedZooKeeper, chroot: str, tmp_path: Path) -> None:
    credentials, history, audit = (tmp_path / name for name in ("credentials", "history", "audit.jsonl"))
    credentials.write_text("somebody:planted-password")
    settings = {
        **PLANTED,
        "metadataStoreUrl": f"zk:{zookeeper.connect_string}{chroot}",
        "metadataStoreCredentials": f"file://{credentials}",
        "metadataStoreNodeIds": ["world:anyone"],
        "authenticationEnabled": True,
        "superUserRoles": ["root", "planted-node"],
        "historyUrl": str(history),
        "historyFlushIntervalS": 1,
        "auditLogFile": str(audit),
    }
    with Processes(tmp_path) as processes:
        node = NodeProcess("node", tmp_path, processes, settings)
        await node.start()
        async with aiohttp.ClientSession() as http:
            out = [said async for said in everything_asked(http, node.url)]
        node.terminate()
        await eventually(lambda: not node.is_running)
        out += [node.log_text(), audit.read_text(), *recorded(History(str(history)))]
    assert '"status":401' in audit.read_text()
    assert "planted-node" in str(out), "what is no secret is said"
    assert sum(len(text) for text in out) > 100_000
    for secret in secrets():
        assert [text[:300] for text in out if secret in text] == [], secret


async def everything_asked(http: aiohttp.ClientSession, url: str) -> AsyncIterator[str]:
    """Answers of all operations, with and without a token, with and without secrets in the request."""
    root = bearer(ROOT)

    async def ask(method: str, path: str, headers: dict[str, str], **options: Any) -> str:  # noqa: ANN401 - aiohttp's
        async with http.request(method, f"{url}{path}", headers=headers, **options) as answer:
            return f"{answer.status} {dict(answer.headers)} {(await answer.read()).decode(errors='replace')}"

    async def leads() -> bool:
        return '"leading":true' in await ask("GET", "/healthz", {})

    await eventually(leads)
    async with http.get(f"{url}{PATH}", headers=root) as answer:
        document = await answer.json()
    yield await ask("PUT", "/admin/v2/namespaces/t/ns", root)
    for path, methods in document["paths"].items():
        filled = re.sub(r"\{(\w+)\}", lambda match: NAMES.get(match[1], "name"), path)
        for method, described in methods.items():
            if "text/event-stream" in str(described["responses"]):
                continue
            for headers in [*IN_REQUESTS, root]:
                yield await ask(method, f"{filled}?{QUERY}", headers)
            yield await ask(method, filled, root, **({} if method == "get" else {"json": {"one": "two"}}))


def recorded(history: History) -> Iterator[str]:
    for table in TABLES:
        for row in history.rows(table):
            yield str(row)
