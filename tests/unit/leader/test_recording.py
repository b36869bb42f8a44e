from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders import broker, bundle, owned, report
from support.nodes import a_leader
from support.recorded_cluster import NAMESPACE, a_recorded_leader
from support.waiting import eventually

from loadmanager.cli.replay_command import find_start, planner_settings_of, recorded_items
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.reasons import OwnershipReason, SplitReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.history.reader import History
from loadmanager.history.table_schemas import BUNDLE_REPORTS, DECISIONS, EVENTS, MOVES
from loadmanager.lab.replay.replayer import replay
from loadmanager.leader.audit.history_recorder import HistoryRecorder
from loadmanager.leader.audit.move_records import MoveRecorder
from loadmanager.leader.audit.recorded_model import RecordedModel
from loadmanager.leader.mirror.cluster_mirror import OperatorConfig
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.wire.checkpoint_codec import Later

MEMORY = {"moves": [[1.0, "t/ns/0x00000000_0xffffffff", "b1:8080", 5, 0.25, True, False]], "stoppedUntilS": 2.0}


def rows(folder: Path, table: str, kind: str | None = None) -> list[dict[str, Any]]:
    return [row for row in History(str(folder)).rows(table) if kind is None or row["kind"] == kind]


def body(row: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever is in it
    return json.loads(row["body"])


async def test_term_begins_with_a_checkpoint_of_all_decision_inputs(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        node = recorded.leader.node
        await recorded.live(1)
        assert isinstance(node.mirror.model, RecordedModel)
        await node.planner.checkpoint(node.mirror.model)
        bundles = sum(len(entry.state.bundles) for entry in node.mirror.namespaces.values())
    kinds = [row["kind"] for row in rows(tmp_path, EVENTS)]
    assert kinds[:3] == ["term_began", "leader_elected", "checkpoint"]
    assert kinds[-2:] == ["leader_lost", "term_ended"]
    first, second = map(body, rows(tmp_path, EVENTS, "checkpoint"))
    assert first["bundles"] == 0
    assert second["bundles"] == bundles
    assert second["settings"]["loadBalancerLoadSheddingStrategy"] == "ThresholdShedder"
    assert "historyUrl" not in second["settings"]
    assert set(second) >= {"policies", "controls", "faults", "states", "splitState", "churn", "rng", "registrations"}
    parts = rows(tmp_path, EVENTS, "checkpoint_part")
    assert {row["subject"] for row in parts} == {"bundles", "brokers", "namespaces"}
    assert len(parts) == first["parts"] + second["parts"]


async def test_reports_are_recorded_as_applied(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await recorded.report()
        averages = recorded.leader.node.mirror.model.bundle_averages(NAMESPACE)
    (report,) = (
        each.report
        for each in History(str(tmp_path)).reports()
        if each.report.bundle_names and "b1" in each.registration.broker
    )
    assert set(report.bundle_names) == set(averages)
    for name, load in zip(report.bundle_names, report.bundle_load, strict=True):
        np.testing.assert_array_equal(averages[name].short, load)
    rates = [float(row["msg_rate_in"]) for row in rows(tmp_path, BUNDLE_REPORTS)]
    assert all(round(rate, 3) == rate for rate in rates), "rates are rounded on intake"


async def test_decisions_are_recorded_with_settings_and_generator(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await recorded.live(2)
        settings_id = recorded.leader.node.recorder.settings_id
    shed = rows(tmp_path, DECISIONS, "shed")
    assert [row["cycle"] for row in shed] == [1, 2]
    for row in shed:
        assert row["settings_id"] == settings_id
        assert json.loads(row["rng_state"])["bit_generator"] == "PCG64"
        assert row["duration_ms"] > 0
        assert {verdict["subject"] for verdict in row["verdicts"]} >= {"b2:8080", "b3:8080"}
    placed = rows(tmp_path, DECISIONS, "place")
    assert len(json.loads(placed[0]["detail"])["bundles"]) == len(placed[0]["steps"]) == 1


async def test_moves_are_recorded_from_prediction_to_measurement(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        assert await recorded.live(2) > 0
        broker = recorded.cluster.brokers["b2:8080"]
        bundle = recorded.owned_by("b2:8080")[0]
        broker.status = 500
        recorded.leader.node.live.apply({"namespaceBundleUnloadingTimeoutMs": "1000"})
        with pytest.raises(Exception, match="stays with b2:8080"):
            await recorded.leader.unload(bundle)
    began = {row["sequence"]: row for row in rows(tmp_path, MOVES, "began")}
    done = rows(tmp_path, MOVES, "done")
    (kept,) = rows(tmp_path, MOVES, "kept")
    assert done
    for row in done:
        start = began[row["move"]]
        assert start["bundle"] == row["bundle"]
        if start["source"] == "b1:8080" and start["reason"] != SplitReason.SPLIT_PART_PLACED:
            assert start["imbalance_after"] < start["imbalance_before"]
        assert row["ended_ms"] >= row["started_ms"] == start["started_ms"]
    measured = rows(tmp_path, MOVES, "measured")
    assert {row["move"] for row in measured} <= {row["move"] for row in done}
    assert measured
    assert all(row["imbalance_before"] >= 1 for row in measured)
    assert (kept["bundle"], kept["outcome"]) == (bundle, "unload_failed")
    assert kept["move"] in began


async def test_operator_config_is_recorded_as_stored(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        leader = recorded.leader
        before = leader.node.recorder.settings_id
        path = "/admin/v2/brokers/configuration/loadBalancerBrokerThresholdShedderPercentage/20"
        assert (await leader.ask("POST", path)).status == 200
        await eventually(lambda: leader.node.recorder.settings_id != before)
        await leader.node.operators.update_anti_affinity(lambda groups: {**groups, NAMESPACE: "g"})
        await leader.node.drains.start(BrokerId("b3:8080"))
    (configured,) = rows(tmp_path, EVENTS, "configuration")
    assert body(configured)["loadBalancerBrokerThresholdShedderPercentage"] == "20"
    assert body(rows(tmp_path, EVENTS, "policies")[-1])["antiAffinity"] == {NAMESPACE: "g"}
    assert "b3:8080" in body(rows(tmp_path, EVENTS, "controls")[-1])["draining"]


async def test_change_of_one_bundle_is_recorded_as_one_entry(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        bundle = BundleName.parse(recorded.owned_by("b1:8080")[2])
        await recorded.leader.node.bundles.unload(bundle, None, OwnershipReason.ADMIN_UNLOAD)
    changes = [body(row).get("changed", {}) for row in rows(tmp_path, EVENTS, "namespace")]
    released = next(at for at, change in enumerate(changes) if any(new[:1] == ["Releasing"] for new in change.values()))
    (index,) = changes[released]
    assert changes[released + 1].keys() == {index}


async def test_nothing_is_recorded_without_a_history_or_a_term(tmp_path: Path) -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        assert not leader.node.recorder.is_on
        assert leader.node.recorder.figures.queue_rows == 0
    async with a_recorded_leader(tmp_path) as recorded:
        standby = await recorded.cluster.start_node(history_url=str(tmp_path / "standby"))
        await recorded.live(1)
        assert standby.node.recorder.is_on
        assert not standby.node.recorder.is_recording
    assert not list((tmp_path / "standby").rglob("*.parquet"))


async def test_unwritable_history_stops_nothing(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.write_text("a file where the directory should be")
    async with a_recorded_leader(history) as recorded:
        assert await recorded.live(2) > 0
        node = recorded.leader.node
        await eventually(lambda: node.recorder.figures.write_failures)
        reply = await recorded.leader.get("/metrics")
        text = reply.body.decode()
        assert float(text.partition('loadmanager_recording_queue_rows{cluster="')[2].split()[1]) > 0
        assert float(text.partition('loadmanager_recording_failing{cluster="')[2].split()[1]) == 1
        history.unlink()
    assert rows(history, EVENTS, "term_ended"), "queued rows are written"


async def test_rows_written_are_shown_as_metrics(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await recorded.live(1)
        await eventually(lambda: recorded.leader.node.recorder.figures.rows_written)
        text = (await recorded.leader.get("/metrics")).body.decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    name = next(name for name in values if name.startswith("loadmanager_recorded_rows_total"))
    assert float(values[name]) > 0
    assert values[name.replace("rows_total", "rows_lost_total")] == "0.0"
    assert values[next(name for name in values if name.startswith("loadmanager_recording{"))] == "1.0"


async def test_late_restore_of_strategy_state_is_replayed(tmp_path: Path) -> None:
    placement = {"load_balancer_load_placement_strategy": "RoundRobinBrokerSelector"}
    async with a_recorded_leader(tmp_path, **placement) as recorded:
        node = recorded.leader.node
        await node.planner.restore({"RoundRobinBrokerSelector": {"turn": 70, "order": []}, "churn": {"memory": MEMORY}})
        await recorded.own("t/third")
        assert isinstance(node.mirror.model, RecordedModel)
        await node.planner.checkpoint(node.mirror.model)
    history = History(str(tmp_path))
    outcome = replay(recorded_items(history, find_start(history, None), None), planner_settings_of)
    assert outcome.difference is None
    assert outcome.compared["checkpoint"] == 1


async def test_failed_decision_is_recorded(tmp_path: Path) -> None:
    async with a_recorded_leader(tmp_path) as recorded:
        await recorded.report()
        planner = recorded.leader.node.planner
        for nonsense in ({"usage": {"b2:8080": 7, "b3:8080": 7}}, "nonsense"):
            planner.state = {"ThresholdShedder": nonsense}
            with pytest.raises((TypeError, AttributeError)):
                await planner.shed()
            assert planner.state == {}
    errors = [json.loads(row["detail"])["error"].partition(":")[0] for row in rows(tmp_path, DECISIONS, "shed")]
    assert errors == ["TypeError", "AttributeError"]


def a_recorded_model() -> tuple[RecordedModel, list[str]]:
    """Return a recorded model and the list of recorded kinds."""
    put: list[str] = []

    class Told(HistoryRecorder):
        @property
        def is_on(self) -> bool:
            return True

        def put(self, entry: Any, _: int | None = None) -> int:  # noqa: ANN401 - any entry
            put.append(getattr(entry, "kind", type(entry).__name__))
            return len(put)

    recorder = Told(LiveSettings(Settings()), OperatorConfig())
    return RecordedModel(PlannerSettings(), recorder, MoveRecorder(recorder)), put


def test_set_owners_is_recorded_as_namespace_records() -> None:
    model, put = a_recorded_model()
    names = [bundle(0), bundle(1)]
    model.set_namespace("tenant/ns", names, [FREE, FREE])
    model.set_owners({names[1]: owned(broker("b1"))})
    assert put == ["namespace", "namespace"]
    assert model.records() == {"tenant/ns": (names, [FREE, owned(broker("b1"))])}


def test_node_without_a_history_keeps_no_records() -> None:
    recorder = HistoryRecorder(LiveSettings(Settings()), OperatorConfig())
    model = RecordedModel(PlannerSettings(), recorder, MoveRecorder(recorder))
    model.set_namespace("tenant/ns", [bundle(0)], [FREE])
    model.set_owners({bundle(0): owned(broker("b1"))})
    assert model.records() == {}


def test_derived_inputs_are_not_recorded() -> None:
    model, put = a_recorded_model()
    model.set_namespace("t/ns", (), ())
    model.remove_namespace("t/ns")
    for incarnation in (1, 2):
        model.apply_report(broker("b1", incarnation), report())
    assert put == ["namespace", "namespace_gone", *["broker_registered", "Report"] * 2]


def test_later_value_is_computed_only_when_needed() -> None:
    asked: list[int] = []
    later = Later(lambda: asked.append(1) or {"a": len(asked)})  # type: ignore[func-returns-value]
    assert not asked
    assert later.as_json() == {"a": 1}


def test_every_change_of_a_model_is_recorded() -> None:
    looks = {"checkpoint", "snapshot", "count_samples", "bundle_averages", "broker_time_averages"}
    looks |= {"unknown_bundles", "awaits_division"}
    looks |= {"known_bundles", "has_config_of", "namespaces_changed_since", "restore"}
    looks |= {"own_names", "owners"}
    looks |= {"revision", "bundles_ignored", "latest_reports", "bundles_of", "faults", "summary", "throughput"}
    looks |= {"releasing", "freed", "bundles_owned_by", "policies"}
    inputs = {name for name in vars(ClusterModel) if not name.startswith("_")} - looks
    assert inputs <= vars(RecordedModel).keys(), "a new input: record it, and apply it in sim.replay"
