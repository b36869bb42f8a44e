from __future__ import annotations

import asyncio
import base64
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs
from support.builders import broker, bundle, report, throughput
from support.nodes import RunningNode, a_leader, settings
from support.recorded_cluster import Recorded, a_recorded_leader
from support.waiting import eventually, patience

from loadmanager.config.node_settings import Settings
from loadmanager.core.model.load import FloatArray
from loadmanager.errors import NotFoundError
from loadmanager.leader import timeline_memory
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_pool import MOST_WAITING
from loadmanager.leader.timeline_memory import TimelineMemory, Window
from loadmanager.util import clock

HOUR_MS = 3_600_000
TIMELINE = "/loadbalance/v1/timeline"


async def timeline(node: RunningNode, query: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The answer, and by row what is known in its cells."""
    reply = await node.get(f"{TIMELINE}?{query}")
    assert reply.status == 200, reply.reason
    answer = reply.json()
    return answer, known_cells(answer)


def known_cells(answer: dict[str, Any]) -> dict[str, list[int]]:
    cells, columns = base64.b64decode(answer["cells"]), answer["columns"]
    assert len(cells) == columns * len(answer["rows"])
    rows = {name: cells[row * columns : (row + 1) * columns] for row, name in enumerate(answer["rows"])}
    return {name: [cell for cell in row if cell != 255] for name, row in rows.items()}


def a_chronicle(given: Settings) -> TimelineMemory:
    """Timeline of a node that has just started, without data."""
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return TimelineMemory(ClusterMirror(), LiveSettings(given), lambda: never)


async def has_lived(recorded: Recorded) -> None:
    """Two rounds that moved something, and one split."""
    assert await recorded.live(2) > 0
    await recorded.leader.put("/admin/v2/namespaces/t/other/0x00000000_0x15555555/split")
    timeline_memory = recorded.leader.node.timeline_memory
    for of in ("brokers", "bundles"):
        await timeline_memory.look(of, clock.now_ms())


async def test_timeline_requests_are_bounded_and_do_not_stop_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def draw(*_: object) -> None:
        may_end.wait(patience())
        raise NotFoundError("nothing was drawn")

    monkeypatch.setattr(timeline_memory, "draw_brokers", draw)
    async with a_leader() as (_, node):
        asked = [asyncio.create_task(node.get(TIMELINE)) for _ in range(MOST_WAITING + 2)]
        try:
            await eventually(lambda: any(each.done() for each in asked))
            looked = asyncio.create_task(node.node.timeline_memory.look("brokers", clock.now_ms()))
            await asyncio.sleep(0)
        finally:
            may_end.set()
        await looked
        assert len([each for each in asked if not each.done()]) > MOST_WAITING // 2
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
        assert sorted(statuses) == [404] * (MOST_WAITING + 1) + [503]


async def test_timeline_shows_the_rounds_and_splits_of_a_node(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await has_lived(recorded)
        answer, cells = await timeline(recorded.leader, "of=brokers&columns=10")
        assert list(cells) == ["b1:8080", "b2:8080", "b3:8080"]
        assert (max(cells["b1:8080"]), max(cells["b3:8080"])) == (92, 12)
        assert answer["columns"] <= 10
        assert answer["scale"] is None
        assert answer["leaders"] == [[answer["leaders"][0][0], recorded.leader.node.node_id, 1]]
        moves = [move for move in answer["moves"] if move[3] is not None]
        assert moves
        assert {move[2] for move in moves} >= {"b1:8080"}
        assert answer["movesOmitted"] == 0
        assert "t/other/0x00000000_0x15555555" in [bundle for _, bundle in answer["splits"]]

        answer, cells = await timeline(recorded.leader, "of=bundles&rows=4")
        assert len(cells) <= 4
        assert max(max(row) for row in cells.values()) == 100
        assert sum(answer["sizes"]) >= len(recorded.leader.node.mirror.model.throughput()[0]) >= 25
        assert answer["scale"] > 1e6


async def test_timeline_is_restricted_to_its_window(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await has_lived(recorded)
        answer, cells = await timeline(recorded.leader, "since=1000000&until=2000000")
        assert (cells, answer["moves"], answer["splits"], answer["leaders"]) == ({}, [], [], [])
        assert answer["from"] <= 1_000_000


async def test_started_node_reads_its_timeline_from_the_history(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await has_lived(recorded)

        async def has_leader() -> bool:
            return bool((await timeline(recorded.leader, "of=brokers"))[0]["leaders"])

        await eventually(has_leader)
        seen, seen_cells = await timeline(recorded.leader, "of=brokers")
    started = a_chronicle(recorded.leader.node.settings)
    running = asyncio.create_task(started.run())
    window = Window(clock.now_ms() - HOUR_MS, clock.now_ms(), 1, 100)

    async def has_bundles() -> bool:
        return bool((await started.draw("bundles", window))["rows"])

    await eventually(has_bundles)
    brokers = orjson.loads(orjson.dumps(await started.draw("brokers", window)))
    assert {name: max(cells) for name, cells in known_cells(brokers).items()} == {
        name: max(cells) for name, cells in seen_cells.items()
    }
    assert sorted(move[1:4] for move in brokers["moves"]) == sorted(move[1:4] for move in seen["moves"])
    assert [leader[1:] for leader in brokers["leaders"]] == [leader[1:] for leader in seen["leaders"]]
    bundles = await started.draw("bundles", window)
    assert len(bundles["rows"]) >= 24
    running.cancel()


async def test_unreadable_history_is_logged_and_nothing_else_fails() -> None:
    timeline_memory = a_chronicle(settings(history_url="nosuch://history"))
    with capture_logs() as logs:
        running = asyncio.create_task(timeline_memory.run())
        await eventually(lambda: any(entry["event"] == "timeline_not_recalled" for entry in logs))
    assert (await timeline_memory.draw("brokers", Window(0, clock.now_ms(), 1, 1)))["rows"] == ()
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("of=topics", "of 'topics': expected brokers or bundles"),
        ("since=2&until=1", "since 2: expected a time before until, 1"),
        ("since=x", "since 'x': expected milliseconds since 1970"),
        ("rows=0", "rows '0': expected a number from 1 to 2000"),
        ("columns=2001", "columns '2001': expected a number from 1 to 2000"),
    ],
)
async def test_invalid_query_is_rejected(query: str, said: str) -> None:
    async with a_leader() as (_, node):
        reply = await node.get(f"{TIMELINE}?{query}")
        assert (reply.status, reply.reason) == (400, said)


async def test_elected_leader_does_not_sample_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ms", lambda: 10**12)
    mirror = ClusterMirror()
    mirror.model.apply_report(broker("a"), report({bundle(number): throughput(1.0) for number in range(100)}))
    changes, looks, look = list[asyncio.Future[None]](), list[None](), mirror.model.throughput

    def leader_changed() -> asyncio.Future[None]:
        changes.append(asyncio.get_running_loop().create_future())
        return changes[-1]

    def throughput_seen() -> tuple[tuple[str, ...], FloatArray]:
        looks.append(None)
        return look()

    monkeypatch.setattr(mirror.model, "throughput", throughput_seen)
    monkeypatch.setattr(timeline_memory, "GRID_BYTES", 65_536)  # little: steps are made longer as it looks
    given = settings(history_url="")
    running = asyncio.create_task(TimelineMemory(mirror, LiveSettings(given), leader_changed).run())
    await eventually(lambda: len(changes) == 1)
    changes[0].set_result(None)
    await eventually(lambda: len(changes) == 2)
    assert len(looks) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
