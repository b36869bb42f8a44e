from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson
import pytest
from support.fake_pulsar import FakePulsar
from support.registrations import write
from support.stores import MemoryWorld
from support.waiting import eventually, patience

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.core.protocol.leadership import Term
from loadmanager.errors import InvalidRecordError, NotLeaderError, StaleEpochError, TransactionFailedError
from loadmanager.pulsar.fenced_znode import FencedRecord
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError
from loadmanager.pulsar.take_over import SWITCHES, TakeOver
from loadmanager.store import paths
from loadmanager.store.metadata_store import Delete, MetadataStore, Put

SHEDS, SPLITS = SWITCHES


@dataclass
class Leads:
    """Election that is won once."""

    term: Term | None

    def get_term(self) -> Term:
        if self.term is None:
            raise NotLeaderError("this node does not lead")
        return self.term

    def deposed(self) -> None:
        self.term = None


class Ours:
    """Our own store, apart from Pulsar's, and the processes that are elected in it one after the other."""

    def __init__(self, pulsar: FakePulsar, store: MetadataStore, admin: PulsarAdmin) -> None:
        self.pulsar = pulsar
        self.store = store
        self.admin = admin
        self.leads = Leads(None)

    async def elect(self, *, mode: str = "act", take_over: bool = True) -> TakeOver:
        """Another process, which leads now."""
        await self.store.commit([Put(paths.EPOCH, b"")])
        epoch = await self.store.get(paths.EPOCH)
        assert epoch is not None
        self.leads = Leads(Term(epoch.version, self.store.session_id))
        settings = PulsarServiceSettings.model_validate(
            {
                "adminUrls": self.pulsar.urls,
                "stateStoreUrl": "zk:127.0.0.1:2181/ours",
                "mode": mode,
                "takeOver": take_over,
            }
        )
        return TakeOver(self.admin, FencedRecord(self.store, self.leads, paths.TAKEN_OVER), settings)

    async def remembered(self) -> dict[str, str | None]:
        znode = await self.store.get(paths.TAKEN_OVER)
        return {} if znode is None else orjson.loads(znode.data)["before"]


@pytest.fixture
async def ours(pulsar: FakePulsar) -> AsyncIterator[Ours]:
    world = MemoryWorld()
    store = await world.connect()
    await write(store, paths.EPOCH, b"")
    async with PulsarAdmin(pulsar.urls[:1], timeout_s=patience()) as admin:
        admin.trust([each.broker_id for each in pulsar.brokers])
        yield Ours(pulsar, store, admin)
    await world.close()


async def test_only_enabled_switches_are_turned_off_and_all_are_restored(pulsar: FakePulsar, ours: Ours) -> None:
    before = {"loadManagerClassName": "x", SPLITS: "true"}
    await pulsar.set_dynamic(before)
    one = await ours.elect()
    await one.begin()
    await one.take([SPLITS])
    assert await pulsar.dynamic() == {**before, SPLITS: "false"}
    await one.take(SWITCHES)
    assert await pulsar.dynamic() == {**before, SPLITS: "false", SHEDS: "false"}
    assert await ours.remembered() == {SPLITS: "true", SHEDS: None}
    assert sorted(one.undo_commands()) == [
        f"pulsar-admin brokers delete-dynamic-config --config {SHEDS}",
        f"pulsar-admin brokers update-dynamic-config --config {SPLITS} --value true",
    ]
    await one.restore_switches()
    assert await pulsar.dynamic() == before
    assert (await ours.remembered(), one.undo_commands()) == ({}, [])


