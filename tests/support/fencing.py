"""Candidates that campaign and write with whatever they believe, and a referee who knows who leads.

A candidate wins by one transaction on the epoch it saw before: check it, set it (its new version is the new epoch),
remove a stale leader's znode and create the own one. Every write of a leader begins with a check of its own epoch. A
candidate here never steps down by itself: it goes on writing with the last epoch it won, as a paused leader does that
wakes up. Only the check may stop it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from loadmanager.errors import OutcomeUnknownError, StoreUnavailableError, TransactionFailedError
from loadmanager.store.metadata_store import Check, Create, Delete, MetadataStore, Op, Put

EPOCH = "/epoch"
LEADER = "/leader"
RECORD = "/record"


class Outcome(Enum):
    DONE = auto()
    REFUSED = auto()
    UNKNOWN = auto()
    NOT_SENT = auto()


@dataclass
class Sight:
    """What a candidate saw before it campaigns: the epoch, and the leader's version (None: there is no leader)."""

    epoch: int
    leader_version: int | None


class Candidate:
    """One contender. `is_fenced=False` leaves the check out of its writes: what must not go unnoticed."""

    def __init__(self, name: str, store: MetadataStore, *, is_fenced: bool = True) -> None:
        self.name = name
        self.store = store
        self.epoch: int | None = None
        self._sight: Sight | None = None
        self._is_fenced = is_fenced

    async def look(self) -> None:
        try:
            epoch, leader = await self.store.get_many([EPOCH, LEADER])
        except StoreUnavailableError:
            return
        assert epoch is not None
        self._sight = Sight(epoch.version, None if leader is None else leader.version)

    async def campaign(self) -> Outcome:
        """Try to win with what was seen last; the sight is used up."""
        sight, self._sight = self._sight, None
        if sight is None:
            return Outcome.NOT_SENT
        ops: list[Op] = [Check(EPOCH, sight.epoch), Put(EPOCH, self.name.encode(), sight.epoch)]
        if sight.leader_version is not None:
            ops.append(Delete(LEADER))
        ops.append(Create(LEADER, self.name.encode(), ephemeral=True))
        outcome = await self._commit(ops)
        if outcome is Outcome.DONE:
            self.epoch = sight.epoch + 1
        return outcome

    async def write(self, value: int) -> Outcome:
        """Write the record as the leader this candidate takes itself for."""
        if self.epoch is None:
            return Outcome.NOT_SENT
        fence: list[Op] = [Check(EPOCH, self.epoch)] if self._is_fenced else []
        return await self._commit([*fence, Put(RECORD, f"{self.epoch} {value}".encode())])

    async def _commit(self, ops: list[Op]) -> Outcome:
        try:
            await self.store.commit(ops)
        except TransactionFailedError:
            return Outcome.REFUSED
        except OutcomeUnknownError:
            return Outcome.UNKNOWN
        except StoreUnavailableError:
            return Outcome.NOT_SENT
        return Outcome.DONE


class Contest:
    """Several candidates, and a store of the referee's own that always works.

    After every step the referee looks: the epoch never goes back, and only the holder of the current epoch changed the
    record.
    """

    def __init__(self, referee: MetadataStore, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self._referee = referee
        self._epoch = 0
        self._record = b"0 0"
        self._values = 0

    async def prepare(self) -> None:
        await self._referee.commit([Create(EPOCH, b""), Create(RECORD, self._record)])

    async def look(self, index: int) -> None:
        await self.candidates[index].look()
        await self.check()

    async def campaign(self, index: int) -> None:
        before = self._epoch
        outcome = await self.candidates[index].campaign()
        await self.check()
        if outcome is Outcome.DONE:
            assert self._epoch == before + 1, "a campaign was won without a new epoch"
            assert self.candidates[index].epoch == self._epoch, "a campaign was won with an outdated sight"
        elif outcome in {Outcome.REFUSED, Outcome.NOT_SENT}:
            assert self._epoch == before, "a campaign that was not won changed the epoch"

    async def write(self, index: int) -> None:
        candidate = self.candidates[index]
        self._values += 1
        record = self._record
        outcome = await candidate.write(self._values)
        await self.check()
        written = f"{candidate.epoch} {self._values}".encode()
        if outcome is Outcome.DONE:
            assert candidate.epoch == self._epoch, f"{candidate.name} wrote, deposed: {candidate.epoch} < {self._epoch}"
            assert self._record == written
        elif outcome is Outcome.UNKNOWN:
            assert self._record in {record, written}
        else:
            assert self._record == record, "a write that was refused had an effect"

    async def check(self) -> None:
        """The epoch and the record as they are now, against how they were."""
        await self._referee.sync()
        epoch, record = await self._referee.get_many([EPOCH, RECORD])
        assert epoch is not None
        assert record is not None
        assert epoch.version >= self._epoch, "the epoch went back"
        if record.data != self._record:
            writer = int(record.data.split()[0])
            assert writer == self._epoch, f"a record written with epoch {writer} while {self._epoch} was current"
        self._epoch, self._record = epoch.version, record.data
