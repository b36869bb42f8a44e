"""Timeline of the last hours in memory, for the heat map: from this node's mirror, and from the history before its
start.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from loadmanager.core.diagnosis.timeline import (
    Grid,
    HeatMap,
    Moments,
    draw_brokers,
    draw_bundles,
    throughput_as_figures,
    usage_as_figures,
)
from loadmanager.core.model.load import weighted_max_usage
from loadmanager.history.timeline_recall import Recalling
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror, NamespaceEntry
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.planning.planner_pool import Previews, Worker
from loadmanager.util import clock

log = structlog.get_logger(__name__)

_STEP_MS = 10_000
_SPAN_MS = 24 * 3_600_000
GRID_BYTES = 32 * 1024 * 1024
"""Memory limit for the load of bundles, and again for the usage of brokers; with more bundles, steps get longer."""
_KEPT = 20_000
"""Maximum number of moves and splits kept."""
_SHOWN = 2_000
"""Maximum number of moves and splits in one answer, the newest."""


@dataclass(frozen=True, slots=True)
class Window:
    """Time window of a timeline, in ms since 1970, and its maximum number of columns and rows."""

    from_ms: int
    until_ms: int
    columns: int
    rows: int


class TimelineMemory:
    """Timeline of one node, `span_ms` long; `run` samples for as long as the node lives.

    A thread of its own stores samples and draws, so nothing else waits for it.
    """

    def __init__(
        self, mirror: ClusterMirror, live: LiveSettings, leader_changed: Callable[[], asyncio.Future[None]]
    ) -> None:
        self._mirror = mirror
        self._live = live
        self._leader_changed = leader_changed
        self._history_url = live.base.history_url
        self._grids = {of: Grid(_SPAN_MS, _STEP_MS, GRID_BYTES) for of in ("brokers", "bundles")}
        self._moments = Moments(_KEPT)
        self._worker = Worker("timeline")
        self._previews = Previews(self._worker)
        self._began_ms = clock.now_ms()
        self.span_ms = _SPAN_MS
        mirror.on_record = self._record_changed

    async def run(self) -> None:
        """Sample the mirror once per step, and read the recorded history once, concurrently."""
        async with asyncio.TaskGroup() as group:
            if self._history_url:
                group.create_task(self._recall())
            last = dict.fromkeys(self._grids, -1)
            while True:
                at_ms = clock.now_ms()
                for of, grid in self._grids.items():
                    if at_ms // grid.step_ms != last[of]:
                        await self.look(of, at_ms)
                        last[of] = at_ms // grid.step_ms  # after `look`: a full grid lengthens its steps
                left_ms = min(grid.step_ms - at_ms % grid.step_ms for grid in self._grids.values())
                leader = self._mirror.leader
                if leader is not None:
                    self._moments.leads(leader.node_id, self._mirror.epoch, clock.now_ms())
                await asyncio.wait({self._leader_changed()}, timeout=left_ms / 1000)

    async def draw(self, of: Literal["brokers", "bundles"], window: Window) -> dict[str, Any]:
        """Return a `wire.fleet_bodies.Timeline`; raises `TooManyPreviewsError`."""
        draw = draw_brokers if of == "brokers" else draw_bundles
        async with self._previews.turn() as worker:
            drawn = await worker.run(
                draw, self._grids[of], window.from_ms, window.until_ms, window.columns, window.rows
            )
        return {"of": of, **_figures(drawn), **self._events_within(window)}

    async def look(self, of: str, at_ms: int) -> None:
        """Sample brokers or bundles."""
        grid = self._grids[of]
        try:
            if of == "brokers":
                summary = self._mirror.model.summary()
                weights = self._live.current.resource_weights
                figures = usage_as_figures(100 * weighted_max_usage(summary.usage_percent, weights))
                await self._worker.run(grid.put, summary.brokers, figures, at_ms)
            else:
                names, throughput = self._mirror.model.throughput()
                await self._worker.run(lambda: grid.put(names, throughput_as_figures(throughput), at_ms))
        except Exception:
            log.exception("timeline_not_kept", of=of)

    def _record_changed(self, before: NamespaceEntry, after: NamespaceEntry) -> None:
        self._moments.changed(before.state, after.state, clock.now_ms())

    async def _recall(self) -> None:
        from_ms = self._began_ms - _SPAN_MS
        weights, step_ms = self._live.current.resource_weights, self._grids["bundles"].step_ms
        try:
            recalling = Recalling(self._history_url, from_ms, self._began_ms, weights, step_ms)
            self._moments.recall(*await asyncio.to_thread(recalling.moments))
            parts = recalling.figures()
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                await self._worker.run(self._grids[part.of].put, part.names, part.figures, part.at_ms)
        except Exception:
            log.exception("timeline_not_recalled", history=self._history_url)
        else:
            log.info("timeline_recalled", rows=recalling.rows)

    def _events_within(self, window: Window) -> dict[str, Any]:
        def within(moments: Any) -> list[Any]:  # noqa: ANN401 - of one kind
            return [tuple(each) for each in moments if window.from_ms <= each.at_ms < window.until_ms]

        moves, splits = within(self._moments.moves), within(self._moments.splits)
        return {
            "moves": moves[-_SHOWN:],
            "movesOmitted": max(len(moves) - _SHOWN, 0),
            "splits": splits[-_SHOWN:],
            "leaders": within(self._moments.leaders)[-_SHOWN:],
        }


def _figures(drawn: HeatMap) -> dict[str, Any]:
    return {
        "from": drawn.from_ms,
        "stepMs": drawn.step_ms,
        "columns": drawn.cells.shape[1],
        "rows": drawn.rows,
        "sizes": drawn.sizes,
        "cells": base64.b64encode(drawn.cells.tobytes()).decode(),
        "scale": drawn.scale,
    }
