from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs
from support.clock import ManualClock
from support.delays import a_memory_cluster
from support.memory_store import MemoryCluster, MemoryStore

from loadmanager.agent.agent_metrics import AgentMetrics
from loadmanager.agent.grants import Grants, Leases
from loadmanager.agent.presence import PresencePhase
from loadmanager.agent.registration import Registrar
from loadmanager.core.domain.names import BrokerId
from loadmanager.errors import StoreError
from loadmanager.net.liveness import Life
from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Delete, Put, Znode
from loadmanager.wire.broker_data import AGENT_PROTOCOL, LocalBrokerData, encode_local_broker_data

BROKER = BrokerId("a:8080")
PATH = paths.broker(BROKER)
PROTOCOLS = {AGENT_PROTOCOL: "http://127.0.0.1:9090"}
LEASE_MS = 3000
LEASE_S = 3.1
PROCESS, RESTARTED = (100, 1), (101, 2)


@dataclass
class Beside:
    """A registration on a store in memory, and everything it stands on."""

    clock: ManualClock = field(default_factory=ManualClock)
    cluster: MemoryCluster = field(init=False)
    store: MemoryStore = field(init=False)
    grants: Grants = field(init=False)
    leases: Leases = field(init=False)
    metrics: AgentMetrics = field(init=False)
    life: Life = field(default_factory=Life)
    registration: Registrar = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = a_memory_cluster(self.clock)
        self.store = MemoryStore(self.cluster)
        self.grants = Grants(BROKER)
        self.leases = Leases(LEASE_MS)
        self.metrics = AgentMetrics(BROKER)
        self.closed: list[int] = []
        self.registration = Registrar(
            self.store,
            BROKER,
            self.life,
            self.grants,
            self.leases,
            self.metrics,
            self.clock,
            AsyncMock(return_value=b"{}"),
            lambda: self.closed.append(self.grants.incarnation or 0),
        )

    async def registered(self) -> int:
        await self.registration.step(PROCESS)
        incarnation = self.registration.incarnation
        assert incarnation is not None
        return incarnation

    def phase(self) -> PresencePhase:
        return self.registration.phase

    async def znode(self) -> Znode | None:
        return self.cluster.find(PATH)

    async def another_store(self) -> MemoryStore:
        store = MemoryStore(self.cluster)
        await store.start()
        return store

    async def leftover_of(self, life: Life, lease_ms: int = LEASE_MS) -> MemoryStore:
        """A znode that another session holds, made by an agent at the URL that is ours too."""
        record = LocalBrokerData(protocols=PROTOCOLS, agentLife=life.name, brokerLeaseMs=lease_ms)
        return await self.leftover(encode_local_broker_data(record))

    async def leftover(self, data: bytes) -> MemoryStore:
        store = await self.another_store()
        await store.commit([Create(PATH, data, ephemeral=True)])
        return store


@pytest.fixture
async def beside() -> AsyncIterator[Beside]:
    beside = Beside()
    await beside.store.start()
    await beside.store.ensure_path(paths.BROKERS)
    yield beside
    beside.life.close()
    await beside.store.close()


def a_past_life(place: str | None = None) -> Life:
    life = Life(place)
    life.close()
    return life


async def test_missing_parent_znode_is_created(beside: Beside) -> None:
    """It may be the first thing there, or have lost everything."""
    await beside.store.commit([Delete(paths.BROKERS)])
    assert await beside.registered()


@pytest.mark.parametrize("path", [paths.BROKERS, PATH])
async def test_denied_access_is_retried_and_logged_once(beside: Beside, path: str) -> None:
    beside.cluster.shut[path] = "no access"
    with capture_logs() as logs:
        for _ in range(2):
            beside.clock.advance(await beside.registration.step(PROCESS))
    assert beside.registration.incarnation is None
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("registration_delayed", "warning")]
    del beside.cluster.shut[path]
    await beside.registered()


async def test_czxid_of_the_znode_is_the_incarnation_of_the_grants(beside: Beside) -> None:
    incarnation = await beside.registered()
    znode = await beside.znode()
    assert znode is not None
    assert incarnation == znode.czxid == beside.grants.incarnation
    assert znode.ephemeral_owner == beside.store.session_id


async def test_absent_broker_gets_no_registration_and_no_lease(beside: Beside) -> None:
    await beside.registration.step(None)
    assert beside.phase() is PresencePhase.ABSENT
    assert beside.registration.grant_lease() == 0
    assert await beside.znode() is None


async def test_lost_session_leads_to_a_new_incarnation(beside: Beside) -> None:
    first = await beside.registered()
    beside.cluster.expire(beside.store)
    assert beside.registration.incarnation is None
    assert beside.registration.grant_lease() == 0
    await beside.registration.step(PROCESS)
    assert await beside.registered() > first
    assert beside.closed == [first], "while it was known still what the broker may have open"


