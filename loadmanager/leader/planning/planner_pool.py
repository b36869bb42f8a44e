"""Where rounds of shedding are worked out: in a thread, or, for a large cluster, in a process of its own.

A thread that plans takes turns with the event loop at one interpreter, and lookups wait for it again and again. The
process (`planner_worker.py`) has its own. It is started when the first round needs it and ended with the term. What a
round begins with never changes, and it draws from a copy; so one that was lost with its process is made again, and
comes out the same to the last bit wherever it is made.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import structlog

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.carried_load import total_load
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import Proposal
from loadmanager.leader.planning.planner_worker import ASKED, SETTINGS, held_of_round
from loadmanager.leader.planning.thread_pool import Worker
from loadmanager.leader.planning.worker_protocol import LostError, Name, WorkerChannel

log = structlog.get_logger(__name__)

_TRIES = 2
_LONGEST_S = 600.0
"""No round takes so long: the process is stopped, or it hangs."""
_COMMAND = (sys.executable, "-m", "loadmanager.leader.planning.planner_worker")


class PlannerProcess:
    """The process, and what it holds from one round to the next. Starting it raises `OSError`."""

    def __init__(self, command: tuple[str, ...] = _COMMAND) -> None:
        ours, theirs = socket.socketpair()
        self._channel = WorkerChannel(ours, _LONGEST_S)
        self._held: dict[Name, object] = {}
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - ourselves, or a test's
                    (*command, str(theirs.fileno())),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # what a terminal sends us is not meant for it
                )
            except OSError:
                ours.close()
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def propose(
        self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
    ) -> Proposal | Exception:
        """As `shedding.propose`, or what that raises. Raises `LostError`, with `rng` as it was."""
        lasting: dict[Name, object] = {
            SETTINGS: settings,
            "names": snapshot.bundles.names,
            "namespaces": snapshot.bundles.namespaces,
            "policies": snapshot.policies,
            "learned": snapshot.learned,
        }
        self._channel.send({name: each for name, each in lasting.items() if each is not self._held.get(name)}, {})
        self._held = lasting
        lists = snapshot.top_bundles
        self._channel.send((replace(snapshot, top_bundles=None), lists is not None, state, rng), lasting)
        holds = {**lasting, **held_of_round(snapshot, state)}
        while True:
            kind, found, drawn = self._channel.receive(holds)
            if kind != ASKED:
                break
            assert lists is not None
            self._channel.send(lists.find(found), {})
        rng.bit_generator.state = drawn
        proposed: Proposal | Exception = found
        return proposed

    def kill(self) -> None:
        """Have it end now; whoever waits for it is told that it is lost."""
        self._process.kill()

    def close(self) -> None:
        """End it, and wait for that."""
        self.kill()
        self._process.wait()
        self._channel.close()


class PlannerPool:
    """Has rounds worked out, one after the other. `least_bundles` says from how many on in a process; 0: never."""

    def __init__(
        self, least_bundles: Callable[[], int] = lambda: 0, start: Callable[[], PlannerProcess] = PlannerProcess
    ) -> None:
        self._least_bundles = least_bundles
        self._start = start
        self._worker = Worker("rounds")
        self._process: PlannerProcess | None = None
        self._is_used = False
        self._is_over = False

    def begin_term(self) -> None:
        self._is_over = False

    async def end_term(self) -> None:
        """End the process; what it works on is for nobody any more."""
        self._is_over = True
        if self._is_used:
            if self._process is not None:
                self._process.kill()
            await self._worker.run(self._drop)
            self._is_used = False

    async def propose(
        self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
    ) -> Proposal:
        """As `shedding.propose`, which draws from `rng`. Raises what that raises; `LostError` when the term is over."""
        self._is_used |= (is_large := 0 < self._least_bundles() <= len(snapshot.bundles))
        propose = self._propose_apart if is_large else shedding.propose
        return await self._worker.run(propose, snapshot, settings, state, rng)

    def _propose_apart(
        self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
    ) -> Proposal:
        for _ in range(_TRIES):
            try:
                found = self._ask(snapshot, settings, state, rng)
            except Exception as error:
                if self._is_over:
                    raise
                is_foreseen = isinstance(error, LostError | OSError)
                log.warning("planning_process_lost", error=str(error), exc_info=None if is_foreseen else error)
                continue
            if isinstance(found, Exception):
                raise found
            total_load(snapshot)  # the limits on churn go by it, on the event loop
            return found
        log.warning("planned_beside_lookups", bundles=len(snapshot.bundles))
        return shedding.propose(snapshot, settings, state, rng)

    def _ask(
        self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
    ) -> Proposal | Exception:
        """The process's answer; one that has not answered is of no use any more."""
        found = None
        try:
            if self._process is None:
                self._process = self._start()
            if self._is_over:  # whoever said so may have found no process to kill
                raise LostError("the term is over")
            found = self._process.propose(snapshot, settings, state, rng)
        finally:
            if found is None:
                self._drop()
        return found

    def _drop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
