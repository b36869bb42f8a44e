"""Carries out what `loadmanager.core.leading.reconciling` says of what the records leave unfinished."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from loadmanager.core.leading.reconciling import Event, Instruction, Look, Looked, Place, Reconciling, SeeThrough
from loadmanager.core.leading.signal import Signal
from loadmanager.core.names import BundleName
from loadmanager.leader.carrying_out.driving import Driver
from loadmanager.leader.carrying_out.executor import Executor
from loadmanager.leader.picture.live_settings import LiveSettings
from loadmanager.leader.picture.view import ClusterView


class Reconciler:
    """Finds what the records say is unfinished, and finishes it. `place` has bundles given an owner that nobody has
    asked for.
    """

    def __init__(
        self, view: ClusterView, executor: Executor, live: LiveSettings, place: Callable[[Sequence[str]], None]
    ) -> None:
        self._view = view
        self._executor = executor
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
            case SeeThrough(bundle):
                self._executor.resume(BundleName.parse(bundle))
            case Place(owners):
                self._place(self._view.model.bundles_owned_by(owners))
        return None

    async def _look(self) -> Event:
        """Nothing is found before everything was read again."""
        if not self._view.is_fresh:
            return Looked((), ())
        model, is_registered = self._view.model, self._view.is_registered
        return Looked(model.releasing(), [owner for owner in model.owners() if not is_registered(owner)])
