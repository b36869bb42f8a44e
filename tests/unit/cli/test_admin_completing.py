"""How shells go on with names: nodes are asked, and that none answers is nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.recording_node import RecordingNode, a_recording_node
from support.servers import closed_port

COMMAND = "import sys; from loadmanager.cli import main; sys.argv[0] = 'loadmanager'; main()"


@pytest.fixture
def node() -> Iterator[RecordingNode]:
    with a_recording_node() as node:
        node.script = {
            "/admin/v2/brokers": [(200, b'["a1:8080","b1:8080","b2:8080"]')],
            "/admin/v2/tenants": [(200, b'["public","tenant"]')],
            "/admin/v2/namespaces/public": [(200, b'["public/default","public/other"]')],
            "/admin/v2/namespaces/public/default/bundles": [(200, b'{"boundaries":["0x0","0x8","0xf"]}')],
        }
        yield node


def completions(line: str, url: str) -> list[str]:
    asked = {"_LOADMANAGER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line, "LOADMANAGER_ADMIN_URL": url}
    asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, timeout=180, env=os.environ | asked, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("brokers drain b", ["b1:8080", "b2:8080"]),
        ("namespaces policies ", ["public/", "tenant/"]),
        ("namespaces policies public/", ["public/default", "public/other"]),
        ("why pub", ["public/"]),
        ("why public/d", ["public/default/"]),
        ("why public/default/", ["public/default/0x0_0x8", "public/default/0x8_0xf"]),
    ],
)
def test_names_are_completed(node: RecordingNode, line: str, names: list[str]) -> None:
    assert completions(f"loadmanager admin {line}", node.url) == names


def test_without_a_node_there_is_nothing_to_complete() -> None:
    assert completions("loadmanager admin brokers drain ", f"http://127.0.0.1:{closed_port()}") == []
