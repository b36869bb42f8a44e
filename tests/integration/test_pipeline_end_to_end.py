from __future__ import annotations

import asyncio
import sys
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest
from support.browser import find_browser, shown
from support.demo import FinishedDemo
from support.nodes import RunningNode, a_leader

pytestmark = [pytest.mark.deep, pytest.mark.spark, pytest.mark.timeout(1200)]

LEARNED = "/loadbalance/v1/learned"
SECTIONS = 9
SPARK = ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]


async def loadmanager(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "loadmanager", *map(str, arguments)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


async def load_of_a_new_bundle(node: RunningNode, namespace: str) -> dict[str, object]:
    reply = await node.put(f"/admin/v2/namespaces/{namespace}", json={})
    assert reply.status in (204, 409), reply
    bundle = node.node.mirror.namespaces[namespace].state.bundle_names()[0]
    load: dict[str, object] = (await node.get(f"/loadbalance/v1/explain/bundle/{bundle}")).json()["load"]
    return load


def in_files(out: Path) -> tuple[str, str]:
    """The page and the run."""
    run = orjson.loads((out / "summary.json").read_bytes())["run"]
    return (out / "report" / "index.html").read_text(), run


def assert_a_browser_shows(page: Path) -> None:
    browser = find_browser()
    assert browser is None or shown(browser, page).count("<section ") == SECTIONS


async def test_demo_history_becomes_a_report(finished_demo: FinishedDemo, tmp_path: Path) -> None:
    assert finished_demo.code == 0, finished_demo.err
    out = tmp_path / "out"
    code, printed, said = await loadmanager("pipeline", "run", finished_demo.history, "--out", out, "--days", 7, *SPARK)
    assert code == 0, said
    assert Path(printed.strip()) == out / "report" / "index.html"
    page, run = in_files(out)
    HTMLParser().feed(page)
    assert page.count("<section ") == SECTIONS
    assert_a_browser_shows(out / "report" / "index.html")
    steps = ["ingest", "balance", "forecast", "capacity", "advice", "whatif", "report"]
    told = dict.fromkeys(line.partition(":")[0] for line in said.splitlines())  # half a minute is told to be too short
    assert [each for each in told if each in steps] == steps
    assert not (out / "recommended.yaml").exists()  # by half a minute
    async with a_leader() as (_, leader):
        options = ["--out", out, "--url", leader.node.service_url, *SPARK]
        code, _, said = await loadmanager("pipeline", "publish", *options)
        assert code == 0, said
        learned = (await leader.get(LEARNED)).json()
        assert learned["run"] == run
        namespace, known = next(iter(learned["namespaces"].items()))
        assert known["bundles"] > 0
        load = await load_of_a_new_bundle(leader, namespace)
        assert f"run {run}" in str(load["takenFrom"])
