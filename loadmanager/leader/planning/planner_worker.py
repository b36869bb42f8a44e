"""Worker process for rounds of shedding: `python -m loadmanager.leader.planning.planner_worker SOCKET`.

Its own interpreter keeps a leader's lookups from waiting, and its niceness puts them first where processors are short.
It knows only what arrives over the socket, and exits with the other end. For each round:

    received                                                 sent
    -------------------------------------------------------  --------------------------------------------------------
    lasting objects that it does not hold yet, by name
    the snapshot, the memory of strategies, a generator
    the busiest bundles of that broker                       ASKED: a broker whose busiest bundles it needs
                                                             FOUND: the proposal or its error, and the state of the
                                                             generator
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
"""Niceness: under contention it gets a tenth of the processor time of a serving process."""


def name_round_objects(snapshot: Snapshot, state: State) -> dict[Name, object]:
    """Return the objects that both sides hold once a round has begun, besides the lasting ones."""
    columns: dict[Name, object] = {
        (strategy, key): part
        for strategy, remembered in state.items()
        if isinstance(remembered, Mapping)  # strategies may store anything
        for key, part in remembered.items()
        if isinstance(part, InColumns)
    }
    return {SNAPSHOT: snapshot, **columns}


def compute_round(channel: WorkerChannel, held: Mapping[Name, object]) -> None:
    """Receive and compute one round, from its snapshot on."""
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
        error.add_note(f"In the planner worker:\n{traceback.format_exc()}")
        found = error
    channel.send((FOUND, found, rng.bit_generator.state), {**held, **name_round_objects(snapshot, state)})


def main() -> None:
    os.nice(_NICE)
    map_large_blocks()
    channel = WorkerChannel(socket.socket(fileno=int(sys.argv[1])))
    held: dict[Name, object] = {}
    try:
        while True:
            held |= channel.receive(held)
            compute_round(channel, held)
    except LostError:  # the leader has exited
        return


if __name__ == "__main__":
    main()
