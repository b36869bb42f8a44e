"""Carries out what `loadmanager.core.leading.reconciling` says of what the records leave unfinished.

Here are the look at all records, a slice at a time, the writes of the ledger, and what is noted of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from loadmanager.core.leading.reconciling import (
    Event,
    Freed,
    Instruction,
    Look,
    Looked,
    Place,
    Reconciling,
    SeeThrough,
)
from loadmanager.core.leading.signal import Signal
from loadmanager.core.leading.writing import Write
from loadmanager.core.names import BundleName
from loadmanager.core.ownership import Ownership
from loadmanager.core.reasons import OwnershipReason
from loadmanager.leader.carrying_out.driving import Driver, write
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.deciding.desk import SLICE
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.ledger import Ledger

log = structlog.get_logger(__name__)


class Reconciler:
    """Finds what the records say is unfinished, and finishes it. `place` has bundles given an owner that nobody has
    asked for.
    """

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        executor: Executor,
        journal: Journal,
        live: LiveSettings,
        place: Callable[[Sequence[str]], None],
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._executor = executor
        self._journal = journal
        self._place = place
        self._machine = Reconciling(view, lambda: live.current.reassign_bundles_of_dead_brokers_at_once)
        self._driver = Driver(self._machine, self._do)

    def wake(self) -> None:
        """Something has changed by which a bundle may have come to be unfinished."""
        self._driver.step(Signal.MEMBERSHIP)

    async def run(self) -> None:
        """Look at every bundle at the start of the term, and then when it is due, for as long as the term lasts."""
        self._machine.forget()
        await self._driver.run()

    def _do(self, instruction: Instruction) -> Coroutine[Any, Any, Event] | None:
        match instruction:
            case Look():
                return self._look()
            case Write():
                return write(self._ledger, instruction)
            case SeeThrough(bundle):
                self._executor.resume(BundleName.parse(bundle))
            case Place(bundles):
                self._place(bundles)
            case Freed(bundle, owner, Ownership(epoch=epoch)):
                self._journal.moved("freed", bundle, OwnershipReason.OWNER_GONE, epoch=epoch, source=owner)
            case Freed(bundle, _, error):
                log.info("bundle_not_freed", bundle=bundle, error=str(error))
        return None

    async def _look(self) -> Event:
        """Nothing is found before everything was read again."""
        found = []
        named, names = None, list[str]()
        records = self._view.ownerships() if self._view.is_fresh else ()
        for looked_at, (entry, index, ownership) in enumerate(records):
            if looked_at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if self._machine.is_unfinished(ownership):
                if entry.state is not named:  # of a broker that has gone there are many in each
                    named, names = entry.state, entry.state.bundle_names()
                found.append((names[index], ownership))
        return Looked(found)
