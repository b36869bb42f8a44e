"""From a history to a report and to what the leader goes by, by the commands alone."""

from __future__ import annotations

import asyncio
import sys
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest
from support.nodes import RunningNode, a_leader
from support.recorded_fleet import BUNDLES, record_fleet

from loadmanager.config import Settings, load_settings

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("spark")]

LEARNED = "/loadbalance/v1/learned"
SPARK = ["--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.driver.memory=1g"]


async def pipeline(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "loadmanager", "pipeline", *map(str, arguments)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


async def load_of_a_new_bundle(node: RunningNode, namespace: str) -> dict[str, object]:
    reply = await node.put(f"/admin/v2/namespaces/{namespace}", json={})
    assert reply.status in (204, 409), reply
    bundle = node.node.view.namespaces[namespace].state.bundle_names()[0]
    load: dict[str, object] = (await node.get(f"/loadbalance/v1/explain/bundle/{bundle}")).json()["load"]
    return load


def in_files(out: Path) -> tuple[str, str, str]:
    """The page, the configuration recommended and the run."""
    run = orjson.loads((out / "summary.json").read_bytes())["run"]
    return (out / "report" / "index.html").read_text(), str(out / "recommended.yaml"), run


async def test_a_history_becomes_a_report_and_the_leader_goes_by_what_was_learned(tmp_path: Path) -> None:
    history, out = tmp_path / "history", tmp_path / "out"
    record_fleet(history)
    code, printed, said = await pipeline("run", history, "--out", out, "--days", 7, *SPARK)
    assert code == 0, said
    assert Path(printed.strip()) == out / "report" / "index.html"
    page, recommended, run = in_files(out)
    HTMLParser().feed(page)
    assert page.count("<section ") == 10
    steps = ["ingest", "averages", "balance", "forecast", "capacity", "advice", "whatif", "report"]
    assert [line.partition(":")[0] for line in said.splitlines() if line.partition(":")[0] in steps] == steps
    load_settings(Settings, Path(recommended))
    async with a_leader() as (_, leader):
        code, _, said = await pipeline("publish", "--out", out, "--url", leader.node.service_url, *SPARK)
        assert code == 0, said
        learned = (await leader.get(LEARNED)).json()
        assert learned["run"] == run
        assert sorted(learned["namespaces"]) == ["tenant/ns-0", "tenant/ns-1"]
        assert learned["namespaces"]["tenant/ns-0"]["bundles"] == BUNDLES
        load = await load_of_a_new_bundle(leader, "tenant/ns-0")
        assert f"run {run}" in str(load["takenFrom"])


async def test_publishing_where_nothing_was_learned_asks_no_node(tmp_path: Path) -> None:
    code, _, said = await pipeline("publish", "--out", tmp_path, "--url", "http://127.0.0.1:1", *SPARK)
    assert code == 1
    assert "summary.json: cannot be read" in said
