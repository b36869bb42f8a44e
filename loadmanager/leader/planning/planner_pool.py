"""Planner pool: computes rounds of shedding in a thread or, for a large cluster, in a worker process.

A planning thread shares the interpreter with the event loop and delays lookups; the process (`planner_worker.py`) has
its own interpreter. It starts with the first round that needs it and ends with the term. A round's inputs are immutable
and it draws from a copy of the generator. So when the process is lost, repeating the round gives exactly the same
result.

Previews for display have a queue and a thread of their own, so that they never delay a decision.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
import structlog

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.fleet_load import total_load
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.shedding_round import Proposal
from loadmanager.errors import TooManyPreviewsError
from loadmanager.leader.planning.planner_worker import (
    ASKED,
    SETTINGS,
    LostError,
    Name,
    WorkerChannel,
    name_round_objects,
)

_Found = TypeVar("_Found")

MOST_WAITING = 32
"""Maximum number of waiting previews: each takes a second or two on a large cluster, and callers time out."""


class Worker:
    """One thread, which runs its jobs in order."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)

    async def run(self, work: Callable[..., _Found], *given: object) -> _Found:
        """Run `work` in the thread and return its result. Cancelling the caller does not stop it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *given)


class Previews:
    """Queue of computations for display only: one at a time, for any caller, without delaying decisions.

    Other jobs of `worker` wait for at most one of them.
    """

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker or Worker("previews")
        self._lock = asyncio.Lock()
        self._asked = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Worker]:
        """Wait for a turn, and yield the thread; raises `TooManyPreviewsError` when too many callers wait already."""
        if self._asked > MOST_WAITING:
            raise TooManyPreviewsError(f"{MOST_WAITING} previews are waiting already; try again later")
        self._asked += 1
        try:
            async with self._lock:
                yield self._worker
        finally:
            self._asked -= 1


log = structlog.get_logger(__name__)

PROCESS_BUNDLES = 10_000
"""Number of bundles from which rounds run in a process. With fewer, a round blocks lookups for milliseconds only.

The process takes 50 MiB, and 30 MiB more for 100,000 bundles.
"""
_TRIES = 2
_LONGEST_S = 600.0
"""Timeout of a round: a process that takes longer is stopped or hangs."""
_COMMAND = (sys.executable, "-m", "loadmanager.leader.planning.planner_worker")


class PlannerProcess:
    """Worker process, with the objects that it holds between rounds. Starting it may raise `OSError`."""

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
                    start_new_session=True,  # not in the terminal's process group: it must not get our signals
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
        """Run `shedding.propose` in the process; return its exception if it raises one. Raises `LostError`, with `rng`
        unchanged.
        """
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
        holds = {**lasting, **name_round_objects(snapshot, state)}
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
        """Kill the process; waiting callers get `LostError`."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process and wait for its exit."""
        self.kill()
        self._process.wait()
        self._channel.close()


class PlannerPool:
    """Computes rounds one after the other, in a process from `least_bundles` bundles on; 0: never."""

    def __init__(self, least_bundles: int = 0, start: Callable[[], PlannerProcess] = PlannerProcess) -> None:
        self.least_bundles = least_bundles
        self._start = start
        self._worker = Worker("rounds")
        self._process: PlannerProcess | None = None
        self._is_used = False
        self._is_over = False

    def begin_term(self) -> None:
        self._is_over = False

    async def end_term(self) -> None:
        """Kill the process; its result is no longer needed."""
        self._is_over = True
        if self._is_used:
            if self._process is not None:
                self._process.kill()
            await self._worker.run(self._drop)
            self._is_used = False

    async def propose(
        self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
    ) -> Proposal:
        """Run `shedding.propose`, which draws from `rng`. Raises what that raises; `LostError` when the term is
        over.
        """
        self._is_used |= (is_large := 0 < self.least_bundles <= len(snapshot.bundles))
        propose = self._propose_in_process if is_large else shedding.propose
        return await self._worker.run(propose, snapshot, settings, state, rng)

    def _propose_in_process(
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
            total_load(snapshot)  # computed here, so that the churn limits on the event loop find it cached
            return found
        log.warning("planned_in_process", bundles=len(snapshot.bundles))
        return shedding.propose(snapshot, settings, state, rng)

    def _ask(
        self, snapshot: Snapshot, settings: PlannerSettings, state: State, rng: np.random.Generator
    ) -> Proposal | Exception:
        """Return the process's answer; a process that did not answer is dropped."""
        found = None
        try:
            if self._process is None:
                self._process = self._start()
            if self._is_over:  # `end_term` may have found no process to kill
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