async def test_pulsar_is_not_asked_while_all_switches_are_off(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    await one.take([])
    await one.restore_switches()
    assert pulsar.asked == []
    assert await ours.store.get(paths.TAKEN_OVER) is None


async def test_previous_value_is_stored_before_pulsar_is_changed(pulsar: FakePulsar, ours: Ours) -> None:
    seen: list[dict[str, str | None]] = []
    one = await ours.elect()
    await one.begin()
    pulsar.faults.hold(f"/{SHEDS}/")
    taking = asyncio.ensure_future(one.take([SHEDS]))
    await eventually(lambda: any(each.method == "POST" for each in pulsar.asked))
    seen.append(await ours.remembered())
    taking.cancel()  # as if by kill -9
    assert seen == [{SHEDS: None}]
    assert await pulsar.dynamic() == {}


async def test_successor_restores_the_values_from_before_the_first_process(pulsar: FakePulsar, ours: Ours) -> None:
    await pulsar.set_dynamic({SHEDS: "true"})
    killed = await ours.elect()
    await killed.begin()
    await killed.take(SWITCHES)
    successor = await ours.elect()
    await successor.begin()
    await successor.take(SWITCHES)
    await successor.restore_switches()
    assert await pulsar.dynamic() == {SHEDS: "true"}


async def test_successor_without_take_over_restores_at_once(pulsar: FakePulsar, ours: Ours) -> None:
    killed = await ours.elect()
    await killed.begin()
    await killed.take(SWITCHES)
    await (await ours.elect(take_over=False)).begin()
    assert (await pulsar.dynamic(), await ours.remembered()) == ({}, {})


async def test_observing_process_only_names_the_undo_commands(pulsar: FakePulsar, ours: Ours) -> None:
    killed = await ours.elect()
    await killed.begin()
    await killed.take([SHEDS])
    observer = await ours.elect(mode="observe", take_over=False)
    await observer.begin()
    assert observer.undo_commands() == [f"pulsar-admin brokers delete-dynamic-config --config {SHEDS}"]
    assert await pulsar.dynamic() == {SHEDS: "false"}


async def test_change_by_an_operator_is_kept_until_the_next_term(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    await one.take(SWITCHES)
    await pulsar.set_dynamic({SHEDS: "true"})
    await one.take(SWITCHES)
    assert await pulsar.dynamic() == {SHEDS: "true"}
    await one.restore_switches()
    assert await pulsar.dynamic() == {SHEDS: "true"}
    await one.begin()
    await one.take([SHEDS])
    assert await pulsar.dynamic() == {SHEDS: "false"}
    assert await ours.remembered() == {SHEDS: "true"}


async def test_stored_but_unapplied_change_is_forgotten_by_the_next_process(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    pulsar.faults.refuse(f"/{SHEDS}/", 500)
    with pytest.raises(PulsarRefusedError, match="answered 500"):
        await one.take([SHEDS])
    assert await ours.remembered() == {SHEDS: None}
    await pulsar.set_dynamic({SHEDS: "true"})
    await (await ours.elect()).begin()
    assert await ours.remembered() == {}
    assert await pulsar.dynamic() == {SHEDS: "true"}


async def test_failed_change_is_retried_and_keeps_the_original_value(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    pulsar.faults.refuse(f"/{SHEDS}/", 503)
    with pytest.raises(PulsarRefusedError):
        await one.take([SHEDS])
    await one.take([SHEDS])
    assert await pulsar.dynamic() == {SHEDS: "false"}
    assert await ours.remembered() == {SHEDS: None}


async def test_switch_already_off_is_left_alone(pulsar: FakePulsar, ours: Ours) -> None:
    await pulsar.set_dynamic({SHEDS: "false"})
    one = await ours.elect()
    await one.begin()
    await one.take([SHEDS])
    await one.restore_switches()
    assert await pulsar.dynamic() == {SHEDS: "false"}


async def test_nothing_is_taken_after_giving_back(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    await one.restore_switches()
    await one.take(SWITCHES)
    assert await pulsar.dynamic() == {}


async def test_deposed_process_takes_nothing(pulsar: FakePulsar, ours: Ours) -> None:
    deposed = await ours.elect()
    await deposed.begin()
    its_election = ours.leads
    await ours.elect()
    with pytest.raises(StaleEpochError):
        await deposed.take([SHEDS])
    assert its_election.term is None
    with pytest.raises(NotLeaderError):
        await deposed.take([SHEDS])
    assert not [each for each in pulsar.asked if each.method != "GET"]


async def test_deposed_process_gives_nothing_back(pulsar: FakePulsar, ours: Ours) -> None:
    deposed = await ours.elect()
    await deposed.begin()
    await deposed.take([SHEDS])
    ours.leads.deposed()
    with pytest.raises(NotLeaderError):
        await deposed.restore_switches()
    assert await pulsar.dynamic() == {SHEDS: "false"}


async def test_process_never_elected_takes_nothing(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    ours.leads.deposed()
    with pytest.raises(NotLeaderError):
        await one.take([SHEDS])
    assert (await pulsar.dynamic(), await ours.remembered()) == ({}, {})


async def test_conflicting_or_deleted_record_is_written_at_the_next_attempt(ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    await write(ours.store, paths.TAKEN_OVER, b"{}")
    with pytest.raises(TransactionFailedError):
        await one.take([SHEDS])
    await one.take([SHEDS])
    await ours.store.commit([Delete(paths.TAKEN_OVER)])
    with pytest.raises(TransactionFailedError):
        await one.take(SWITCHES)
    await one.take(SWITCHES)
    assert await ours.remembered() == {SHEDS: None, SPLITS: None}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"before":1}', b'{"before":{"a":1}}'])
async def test_invalid_record_is_named_and_nothing_is_done(pulsar: FakePulsar, ours: Ours, data: bytes) -> None:
    await write(ours.store, paths.TAKEN_OVER, data)
    with pytest.raises(InvalidRecordError, match=f"^{paths.TAKEN_OVER}: not the record of a take-over"):
        await (await ours.elect()).begin()
    assert pulsar.asked == []


async def test_take_over_is_retried_until_pulsar_and_the_store_answer(
    pulsar: FakePulsar, ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.take_over._AGAIN_S", 0.0)
    killed = await ours.elect()
    await killed.begin()
    await killed.take([SHEDS])
    one = await ours.elect()
    pulsar.faults.refuse("/values", 503, times=2)
    on: set[str] = set()
    running = asyncio.ensure_future(one.run(lambda: on))
    await eventually(lambda: len(one.undo_commands()) == 1)
    pulsar.faults.refuse("/", 503, times=3)
    on.update(SWITCHES)
    await eventually(lambda: len(one.undo_commands()) == 2)
    await one.restore_switches()
    assert await pulsar.dynamic() == {}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_nothing_is_taken_over_unless_configured(
    pulsar: FakePulsar, ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadmanager.pulsar.take_over._AGAIN_S", 0.0)
    asked: list[None] = []
    one = await ours.elect(take_over=False)

    def find_on() -> tuple[str, ...]:
        asked.append(None)
        return SWITCHES

    running = asyncio.ensure_future(one.run(find_on))
    for _ in range(200):
        await asyncio.sleep(0)
    running.cancel()
    assert (asked, pulsar.asked) == ([], [])


async def test_unreachable_pulsar_is_restored_by_the_next_process(pulsar: FakePulsar, ours: Ours) -> None:
    one = await ours.elect()
    await one.begin()
    await one.take([SHEDS])
    for _ in pulsar.brokers:
        pulsar.faults.kill("/values")
    with pytest.raises(PulsarUnreachableError):
        await one.restore_switches()
    assert await ours.remembered() == {SHEDS: None}
