from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from support.virtual_loop import VirtualLoop

from loadmanager.agent import unload_handler
from loadmanager.agent.grants import Grants
from loadmanager.agent.unload_handler import EXPECTED_S, LONGEST_WAIT_S, WarmUp
from loadmanager.core.domain.names import BrokerId, BundleName, TopicName
from loadmanager.wire.http_bodies import OwnerAnswer, TopicsOfBundle

BUNDLE, OTHER = "t/ns/0x00000000_0x80000000", "t/ns/0x80000000_0xffffffff"
TOPICS = [TopicName.parse(f"persistent://t/ns/{number}") for number in range(5)]


class PreparingBroker:
    async def prepare(self, _: TopicsOfBundle) -> bool:
        return True


class Scene:
    """A broker that is registered, and nodes that answer at once, or hold a "no" back; `asked` is when they were."""

    def __init__(self) -> None:
        self.grants = Grants(BrokerId("b1:8080"))
        self.grants.register(7)
        self.may_hold = False
        self._owned = asyncio.Event()
        self.bundle: str | None = BUNDLE
        self.asked: list[float] = []
        self.coming = WarmUp(self.grants, PreparingBroker(), self._ask, self.now_s)  # type: ignore[arg-type]  # a stand-in

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def owned(self) -> bool:
        return self._owned.is_set()

    @owned.setter
    def owned(self, owned: bool) -> None:
        (self._owned.set if owned else self._owned.clear)()

    async def _ask(self, _: TopicName, wait_s: float) -> OwnerAnswer:
        self.asked.append(self.now_s())
        if self.may_hold:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._owned.wait()
        return OwnerAnswer(owned=self.owned, bundle=self.bundle, incarnation=7)

    async def expect(self, bundle: str = BUNDLE) -> None:
        registration = self.grants.registration
        assert registration is not None
        assert await self.coming.prepare(registration, TopicsOfBundle(bundle=bundle, topics=[])) is True

    async def took_s(self, wait_s: float) -> float:
        began_s = self.now_s()
        await self.coming.ask_owner(TOPICS[0], wait_s)
        return self.now_s() - began_s


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.end()
    loop.close()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_negative_answer_is_held_only_while_the_bundle_is_expected(scene: Scene, loop: VirtualLoop) -> None:
    async def run() -> None:
        assert await scene.took_s(2.0) == 0.0
        await scene.expect(OTHER)
        assert await scene.took_s(2.0) == 0.0
        await scene.expect()
        assert await scene.took_s(0.0) == 0.0
        assert 2.0 <= await scene.took_s(2.0) < 2.2
        assert LONGEST_WAIT_S <= await scene.took_s(3600.0) < LONGEST_WAIT_S + 0.2
        scene.bundle = None
        assert await scene.took_s(2.0) == 0.0, "nobody knows the namespace any more"
        scene.bundle = BUNDLE
        await asyncio.sleep(EXPECTED_S)
        assert await scene.took_s(2.0) == 0.0, "it did not come"

    loop.run(run())


@pytest.mark.parametrize("by", ["a yes", "an unload", "an unload of more", "another life"])
def test_bundle_is_no_longer_expected_once_it_arrived_or_was_revoked(scene: Scene, loop: VirtualLoop, by: str) -> None:
    async def run() -> None:
        await scene.expect()
        waiting = asyncio.ensure_future(scene.coming.ask_owner(TOPICS[0], 2.0))
        await asyncio.sleep(0.5)
        if by == "a yes":
            scene.owned = True
            await waiting
            scene.owned = False
        elif by == "another life":
            scene.grants.register(8)
        else:
            assert scene.grants.registration is not None
            taken = BUNDLE if by == "an unload" else "t/ns/0x00000000_0xffffffff"
            scene.grants.revoke(BundleName.parse(taken), scene.grants.registration, epoch=1, version=4)
        assert await scene.took_s(2.0) == 0.0
        since_s = scene.now_s()
        await waiting
        assert scene.now_s() - since_s <= 0.1

    loop.run(run())


def test_positive_answer_reaches_all_waiting_requests_by_one_poll(scene: Scene, loop: VirtualLoop) -> None:
    async def run() -> None:
        await scene.expect()
        questions = [asyncio.ensure_future(scene.coming.ask_owner(topic, 2.0)) for topic in TOPICS]
        await asyncio.sleep(0.05)
        one_looks = len(scene.asked)
        assert one_looks <= len(TOPICS) + 10
        scene.owned, since_s = True, scene.now_s()
        assert all(answer.owned for answer in await asyncio.gather(*questions))
        assert scene.now_s() - since_s < 0.02
        assert len(scene.asked) == one_looks + len(TOPICS)

    loop.run(run())


def test_held_answers_are_polled_seldom(scene: Scene, loop: VirtualLoop) -> None:
    scene.may_hold = True

    async def run() -> None:
        await scene.expect()
        questions = [asyncio.ensure_future(scene.coming.ask_owner(topic, 2.0)) for topic in TOPICS]
        await asyncio.sleep(0.9)
        assert len(scene.asked) == len(TOPICS) + 4
        scene.owned, since_s = True, scene.now_s()
        assert all(answer.owned for answer in await asyncio.gather(*questions))
        assert scene.now_s() == since_s

    loop.run(run())


def test_held_requests_are_bounded(scene: Scene, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unload_handler, "_MOST_HELD", 1)
    scene.may_hold = True

    async def run() -> None:
        await scene.expect()
        assert await scene.took_s(0.1) == pytest.approx(0.1)
        first = asyncio.ensure_future(scene.coming.ask_owner(TOPICS[0], 2.0))
        await asyncio.sleep(0.01)
        scene.bundle, asked = OTHER, len(scene.asked)
        await scene.expect(OTHER)
        assert await scene.took_s(0.1) >= 0.1
        assert len(scene.asked) > asked + 10
        await first

    loop.run(run())


@pytest.mark.parametrize("is_ended_by_itself", [True, False])
def test_another_request_polls_when_the_polling_one_ends(
    scene: Scene, loop: VirtualLoop, *, is_ended_by_itself: bool
) -> None:
    async def run() -> None:
        await scene.expect()
        first = asyncio.ensure_future(scene.coming.ask_owner(TOPICS[0], 0.5 if is_ended_by_itself else 3.0))
        await asyncio.sleep(0.1)
        others = [asyncio.ensure_future(scene.coming.ask_owner(topic, 3.0)) for topic in TOPICS[1:]]
        await asyncio.sleep(0.3)
        if not is_ended_by_itself:
            first.cancel()
        await asyncio.sleep(0.5)
        assert first.done()
        scene.owned = True
        assert all(answer.owned for answer in await asyncio.gather(*others))

    loop.run(run())


def test_waiting_request_ends_at_its_own_timeout(scene: Scene, loop: VirtualLoop) -> None:
    async def run() -> None:
        await scene.expect()
        first = asyncio.ensure_future(scene.coming.ask_owner(TOPICS[0], 4.0))
        await asyncio.sleep(0.1)
        assert await scene.took_s(1.0) == pytest.approx(1.0)
        assert not first.done()
        assert not (await first).owned

    loop.run(run())


def test_expected_bundles_are_bounded(scene: Scene, loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unload_handler, "_MOST_BUNDLES", 1)

    async def run() -> None:
        await scene.expect(OTHER)
        await scene.expect()
        assert await scene.took_s(2.0) == 0.0
        await asyncio.sleep(EXPECTED_S)
        await scene.expect()
        assert await scene.took_s(2.0) > 0.0

    loop.run(run())
