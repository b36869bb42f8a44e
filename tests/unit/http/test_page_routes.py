from __future__ import annotations

import gzip
import re
from importlib.resources import files

import aiohttp
import pytest
from support.nodes import RunningNode
from support.waiting import eventually

from loadmanager.core.domain.resources import HOT
from loadmanager.core.domain.settings import PlannerSettings

FOLDER = files("loadmanager.http") / "page"
PLAIN = {"Accept-Encoding": "identity"}


async def test_files_have_types_and_a_content_security_policy(node: RunningNode) -> None:
    await eventually(lambda: node.node.mirror.nodes)
    index = await node.get("/", headers=PLAIN)
    assert index.body == (FOLDER / "index.html").read_bytes()
    assert index.headers["Content-Type"] == "text/html; charset=utf-8"
    assert index.headers["X-Content-Type-Options"] == "nosniff"
    policy = index.headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", f"connect-src 'self' {node.node.service_url}"} <= set(policy)
    assert "unsafe" not in index.headers["Content-Security-Policy"]
    for each in FOLDER.iterdir():
        if each.is_file():
            served = await node.get(f"/page/{each.name}", headers=PLAIN)
            assert (served.status, served.body) == (200, each.read_bytes())
            assert served.headers["Content-Security-Policy"] == index.headers["Content-Security-Policy"]


async def test_page_files_are_cached_by_etag_and_compressed(node: RunningNode) -> None:
    first = await node.get("/", headers=PLAIN)
    assert "Content-Encoding" not in first.headers
    again = await node.get("/", headers={"If-None-Match": first.headers["Etag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["Etag"] == first.headers["Etag"]
    other = await node.get("/", headers={"If-None-Match": '"another"', **PLAIN})
    assert (other.status, other.body) == (200, first.body)

    async with aiohttp.ClientSession(auto_decompress=False) as http:
        answer = await http.get(f"{node.node.service_url}/", headers={"Accept-Encoding": "gzip"})
        compressed = await answer.read()
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(compressed) == first.body


def test_hot_threshold_of_the_page_equals_the_setting() -> None:
    said = re.search(r"^const HOT = (\d+);$", (FOLDER / "fleet.js").read_text(encoding="utf-8"), re.MULTILINE)
    assert said is not None
    assert float(said[1]) == 100 * HOT == PlannerSettings().broker_overloaded_threshold_percentage


@pytest.mark.parametrize("name", ["nothing.js", "../page.py", "%2e%2e/page.py", "vendor", "/etc/passwd", ""])
async def test_other_files_are_not_served(node: RunningNode, name: str) -> None:
    assert (await node.get(f"/page/{name}")).status == 404
