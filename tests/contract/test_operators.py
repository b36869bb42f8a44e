from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from support.nodes import Cluster, RunningNode, in_memory, on_zookeeper
from support.registrations import write
from support.waiting import eventually

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import ConcurrentModificationError, InvalidRecordError, NotLeaderError
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, MetadataStore, Op, Put
from loadmanager.store.znode_codec import decode, pack
from loadmanager.wire.control_records import decode_controls, encode_controls
from loadmanager.wire.store_records import decode_configuration, encode_configuration

GRACE = "loadBalancerSheddingGracePeriodMinutes"


@pytest.fixture(params=["memory", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    connect = in_memory()
    if request.param == "zookeeper":
        connect = on_zookeeper(request.getfixturevalue("zookeeper"), request.getfixturevalue("chroot"))
    async with Cluster(connect) as cluster:
        yield cluster


def excluding(broker: str, controls: Controls) -> Controls:
    return replace(controls, excluded=controls.excluded | {BrokerId(broker)})


async def stored_controls(store: MetadataStore) -> Controls:
    await store.sync()
    znode = await store.get(paths.CONTROLS)
    return Controls() if znode is None else decode_controls(decode(znode.data, paths.CONTROLS), paths.CONTROLS)


class Meddling:
    """Somebody who changes the same znode right before the leader's next writes, `times` times."""

    def __init__(self, leader: RunningNode, other: MetadataStore, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        commit = leader.store.commit
        self.left = times

        async def meddle(ops: Sequence[Op], *, session_id: int | None = None) -> list[int]:
            if self.left and any(op.path == paths.CONFIGURATION for op in ops):
                self.left -= 1
                overrides = {"maxConcurrentUnloads": str(self.left + 1)}
                await write(other, paths.CONFIGURATION, pack(encode_configuration(overrides)))
            return await commit(ops, session_id=session_id)

        monkeypatch.setattr(leader.store, "commit", meddle)


async def test_a_change_is_known_to_the_leader_at_once_and_to_the_others_soon(cluster: Cluster) -> None:
    leader, follower = await cluster.start_nodes(2)
    await leader.node.operators.update_controls(lambda controls: excluding("b1:8080", controls))
    assert leader.node.mirror.operator_config.controls.excluded == {"b1:8080"}
    await eventually(lambda: follower.node.mirror.operator_config.controls.excluded == {"b1:8080"})
    assert await stored_controls(cluster.store) == leader.node.mirror.operator_config.controls


async def test_changes_at_the_same_time_are_all_made(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    operators, brokers = leader.node.operators, [f"b{number}:8080" for number in range(3)]
    await asyncio.gather(*(operators.update_controls(lambda known, b=b: excluding(b, known)) for b in brokers))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    assert (await stored_controls(cluster.store)).excluded == set(brokers)


async def test_a_change_that_changes_nothing_is_not_written(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    for _ in range(2):
        await leader.node.operators.update_controls(lambda controls: excluding("b1:8080", controls))
    znode = await cluster.store.get(paths.CONTROLS)
    assert znode is not None
    assert znode.version == 0


async def test_a_deposed_leader_lays_down_nothing(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    leader.node.election._resigned = True  # else it might lead again before it is asked
    await cluster.store.commit([Put(paths.EPOCH, b"another"), Delete(paths.LEADER)])
    with pytest.raises(NotLeaderError):
        await leader.node.operators.update_controls(lambda controls: excluding("b1:8080", controls))
    assert await stored_controls(cluster.store) == Controls()


async def test_a_follower_lays_down_nothing(cluster: Cluster) -> None:
    _, follower = await cluster.start_nodes(2)
    with pytest.raises(NotLeaderError):
        await follower.node.operators.update_controls(lambda controls: excluding("b1:8080", controls))
    assert await stored_controls(cluster.store) == Controls()


async def test_change_is_applied_to_the_latest_record(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = await cluster.start_leader()
    Meddling(leader, cluster.store, 3, monkeypatch)
    stored = await leader.node.operators.update_configuration(lambda overrides: {**overrides, GRACE: "5"})
    assert stored == {GRACE: "5", "maxConcurrentUnloads": "1"}
    assert leader.node.live.overrides == stored


async def test_change_gives_up_after_endless_conflicts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = await cluster.start_leader()
    Meddling(leader, cluster.store, 1_000, monkeypatch)
    with pytest.raises(ConcurrentModificationError, match="Concurrent modification of /loadbalance/configuration"):
        await leader.node.operators.update_configuration(lambda overrides: {**overrides, GRACE: "5"})
    znode = await cluster.store.get(paths.CONFIGURATION)
    assert znode is not None
    assert GRACE not in decode_configuration(decode(znode.data, znode.path), znode.path)


async def test_what_cannot_be_read_is_not_written_over(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    await write(cluster.store, paths.CONTROLS, b"garbage")
    with pytest.raises(InvalidRecordError, match="/loadbalance/policies/controls"):
        await leader.node.operators.update_controls(lambda controls: excluding("b1:8080", controls))
    znode = await cluster.store.get(paths.CONTROLS)
    assert znode is not None
    assert znode.data == b"garbage"


async def test_a_value_in_the_configuration_that_is_no_text_spoils_no_other(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    await write(cluster.store, paths.CONFIGURATION, f'{{"{GRACE}": 5, "maxConcurrentUnloads": null}}'.encode())
    await eventually(lambda: leader.node.live.overrides == {GRACE: "5"})
    assert "maxConcurrentUnloads" in leader.node.mirror.faults[paths.CONFIGURATION]


@pytest.mark.parametrize("damaged", [b"garbage", b"[]", b"\x1f\x8bgarbage"])
async def test_a_damaged_configuration_is_replaced_by_what_is_in_force(cluster: Cluster, damaged: bytes) -> None:
    leader = await cluster.start_leader()
    await leader.node.operators.update_configuration(lambda _: {GRACE: "5"})
    await write(cluster.store, paths.CONFIGURATION, damaged)
    await eventually(lambda: paths.CONFIGURATION in leader.node.mirror.faults)
    path = "/admin/v2/brokers/configuration"
    assert (await leader.ask("POST", f"{path}/maxConcurrentUnloads/3")).status == 200
    assert leader.node.live.overrides == {GRACE: "5", "maxConcurrentUnloads": "3"}
    assert not leader.node.mirror.faults
    await write(cluster.store, paths.CONFIGURATION, damaged)
    assert (await leader.ask("DELETE", f"{path}/loadBalancerBrokerMaxTopics")).status == 200
    await eventually(lambda: not leader.node.mirror.faults)
    assert leader.node.live.overrides == {GRACE: "5", "maxConcurrentUnloads": "3"}


async def test_holds_that_have_ended_are_dropped_with_the_next_change(cluster: Cluster) -> None:
    leader = await cluster.start_leader()
    ended = Controls(held_off={BrokerId("b1:8080"): 1.0})
    await write(cluster.store, paths.CONTROLS, encode_controls(ended))
    stored = await leader.node.operators.update_controls(lambda controls: excluding("b2:8080", controls))
    assert not stored.held_off
    assert stored.excluded == {"b2:8080"}
