from __future__ import annotations

import numpy as np
from support.builders import broker, bundle, report, snapshot
from support.nodes import a_planner
from support.stores import MemoryWorld

from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.planning.decision_kinds import as_json
from loadmanager.core.planning.planner import plan_assignments
from loadmanager.leader.election.campaign import Election
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.persistence import Persistence, pack_within_limit
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, MetadataStore
from loadmanager.store.znode_codec import decode
from loadmanager.wire.store_records import LeaderRecord
from loadmanager.wire.strategy_state import StrategyStateRecord

A, B = broker("a"), broker("b")
NODE = LeaderRecord(broker_id="node:1", service_url="http://node:1", epoch=0)


def persistence(store: MetadataStore, mirror: ClusterMirror) -> Persistence:
    election = Election(store, mirror, NODE, lambda _: None, lambda _: None)
    live = LiveSettings(Settings())
    return Persistence(store, mirror, election, a_planner(mirror, live), nothing_to_reject, live)


def nothing_to_reject(path: str, error: Exception) -> None:
    raise AssertionError(f"{path}: {error}")


async def test_next_leader_restores_sources_and_times_of_unloads() -> None:
    world = MemoryWorld()
    store = await world.connect()
    leader, successor = ClusterMirror(), ClusterMirror()
    leader.model.mark_unloaded(bundle(1), 1_000.0, A.broker)
    record = pack_within_limit(persistence(store, leader)._strategy_state())
    await store.ensure_path(paths.BROKER_TIME_AVERAGE)
    await store.commit([Create(paths.STRATEGY_STATE, record)])
    for registration in (A, B):
        successor.model.apply_report(registration, report())
    await persistence(store, successor).take_over()
    snapshot = successor.model.snapshot(1_010.0, 60.0)
    assert np.array_equal(snapshot.brokers.last_unloaded_s, [1_000.0, np.nan], equal_nan=True)
    assert successor.model.unloads.of_bundles == {bundle(1): 1_000.0}
    await world.close()


def test_too_large_states_are_dropped_and_unloads_kept() -> None:
    rng = np.random.default_rng(0)
    quotas = {bundle(i): rng.random(5).tolist() for i in range(20_000)}
    record = StrategyStateRecord(
        states={"leastLoadedServer": {"model": {"quotas": quotas}}}, recently_unloaded={"b": 1}
    )
    kept = StrategyStateRecord.model_validate_json(decode(pack_within_limit(record), "here"))
    assert (kept.states, kept.recently_unloaded) == ({}, {"b": 1})
    few = record.model_copy(update={"states": {"leastLoadedServer": {"cursor": 1}}})
    assert StrategyStateRecord.model_validate_json(decode(pack_within_limit(few), "here")) == few


def test_columnar_strategy_state_survives_json() -> None:
    given = snapshot({"a": report({bundle(1): (100, 100, 1e5, 1e5)}, last_update_ms=60_000)}, taken_at_s=60.0)
    settings = PlannerSettings(load_manager_class_name="SimpleLoadManagerImpl")
    _, state = plan_assignments(given, [bundle(2)], settings, {}, np.random.default_rng(0))
    written = pack_within_limit(StrategyStateRecord(states=state))
    read = StrategyStateRecord.model_validate_json(decode(written, "here")).states
    assert read == as_json(state)
    assert read["leastLoadedServer"]["model"]["quotas"][bundle(1)] == [100, 100, 1e5, 1e5, 25]
    _, again = plan_assignments(given, [bundle(2)], settings, read, np.random.default_rng(0))
    assert as_json(again)["leastLoadedServer"] == {**read["leastLoadedServer"], "cursor": 2}


def test_state_without_sources_is_read() -> None:
    record = StrategyStateRecord.model_validate_json(
        '{"states": {}, "recentlyUnloaded": {"t/n/0x00000000_0xffffffff": 1}}'
    )
    assert record.last_unloaded == {}
