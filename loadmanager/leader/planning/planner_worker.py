"""A process that works out rounds of shedding for a leader: `python -m loadmanager.leader.planning.planner_worker
SOCKET`.

It has an interpreter of its own, so a leader's lookups do not wait while it thinks; and they come first where
processors are short. It knows nothing but what comes over the socket, and ends with whoever is at its other end. For
each round:

    comes                                                    goes
    -------------------------------------------------------  --------------------------------------------------------
    what it does not hold yet, by name
    the snapshot, what strategies remember, and a generator
    the busiest bundles of that broker                       ASKED: which broker's busiest bundles, if it needs them
                                                             FOUND: the proposal, or the error instead of one, and where
                                                             the generator stands
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import Listed, TopBundles
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning import shedding_round as shedding
from loadmanager.core.planning.planner import State
from loadmanager.core.planning.strategy_memory import InColumns
from loadmanager.leader.planning.worker_protocol import LostError, Name, WorkerChannel
from loadmanager.util.malloc import map_large_blocks

ASKED, FOUND = "asked", "found"
SNAPSHOT, SETTINGS = "snapshot", "settings"

_NICE = 10
"""Of processors that others want, too, it gets a tenth as much as a process that serves."""


def held_of_round(snapshot: Snapshot, state: State) -> dict[Name, object]:
    """What both sides have of a round once it has begun, but for what they hold longer."""
    columns: dict[Name, object] = {
        (strategy, key): part
        for strategy, remembered in state.items()
        if isinstance(remembered, Mapping)  # whoever wrote it
        for key, part in remembered.items()
        if isinstance(part, InColumns)
    }
    return {SNAPSHOT: snapshot, **columns}


def work_out(channel: WorkerChannel, held: Mapping[Name, object]) -> None:
    """One round, from the snapshot on."""
    snapshot, lists_bundles, state, rng = channel.receive(held)

    def ask(broker: int) -> Listed:
        channel.send((ASKED, broker, None), {})
        listed: Listed = channel.receive({})
        return listed

    if lists_bundles:
        snapshot = replace(snapshot, top_bundles=TopBundles(ask))
    found: shedding.Proposal | Exception
    try:
        found = shedding.propose(snapshot, cast("PlannerSettings", held[SETTINGS]), state, rng)
    except LostError:
        raise
    except Exception as error:  # noqa: BLE001 - it is the leader's round that fails
        error.add_note(f"In the process that plans:\n{traceback.format_exc()}")
        found = error
    channel.send((FOUND, found, rng.bit_generator.state), {**held, **held_of_round(snapshot, state)})


def main() -> None:
    os.nice(_NICE)
    map_large_blocks()
    channel = WorkerChannel(socket.socket(fileno=int(sys.argv[1])))
    held: dict[Name, object] = {}
    try:
        while True:
            held |= channel.receive(held)
            work_out(channel, held)
    except LostError:  # nobody is left to work for
        return


if __name__ == "__main__":
    main()
