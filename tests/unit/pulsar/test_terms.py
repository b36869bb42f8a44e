"""Several processes beside a Pulsar: one acts at a time, and what was cut short is seen through by the next."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st
from support.actors import BROKERS, NAMES, Actor, TableOfOwners
from support.deep import at_most
from support.memory_store import MemoryCluster, MemoryStore
from support.virtual_loop import VirtualLoop
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.core.domain.ownership import OwnershipState, Registration
from loadmanager.core.protocol.guardrails import MoveHistory
from loadmanager.store import paths
from loadmanager.wire.pulsar_records import decode_move_history

SESSION_S = 10.0
_STEP = st.tuples(
    st.sampled_from(["cut off", "cut off unnoticed", "heal", "expire", "lose an answer"]), st.integers(0, 1)
)
_THEN_S = st.sampled_from([0.0, 0.05, 1.0, 5.0, 12.0])


class Trial:
    """Two processes, whose links to their store break and come back as a test says."""

    def __init__(self, seed: int, slowness_s: float) -> None:
        chance = random.Random(seed)
        self.pulsar = TableOfOwners(lambda: chance.random() * slowness_s, self._place)
        self.chance = chance
        self.places_well = False
        self.actors: list[Actor] = []

    async def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.cluster = MemoryCluster(loop.time, lambda: self.chance.choice([1, 1, 2, 5]))
        self.ticking = asyncio.create_task(self._tick())
        self.stores = [MemoryStore(self.cluster, session_timeout_s=SESSION_S) for _ in range(2)]
        for number, store in enumerate(self.stores):
            await store.start()
            actor = Actor(self.pulsar, store, number, self._want)
            for path in paths.PERSISTENT_PARENTS:
                await store.ensure_path(path)
            self.actors.append(actor)
            await actor.begin()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.cluster.tick()
            self.check()

    def check(self) -> None:
        """Nobody asked in a term that was over by then; and of two that ask, the later one has the later term."""
        epochs = [call.epoch for call in self.pulsar.calls[-100:]]
        assert epochs == sorted(epochs), "two act at once"
        leading = [actor for actor in self.actors if actor.election.term is not None]
        assert len(leading) <= 1, "two lead at once"

    def _want(self) -> tuple[BundleName, Registration]:
        name = self.chance.choice(NAMES)
        others = [each for each in BROKERS if each != self.pulsar.owners[name]]
        return name, self.chance.choice(others)

    def _place(self, wanted: BrokerId | None) -> BrokerId | None:
        if self.places_well or self.chance.random() < 0.7:
            return wanted or BROKERS[0].broker
        return self.chance.choice([None, *(each.broker for each in BROKERS)])

    def happens(self, what: str, number: int) -> None:
        store = self.stores[number]
        match what:
            case "cut off":
                self.cluster.partition(store, noticed=True)
            case "cut off unnoticed":
                self.cluster.partition(store)
            case "expire":  # nobody ends a session by force whose client cannot hear of it
                self.cluster.heal(store)
                self.cluster.expire(store)
            case "lose an answer":
                self.cluster.heal(store)
                self.cluster.lose_answer(store)
            case _:
                self.cluster.heal(store)

    async def settles(self) -> None:
        """All is well again, nothing more is wanted, and what was begun has ended."""
        self.places_well = True
        for number, actor in enumerate(self.actors):
            self.happens("heal", number)
            actor.is_moving = False
        await asyncio.sleep(60.0)
        self.check()
        (leader,) = [actor for actor in self.actors if actor.is_leading]
        znode = self.cluster.find(paths.PULSAR_MOVES)
        written = MoveHistory() if znode is None else decode_move_history(znode.data, "moves")
        assert (leader.move_log.history.in_progress, written.in_progress) == ({}, {}), (
            leader.move_log.history,
            written,
        )
        assert leader.move_log.open_moves == ""
        for name, owner in self.pulsar.owners.items():
            assert owner is not None or name in self.pulsar.late, f"{name} was left with nobody"
            seen = leader.mirror.get_ownership(name)
            assert (seen.state is OwnershipState.OWNED, seen.owner) == (owner is not None, owner)

    async def end(self) -> None:
        self.ticking.cancel()
        for actor in self.actors:
            await actor.end()
        for store in self.stores:
            await store.close()


@at_most(50)
@given(st.integers(0, 2**16), st.sampled_from([0.0, 0.2, 3.0]), st.lists(st.tuples(_STEP, _THEN_S), max_size=12))
def test_one_process_acts_at_a_time_and_the_next_finishes_its_moves(
    seed: int, slowness_s: float, steps: list[tuple[tuple[str, int], float]]
) -> None:
    loop = VirtualLoop()

    async def live() -> None:
        trial = Trial(seed, slowness_s)
        await trial.begin()
        try:
            await eventually(lambda: trial.pulsar.calls, "a move before anything breaks")
            for (what, number), then_s in steps:
                trial.happens(what, number)
                await asyncio.sleep(then_s)
                trial.check()
            await trial.settles()
        finally:
            await trial.end()

    loop.run(live())
    loop.end()