async def test_leases_end_with_session_certainty_and_return_on_reconnection(beside: Beside) -> None:
    incarnation = await beside.registered()
    beside.cluster.partition(beside.store, noticed=True)
    assert beside.registration.grant_lease() == LEASE_MS
    beside.clock.advance(beside.store.session_timeout_s * 2 / 3 - 1)
    assert 0 < beside.registration.grant_lease() <= 1000
    beside.clock.advance(1)
    assert beside.registration.grant_lease() == 0
    assert not beside.registration.is_certain
    beside.cluster.heal(beside.store)
    assert beside.registration.grant_lease() == LEASE_MS
    assert beside.registration.incarnation == incarnation


async def test_znode_of_a_lost_broker_stays_until_its_last_lease_lapsed(beside: Beside) -> None:
    await beside.registered()
    assert beside.registration.grant_lease() == LEASE_MS
    beside.clock.advance(1)
    wait_s = await beside.registration.step(None)
    assert beside.phase() is PresencePhase.WITHDRAWING
    assert beside.registration.grant_lease() == 0
    assert beside.grants.incarnation is None
    assert await beside.znode() is not None
    beside.clock.advance(wait_s)
    await beside.registration.step(None)
    assert beside.phase() is PresencePhase.ABSENT
    assert await beside.znode() is None


async def test_lost_broker_gets_no_lease_while_the_store_is_unreachable(beside: Beside) -> None:
    await beside.registered()
    beside.cluster.partition(beside.store, noticed=True)
    await beside.registration.step(None)
    assert beside.phase() is PresencePhase.WITHDRAWING
    assert beside.registration.grant_lease() == 0
    beside.cluster.heal(beside.store)
    await beside.registration.step(None)
    assert await beside.znode() is None


