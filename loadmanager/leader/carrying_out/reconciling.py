"""What the records say is unfinished, and who finishes it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import structlog

from loadmanager.core.names import BundleName
from loadmanager.core.ownership import (
    IllegalTransitionError,
    Ownership,
    OwnershipState,
    Registration,
    Stamp,
    owner_gone,
)
from loadmanager.core.reasons import OwnershipReason
from loadmanager.errors import LoadManagerError
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.deciding.desk import SLICE
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView
from loadmanager.leader.recording.journal import Journal
from loadmanager.leader.term.ledger import Ledger, Transition

log = structlog.get_logger(__name__)

_SWEEP_INTERVAL_S = 30.0
_SOON_S = 0.05


class Reconciler:
    """Finds what the records say is unfinished, and finishes it: level-triggered, so nothing can be missed for good.

    It frees the bundles of brokers that are gone, or hands them back to one that is held off and has returned, and
    follows releases that nobody follows. `place` has bundles given an owner that nobody has asked for.
    """

    def __init__(
        self,
        view: ClusterView,
        ledger: Ledger,
        executor: Executor,
        journal: Journal,
        live: LiveSettings,
        place: Callable[[Iterable[str]], None],
    ) -> None:
        self._view = view
        self._ledger = ledger
        self._executor = executor
        self._journal = journal
        self._live = live
        self._place = place
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Look at every bundle at the start of the term, after each change of membership, and now and then."""
        while True:
            if self._view.is_fresh:
                await self._sweep()
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._longest_pause_s()):
                    await self._wake.wait()
            self._wake.clear()

    def _longest_pause_s(self) -> float:
        """Until the next sweep is due by itself: when a broker's time to return ends, its bundles become free."""
        controls, now_s = self._view.laid_down.controls, time.time()
        holds = [controls.find_hold(broker, now_s) for broker in controls.held_off]
        return min([_SWEEP_INTERVAL_S, *(left_s + _SOON_S for left_s in holds if left_s is not None)])

    async def _sweep(self) -> None:
        orphans: dict[str, dict[BundleName, Registration]] = defaultdict(dict)
        free: list[str] = []
        for looked_at, (entry, index, ownership) in enumerate(self._view.ownerships()):
            if looked_at % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if ownership.owner is None:
                if ownership.reason == OwnershipReason.OWNER_GONE.value:
                    free.append(entry.state.bundle_name(index))
                continue
            if ownership.state is OwnershipState.OWNED and self._view.is_registered(ownership.owner):
                continue
            name = BundleName(entry.state.name, entry.state.bundles.range_at(index))
            if ownership.state is OwnershipState.RELEASING:
                self._executor.resume(name)
            elif self._view.find_hold(ownership) is not None:
                if ownership.owner.broker in self._view.registrations:
                    self._place([str(name)])
            else:
                orphans[str(name.namespace)][name] = ownership.owner
        self._reassign(free)
        await asyncio.gather(*(self._free(namespace, owners) for namespace, owners in orphans.items()))

    async def _free(self, namespace: str, owners: Mapping[BundleName, Registration]) -> None:
        """Free bundles of one namespace, of these owners."""
        transitions = {name.range: _freeing(name, owner) for name, owner in owners.items()}
        try:
            made = await self._ledger.apply_all(namespace, transitions, OwnershipReason.OWNER_GONE.value)
        except (LoadManagerError, IllegalTransitionError) as error:
            made = dict.fromkeys(transitions, error)
        free = []
        for name, owner in owners.items():
            freed = made[name.range]
            if not isinstance(freed, Ownership):
                log.info("bundle_not_freed", bundle=str(name), error=str(freed))
                continue
            self._journal.moved("freed", str(name), OwnershipReason.OWNER_GONE, epoch=freed.epoch, source=owner)
            free.append(str(name))
        self._reassign(free)

    def _reassign(self, free: list[str]) -> None:
        """Have bundles of dead brokers placed, if that is wanted; without any broker they wait for the first one."""
        if self._live.current.reassign_bundles_of_dead_brokers_at_once and self._view.brokers:
            self._place(free)


def _freeing(name: BundleName, owner: Registration) -> Transition:
    def end(current: Ownership, stamp: Stamp) -> Ownership:
        if current.owner != owner or current.state is not OwnershipState.OWNED:
            raise IllegalTransitionError(f"{name} has moved on: {current}")
        return owner_gone(current, stamp)

    return end
