"""What drivers of passive machines have in common: their waiting for the machine's next turn, and writes of bundles."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from loadmanager.core.leading.signal import Signal
from loadmanager.core.leading.writing import Write, WriteEnded
from loadmanager.core.names import BundleRange
from loadmanager.core.ownership import IllegalTransitionError, Ownership
from loadmanager.errors import LoadManagerError
from loadmanager.leader.term.ledger import Ledger


async def keep_time(step: Callable[[Signal], None], wake_s: Callable[[], float | None], stepped: asyncio.Event) -> None:
    """Step a machine with TIME when it wants to be; `stepped` is set whenever it was, and may want something else."""
    while True:
        step(Signal.TIME)
        stepped.clear()  # by whatever it was stepped before, it has just had its turn
        due_s = wake_s()
        # Not `wait_for`: in Python 3.11 it swallows a cancellation that arrives together with the wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due_s is None else max(0.0, due_s - time.monotonic())):
                await stepped.wait()


async def write(ledger: Ledger, instruction: Write) -> WriteEnded:
    """Have the ledger write it; every failure is what came of each of the bundles."""
    ranges = {bundle: BundleRange.parse(bundle.rpartition("/")[2]) for bundle in instruction.transitions}
    transitions = {own: instruction.transitions[bundle] for bundle, own in ranges.items()}
    made: dict[BundleRange, Ownership | Exception]
    try:
        made = await ledger.apply_all(instruction.namespace, transitions, instruction.reason)
    except (LoadManagerError, IllegalTransitionError) as error:
        made = dict.fromkeys(transitions, error)
    return WriteEnded(instruction, {bundle: made[own] for bundle, own in ranges.items()})
