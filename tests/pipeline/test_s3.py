"""What counts of tables in an object store: entered by several at once, against a server that speaks S3."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection

import pytest
from deltalake import DeltaTable

from loadmanager.pipeline.contents import RowFile
from loadmanager.pipeline.delta import DeltaAccount

SERVER = "LOADMANAGER_S3"
"""The variable with the URL of a server that these tests may make buckets on. Moto is one, and takes an environment of
its own, since it needs an older python-dateutil than ours:

    python -m venv s3 && s3/bin/pip install 'moto[s3,server]' && s3/bin/moto_server -H 127.0.0.1 -p 9000 &
    LOADMANAGER_S3=http://127.0.0.1:9000 .venv/bin/python -m pytest tests/pipeline/test_s3.py
"""

NAME = "rejected_rows"
WRITERS = 6
BUCKET = f"loadmanager-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def server() -> str:
    if SERVER not in os.environ:
        pytest.skip(f"{SERVER} names no server")
    return os.environ[SERVER]


def put(server: str, path: str, content: bytes = b"") -> None:
    connection = HTTPConnection(server.removeprefix("http://"))
    connection.request("PUT", path, content)
    assert connection.getresponse().status in (HTTPStatus.OK, HTTPStatus.CONFLICT), "there, or there already"
    connection.close()


@pytest.fixture
def root(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tables of a test are, with the settings that docs/pipeline.md names."""
    settings = {"ENDPOINT_URL": server, "ALLOW_HTTP": "true", "REGION": "us-east-1"}
    settings |= dict.fromkeys(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"), "test")
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    put(server, f"/{BUCKET}")
    return f"s3a://{BUCKET}/{request.node.name}"


def rows(write: str, part: str, count: int) -> dict[str, list[RowFile]]:
    return {part: [RowFile(f"{write}/part={part}/rows.parquet", count, 100)]}


def test_of_several_that_write_at_once_none_loses_what_another_wrote(root: str) -> None:
    def write(number: int) -> None:
        part = f"part-{number}"
        DeltaAccount(root).commit(NAME, rows(f"w-{number}", part, number), [part])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    found = DeltaAccount(root).contents(NAME)
    assert (found.number, found.rows) == (WRITERS, sum(range(WRITERS)))
    assert sorted(found.parts) == [f"part-{number}" for number in range(WRITERS)]


def test_what_was_never_entered_is_not_seen_and_what_was_replaced_can_be_looked_back_at(root: str, server: str) -> None:
    account = DeltaAccount(root)
    assert account.contents(NAME).number == 0
    account.commit(NAME, rows("first", "whole", 10), None)
    # by a write that was killed between its rows and the log
    put(server, f"/{root.removeprefix('s3a://')}/{NAME}/killed/part=whole/rows.parquet", b"rows")
    assert account.contents(NAME).rows == 10
    account.commit(NAME, rows("second", "whole", 7), None)
    account.clean(NAME)
    assert account.contents(NAME).parts == rows("second", "whole", 7)
    before = DeltaTable(f"{root}/{NAME}", version=0)
    assert [path for path in before.file_uris() if path.endswith("first/part=whole/rows.parquet")]
