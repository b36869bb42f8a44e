"""Decisions of a real leader, recorded, and taken again from nothing but the history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.nodes import topics_by_bundle
from support.recorded_cluster import BUNDLES, NAMESPACE, OF_STRATEGY, a_recorded_leader
from support.waiting import eventually

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.history.reader import History, RecordedReport
from loadmanager.history.table_schemas import DECISIONS
from loadmanager.lab.replay.replayer import Item, ReplayOutcome, Row, replay
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.wire.broker_data import HealthData
from loadmanager.wire.plan_bodies import PlanRequest


def recorded_in(folder: Path) -> list[Item]:
    history = History(str(folder))
    return list(recorded_items(history, find_start(history, None), None))


def replayed(items: Sequence[Item]) -> ReplayOutcome:
    return replay(items, planner_settings_of)


def rows_of(items: Sequence[Item], table: str, kind: str) -> list[Row]:
    return [each for each in items if isinstance(each, Row) and each.table == table and each.columns["kind"] == kind]


def with_changed(items: Sequence[Item], row: Row, change: Callable[[dict[str, Any]], None]) -> Iterator[Item]:
    """The items with this row changed."""
    for item in items:
        if item is row:
            columns = json.loads(json.dumps(dict(row.columns)))
            change(columns)
            yield replace(row, columns=columns)
        else:
            yield item


async def a_life(folder: Path, strategy: str = "ThresholdShedder", rounds: int = 4) -> list[Item]:
    """Record a leader that sheds, places and splits, writes a checkpoint in between, and loses a broker."""
    async with a_recorded_leader(folder, **OF_STRATEGY[strategy]) as recorded:
        node = recorded.leader.node
        assert await recorded.live(rounds) > 0, "something has to be moved"
        assert isinstance(node.mirror.model, RecordedModel)
        await node.planner.checkpoint(node.mirror.model)
        await recorded.live(2)
        await recorded.cluster.brokers.pop("b3:8080").leave()
        await recorded.live(2)
    return recorded_in(folder)


@pytest.mark.parametrize("strategy", OF_STRATEGY)
async def test_every_decision_of_a_leader_is_taken_again_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    outcome = replayed(await a_life(tmp_path, strategy))
    assert outcome.difference is None
    assert outcome.is_complete
    assert {"shed", "place", "split", "moved", "checkpoint"} <= outcome.compared.keys()
    assert not outcome.left_out


async def test_what_operators_do_is_replayed_too(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        leader, node = recorded.leader, recorded.leader.node
        await recorded.report()
        bundle = recorded.owned_by("b1:8080")[0]
        pinned = await leader.put(f"/loadbalance/v1/bundles/{bundle}/pin", json={"broker": "b2:8080"})
        assert pinned.status == 204, pinned.reason
        plan = await node.plans.compute(PlanRequest(kind="drain", broker="b3:8080"))
        await node.plans.execute(plan.hash)
        await node.plans.compute(PlanRequest(kind="shed"))
        await node.drains.start(BrokerId("b3:8080"))
        await node.bundles.split(
            BundleName.parse(recorded.owned_by("b1:8080")[1]), algorithm="", positions=(), unload=True
        )
        node.planner.churn.lift()
        await recorded.live(2)
        await node.drains.stop(BrokerId("b3:8080"))
        await recorded.live(1)
    outcome = replayed(recorded_in(tmp_path))
    assert outcome.difference is None
    assert {"preview_drain", "preview_shed", "shed", "moved"} <= outcome.compared.keys()
    assert outcome.left_out == {"plan: at an operator's word": 1}


async def test_a_replay_knows_which_brokers_were_sick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.core.domain.settings.SICK_AFTER_S", 0.0)
    well, bad = HealthData(latencyMs=5.25), HealthData(latencyMs=900.5, errorShare=0.75)
    async with a_recorded_leader(tmp_path) as recorded:
        node = recorded.leader.node
        recorded.health = {"b1:8080": well, "b2:8080": bad, "b3:8080": well}
        assert await recorded.live(2) > 0
        assert isinstance(node.mirror.model, RecordedModel)
        await node.planner.checkpoint(node.mirror.model)
        await recorded.live(2)
        assert recorded.owned_by("b3:8080"), "it was given some"
        moved = [
            row
            for row in node.decision_log.recent(1_000)
            if row["destination"] == "b2:8080" and row["kind"] == "unload"
        ]
        assert not moved, "nothing was moved to the one that is sick"
        await recorded.cluster.brokers.pop("b3:8080").leave()
        for topic in topics_by_bundle(recorded.leader, NAMESPACE, BUNDLES).values():
            await recorded.leader.lookup(topic)
        recorded.health = {}
        await recorded.live(2)
    items = recorded_in(tmp_path)
    outcome = replayed(items)
    assert outcome.difference is None
    assert {"shed", "place", "moved", "checkpoint"} <= outcome.compared.keys()
    said = {each["reason"] for row in rows_of(items, DECISIONS, "shed") for each in row.columns["verdicts"]}
    assert "broker_sick" in said
    reports = [item.report for item in items if isinstance(item, RecordedReport)]
    assert {HealthFigures(5.25), HealthFigures(900.5, 0.75), None} <= {report.health for report in reports}


async def test_a_report_that_was_changed_is_found_in_the_first_decision_on_it(tmp_path: Path) -> None:
    items = await a_life(tmp_path, rounds=1)
    first = next(at for at, each in enumerate(items) if isinstance(each, RecordedReport) and each.report.bundle_names)
    item = items[first]
    assert isinstance(item, RecordedReport)
    usage = item.report.usage.copy()
    usage[:, 0] += 1.0
    items[first] = replace(item, report=replace(item.report, usage=usage))
    outcome = replayed(items)
    assert outcome.difference is not None
    assert (outcome.difference.kind, outcome.difference.epoch) == ("shed", 1)
    assert outcome.difference.field == "verdict.why.average_percent"
    assert outcome.difference.recorded != outcome.difference.replayed


async def test_each_part_of_a_decision_that_was_changed_is_named(tmp_path: Path) -> None:
    items = await a_life(tmp_path)
    shed = next(row for row in rows_of(items, "decisions", "shed") if row.columns["steps"])
    placed = rows_of(items, "decisions", "place")[0]

    def found(row: Row, change: Callable[[dict[str, Any]], None]) -> tuple[int, str, object]:
        difference = replayed(list(with_changed(items, row, change))).difference
        assert difference is not None
        return difference.sequence, difference.field, difference.recorded

    def another_destination(columns: dict[str, Any]) -> None:
        columns["steps"][0]["destination"] = "b9:8080"

    def one_less(columns: dict[str, Any]) -> None:
        columns["verdicts"].pop()

    def another_generator(columns: dict[str, Any]) -> None:
        columns["rng_state"] = json.dumps({**json.loads(columns["rng_state"]), "uinteger": 7})

    assert found(shed, another_destination) == (shed.sequence, "step.destination", "b9:8080")
    assert found(shed, one_less)[:2] == (shed.sequence, "verdict")
    assert found(placed, another_generator)[:2] == (placed.sequence, "rng_state")
    done = rows_of(items, "moves", "done")[0]
    assert (
        found(done, lambda columns: columns.update(detail=columns["detail"].replace('"share":', '"share":1')))[1]
        == "share"
    )


async def test_a_checkpoint_that_was_changed_is_named_by_bundle_and_column(tmp_path: Path) -> None:
    items = await a_life(tmp_path)
    second = rows_of(items, "events", "checkpoint")[1]
    part = next(row for row in rows_of(items, "events", "checkpoint_part") if row.sequence > second.sequence)
    bundle = json.loads(part.columns["body"])["names"][3]

    def more_samples(columns: dict[str, Any]) -> None:
        body = json.loads(columns["body"])
        body["long_samples"][3] += 1
        columns["body"] = json.dumps(body)

    difference = replayed(list(with_changed(items, part, more_samples))).difference
    assert difference is not None
    assert (difference.kind, difference.subject, difference.field) == ("checkpoint_part", bundle, "long_samples")


async def test_rows_that_are_missing_are_named_unless_a_gap_says_so(tmp_path: Path) -> None:
    items = await a_life(tmp_path, rounds=2)
    gone = rows_of(items, "events", "namespace")[3]
    at = items.index(gone)
    outcome = replayed(items[:at] + items[at + 1 :])
    assert outcome.difference is None
    assert not outcome.is_equal
    assert f"epoch 1: sequences {gone.sequence} to {gone.sequence} are missing, and no gap says so" in outcome.notes
    body = {"rows": 1, "why": "full", "first_sequence": gone.sequence, "last_sequence": gone.sequence}
    after = items[at + 1]
    columns = {"kind": "gap", "subject": "", "body": json.dumps(body)}
    gap = Row(after.at_ms, after.epoch, after.sequence, "events", columns)
    marked = replayed([*items[:at], gap, *items[at + 2 :]])
    assert marked.is_equal
    assert "epoch 1: a gap of 1 rows: full" in marked.notes
    assert marked.compared["shed"] > 0, "it goes on at the next checkpoint"


async def test_a_row_that_cannot_be_used_is_named_and_ends_the_replay(tmp_path: Path) -> None:
    items = await a_life(tmp_path, rounds=1)
    row = rows_of(items, "events", "snapshot")[0]
    difference = replayed(list(with_changed(items, row, lambda columns: columns.update(body="[")))).difference
    assert difference is not None
    assert (difference.sequence, difference.kind) == (row.sequence, "snapshot")
    assert str(difference.replayed).startswith("JSONDecodeError")


async def test_drains_and_returns_are_replayed(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        node, b1 = recorded.leader.node, BrokerId("b1:8080")
        await recorded.report()
        await node.drains.start(b1)
        await eventually(lambda: node.drains.progress(b1).state == "done")
        assert isinstance(node.mirror.model, RecordedModel)
        await node.planner.checkpoint(node.mirror.model)
        await node.drains.stop(b1)
        bundle = recorded.owned_by("b2:8080")[0]
        await node.operators.update_controls(lambda controls: replace(controls, pinned={bundle: b1}))
        await eventually(lambda: recorded.owned_by("b1:8080") == [bundle])
    outcome = replayed(recorded_in(tmp_path))
    assert outcome.is_equal
    assert {"drain", "bring_home", "moved", "checkpoint"} <= outcome.compared.keys()
    assert not outcome.left_out


async def test_events_of_an_unknown_kind_are_skipped(tmp_path: Path) -> None:
    items = await a_life(tmp_path, rounds=1)
    last, columns = items[-1], {"kind": "of_another_version", "subject": "moves", "body": "{}"}
    assert replayed([*items, Row(last.at_ms, last.epoch, last.sequence + 1, "events", columns)]).is_equal


async def test_the_next_leader_goes_on_in_a_term_of_its_own(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        standby = await recorded.cluster.start_node(history_url=str(tmp_path), history_flush_interval_s=1)
        await recorded.live(1)
        await recorded.leader.node.stop()
        recorded.cluster.nodes.remove(recorded.leader)
        await recorded.cluster.known_everywhere(lambda node: node.leads)
        recorded.leader = standby
        await recorded.live(2)
    outcome = replayed(recorded_in(tmp_path))
    assert outcome.is_equal
    assert [note.partition(":")[0] for note in outcome.notes] == ["epoch 1", "epoch 2"]
    assert NAMESPACE in recorded.leader.node.mirror.namespaces
