"""Cost of the page for a node with 1,000 brokers and 100,000 bundles: an update of its streams, a day's heat map."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import orjson
from bench_core import BROKERS, a_cluster, best_s
from measure import Measured, show

from loadmanager.config.node_settings import Settings
from loadmanager.core.diagnosis.timeline import (
    Grid,
    draw_brokers,
    draw_bundles,
    throughput_as_figures,
    usage_as_figures,
)
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.http.fleet_routes import Frames
from loadmanager.leader.fleet_status import FleetStatus
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.leader.mirror.live_settings import LiveSettings
from loadmanager.leader.timeline_memory import GRID_BYTES

STREAMS = 100
DAY_MS = 86_400_000
STEP_MS = 10_000
COLUMNS, ROWS = 240, 200


def looks(model: ClusterModel) -> list[Measured]:
    """Measure an update: the fleet status, its encoding, and the part of each stream."""
    settings = Settings()
    node = SimpleNamespace(
        node_id="node:8080", mirror=ClusterMirror(model), live=LiveSettings(settings), settings=settings
    )
    fleet_status, frames = FleetStatus(cast("Any", node)), Frames()
    cells = orjson.dumps(np.zeros((BROKERS, 10)).tolist())

    def look() -> None:
        frames.forget_snapshot()
        frames.show(fleet_status.fleet(None), 0)

    look_s = best_s(look, 20)
    streams_s = best_s(lambda: [frames.after(frames.beginning) for _ in range(STREAMS)], 20)
    bare_s = best_s(lambda: orjson.loads(cells), 20)
    return [
        Measured("one look, for all streams", look_s * 1e3, "ms", 20.0),
        Measured("beside reading as many figures as JSON", look_s / bare_s, "x"),
        Measured(f"what {STREAMS} streams find of it", streams_s * 1e3, "ms"),
        Measured("bytes sent to each", len(frames.after(frames.beginning)[0]) / 1024, "KiB"),
    ]


def heat_map(model: ClusterModel, rng: np.random.Generator) -> list[Measured]:
    """Measure the recording and the drawing of a day at the default resolution."""
    names, throughput = model.throughput()
    bundles, brokers = Grid(DAY_MS, STEP_MS, GRID_BYTES), Grid(DAY_MS, STEP_MS, GRID_BYTES)
    start_s = time.perf_counter()
    bundles.put(names, throughput_as_figures(throughput), 0)
    first_s = time.perf_counter() - start_s
    start_s = time.perf_counter()
    for at_ms in range(0, DAY_MS, bundles.step_ms):
        bundles.put(names, throughput_as_figures(throughput * rng.uniform(0.5, 2.0, len(names))), at_ms)
    put_s = (time.perf_counter() - start_s) / (DAY_MS // bundles.step_ms)
    ids = model.summary().brokers
    for at_ms in range(0, DAY_MS, STEP_MS):
        brokers.put(ids, usage_as_figures(rng.uniform(0, 100, len(ids))), at_ms)
    bundles_s = best_s(lambda: draw_bundles(bundles, 0, DAY_MS, COLUMNS, ROWS), 5)
    brokers_s = best_s(lambda: draw_brokers(brokers, 0, DAY_MS, COLUMNS, BROKERS), 5)
    figures = np.ones((DAY_MS // bundles.step_ms, len(names)), dtype=np.uint8)
    bare_s = best_s(lambda: figures.max(axis=0), 5)
    return [
        Measured(f"a day of bundles, {COLUMNS} columns and {ROWS} rows", bundles_s, "s", 1.0),
        Measured("beside one maximum over all of its figures", bundles_s / bare_s, "x"),
        Measured(f"a day of brokers, {COLUMNS} columns and {BROKERS} rows", brokers_s, "s", 1.0),
        Measured("a step of bundles put down", put_s * 1e3, "ms"),
        Measured("the first, when all names are new", first_s * 1e3, "ms"),
        Measured("memory, bundles", bundles.cells / 2**20, "MiB", GRID_BYTES / 2**20),
        Measured("memory, brokers", brokers.cells / 2**20, "MiB", GRID_BYTES / 2**20),
        Measured("a step of bundles is", bundles.step_ms / 1000, "s"),
    ]


def main() -> None:
    rng = np.random.default_rng(1)
    model = a_cluster(rng)
    show("The page's streams: 1,000 brokers, 100,000 bundles", looks(model))
    show("The heat map of 24 hours: 1,000 brokers, 100,000 bundles", heat_map(model, rng))


if __name__ == "__main__":
    main()