async def test_znode_of_a_successor_stays(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    await beside.registered()
    await beside.registration.publish(b"at a later version than a new one")
    beside.registration.withdraw("stopped")
    get = beside.store.get

    async def get_what_is_gone_by_then(path: str) -> Znode | None:
        znode = await get(path)
        monkeypatch.undo()
        other = await beside.another_store()
        await other.commit([Delete(PATH)])
        await other.commit([Create(PATH, b"theirs", ephemeral=True)])
        return znode

    monkeypatch.setattr(beside.store, "get", get_what_is_gone_by_then)
    for _ in range(2):
        await beside.registration.step(None)
    assert beside.phase() is PresencePhase.ABSENT
    znode = await beside.znode()
    assert znode is not None
    assert znode.data == b"theirs"


async def test_znode_is_deleted_at_once_when_no_lease_was_granted(beside: Beside) -> None:
    await beside.registered()
    await beside.registration.step(None)
    assert await beside.znode() is None


async def test_lease_is_not_waited_for_when_the_broker_closed_everything(beside: Beside) -> None:
    await beside.registered()
    beside.registration.grant_lease()
    assert beside.registration.withdraw("stopped")
    beside.registration.broker_closed_everything()
    await beside.registration.step(None)
    assert await beside.znode() is None


async def test_broker_returning_during_withdrawal_is_a_new_incarnation(beside: Beside) -> None:
    first = await beside.registered()
    beside.registration.grant_lease()
    await beside.registration.step(None)
    wait_s = await beside.registration.step(PROCESS)
    assert beside.registration.incarnation is None, "the old registration is not taken up again"
    beside.clock.advance(wait_s)
    await beside.registration.step(PROCESS)
    assert await beside.registered() > first


async def test_new_pid_is_a_new_incarnation_after_the_old_leases(beside: Beside) -> None:
    first = await beside.registered()
    beside.registration.grant_lease()
    wait_s = await beside.registration.step(RESTARTED)
    assert 0 < wait_s <= LEASE_S
    assert beside.registration.grant_lease() == 0
    beside.clock.advance(wait_s)
    await beside.registration.step(RESTARTED)
    await beside.registration.step(RESTARTED)
    assert beside.registration.incarnation is not None
    assert beside.registration.incarnation > first


async def test_deleted_znode_leads_to_a_new_registration(beside: Beside) -> None:
    first = await beside.registered()
    operator = await beside.another_store()
    await operator.commit([Delete(PATH)])
    await beside.registration.step(PROCESS)
    assert beside.registration.incarnation is not None
    assert beside.registration.incarnation > first


async def test_leftover_of_a_former_life_is_deleted_after_its_leases(beside: Beside) -> None:
    await beside.leftover_of(a_past_life())
    leftover = await beside.znode()
    wait_s = await beside.registration.step(PROCESS)
    assert LEASE_MS / 1000 <= wait_s <= LEASE_S
    assert await beside.znode() == leftover
    assert beside.registration.grant_lease() == 0
    beside.clock.advance(wait_s)
    await beside.registration.step(PROCESS)
    assert await beside.znode() is None
    await beside.registered()


async def test_vanished_leftover_is_not_waited_for(beside: Beside) -> None:
    former = await beside.leftover_of(a_past_life())
    await beside.registration.step(PROCESS)
    await former.close()
    await beside.registered()


async def test_leftover_is_waited_for_by_its_own_lease_length(beside: Beside) -> None:
    await beside.leftover_of(a_past_life(), lease_ms=30_000)
    leftover = await beside.znode()
    assert 30 <= await beside.registration.step(PROCESS) <= 31
    beside.clock.advance(29)
    await beside.registration.step(PROCESS)
    assert await beside.znode() == leftover
    beside.clock.advance(2)
    await beside.registration.step(PROCESS)
    await beside.registered()


async def test_leftover_of_this_life_in_an_abandoned_session_is_replaced(beside: Beside) -> None:
    await beside.leftover_of(beside.life)
    beside.clock.advance(await beside.registration.step(PROCESS))
    await beside.registration.step(PROCESS)
    await beside.registered()


@pytest.mark.parametrize("place", [None, "another-host"], ids=["on this host", "on another host"])
async def test_znode_of_a_living_agent_is_kept(beside: Beside, place: str | None) -> None:
    other = Life(place)
    await beside.leftover_of(other)
    znode = await beside.znode()
    with capture_logs() as logs:
        for _ in range(3):
            await beside.registration.step(PROCESS)
            beside.clock.advance(LEASE_S)
    other.close()
    assert beside.phase() is PresencePhase.ABSENT
    assert await beside.znode() == znode
    assert [entry["event"] for entry in logs] == ["broker_id_in_use"], "said once"


@pytest.mark.parametrize("data", [b"{}", encode_local_broker_data({"protocols": PROTOCOLS})])
async def test_znode_of_an_unknown_agent_is_left_to_its_session(beside: Beside, data: bytes) -> None:
    other = await beside.leftover(data)
    for _ in range(3):
        await beside.registration.step(PROCESS)
        beside.clock.advance(LEASE_S)
    assert await beside.znode() is not None
    await other.close()
    await beside.registered()


async def test_ended_agent_on_another_host_is_waited_for_until_its_session_ends(beside: Beside) -> None:
    other = await beside.leftover_of(a_past_life("another-host"))
    await beside.registration.step(PROCESS)
    beside.clock.advance(LEASE_S)
    await beside.registration.step(PROCESS)
    assert await beside.znode() is not None
    await other.close()
    await beside.registered()


async def test_no_lease_is_granted_once_the_agent_is_stopping(beside: Beside) -> None:
    await beside.registered()
    beside.registration.end()
    assert beside.registration.grant_lease() == 0
    assert not beside.registration.is_certain
    assert beside.phase() is PresencePhase.REGISTERED


async def test_unreadable_leftover_is_left_to_expire_and_counted(beside: Beside) -> None:
    await beside.leftover(b"\x1f\x8bgarbage")
    await beside.registration.step(PROCESS)
    beside.clock.advance(LEASE_S)
    await beside.registration.step(PROCESS)
    assert await beside.znode() is not None
    counted = beside.metrics.registry.get_sample_value("loadmanager_agent_garbage_total", {"source": "registration"})
    assert counted == 2


async def test_creation_with_a_lost_answer_is_detected(beside: Beside) -> None:
    beside.cluster.lose_answer(beside.store)
    await beside.registration.step(PROCESS)
    assert beside.registration.incarnation is None
    beside.cluster.heal(beside.store)
    znode = await beside.znode()
    assert znode is not None
    assert await beside.registered() == znode.czxid


async def test_deletion_with_a_lost_answer_is_detected(beside: Beside) -> None:
    first = await beside.registered()
    beside.registration.withdraw("stopped")
    beside.cluster.lose_answer(beside.store)
    await beside.registration.step(None)
    beside.cluster.heal(beside.store)
    await beside.registration.step(None)
    assert beside.phase() is PresencePhase.ABSENT
    assert await beside.registered() > first


async def test_report_replaces_the_znode_without_a_new_incarnation(beside: Beside) -> None:
    incarnation = await beside.registered()
    await beside.registration.publish(b'{"a":1}')
    await beside.registration.publish(b'{"a":2}')
    znode = await beside.znode()
    assert znode is not None
    assert (znode.data, znode.czxid) == (b'{"a":2}', incarnation)


async def test_reports_continue_after_another_client_wrote_the_znode(beside: Beside) -> None:
    await beside.registered()
    operator = await beside.another_store()
    await operator.commit([Put(PATH, b"graffiti")])
    with pytest.raises(StoreError):
        await beside.registration.publish(b"{}")
    await beside.registration.step(PROCESS)
    await beside.registration.publish(b"{}")


async def test_withdrawn_broker_publishes_nothing(beside: Beside) -> None:
    await beside.registered()
    beside.registration.withdraw("stopped")
    with pytest.raises(StoreError, match="not registered"):
        await beside.registration.publish(b"{}")


async def test_second_withdrawal_does_nothing(beside: Beside) -> None:
    assert not beside.registration.withdraw("stopped")
    await beside.registered()
    assert beside.registration.withdraw("stopped")
    assert not beside.registration.withdraw("stopped")
