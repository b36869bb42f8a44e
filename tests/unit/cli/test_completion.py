from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from support.recording_node import RecordingNode, a_recording_node
from support.servers import closed_port
from typer._completion_classes import BashComplete

from loadmanager.cli.admin_command import admin


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingNode]:
    with a_recording_node() as node:
        monkeypatch.setenv("LOADMANAGER_ADMIN_URL", f"{node.url}/")
        node.script = {
            "/admin/v2/brokers": [(200, b'["a1:8080","b1:8080","b2:8080"]')],
            "/admin/v2/tenants": [(200, b'["public","tenant"]')],
            "/admin/v2/namespaces/public": [(200, b'["public/default","public/other"]')],
            "/admin/v2/namespaces/public/default/bundles": [(200, b'{"boundaries":["0x0","0x8","0xf"]}')],
        }
        yield node


def completions(line: str, incomplete: str) -> list[str]:
    shell = BashComplete(typer.main.get_command(admin), {}, "admin", "_ADMIN_COMPLETE")
    return [each.value for each in shell.get_completions(line.split(), incomplete)]


@pytest.mark.parametrize(
    ("line", "incomplete", "names"),
    [
        ("brokers drain", "b", ["b1:8080", "b2:8080"]),
        ("namespaces policies", "", ["public/", "tenant/"]),
        ("namespaces policies", "public/", ["public/default", "public/other"]),
        ("why", "pub", ["public/"]),
        ("why", "public/d", ["public/default/"]),
        ("why", "public/default/", ["public/default/0x0_0x8", "public/default/0x8_0xf"]),
    ],
)
@pytest.mark.usefixtures("node")
def test_names_are_completed(line: str, incomplete: str, names: list[str]) -> None:
    assert completions(line, incomplete) == names


@pytest.mark.parametrize("token_file", [None, "no/such/file"])
def test_what_cannot_be_asked_is_not_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], token_file: str | None
) -> None:
    monkeypatch.setenv("LOADMANAGER_ADMIN_URL", f"http://127.0.0.1:{closed_port()}")
    if token_file is not None:
        monkeypatch.setenv("LOADMANAGER_TOKEN_FILE", token_file)
    assert completions("brokers drain", "") == []
    assert capsys.readouterr() == ("", "")


def test_an_answer_of_another_kind_is_not_completed(node: RecordingNode) -> None:
    node.script = {"/admin/v2/brokers": [(200, b'{"reason":"no"}')], "/admin/v2/tenants": [(403, b"")]}
    assert completions("brokers drain", "") == completions("why", "") == []
