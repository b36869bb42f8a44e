"""A node's page before a fleet of any size, which no node has to be for it: the stream of it, a picture a second."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from aiohttp import web
from support.servers import end_app, listen, serve_app

from loadmanager.http.page_routes import PageHandlers

_COLUMNS = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")


@dataclass(slots=True)
class LargeFleet:
    """Stream of a large fleet; `pictures` counts frames. Each broker's usage goes up and down by a phase of its own."""

    brokers: int
    bundles: int
    interval_s: float = 1.0
    url: str = ""
    pictures: int = 0
    _ids: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._ids = [f"broker-{number:04d}.example.com:8080" for number in range(self.brokers)]

    def picture(self) -> dict[str, Any]:
        """A `wire.fleet_bodies.Fleet`."""
        rows = np.arange(self.brokers)
        usage = 50 + 30 * np.sin(rows * 12.9898) + 5 * np.sin(self.pictures / 3 + rows)
        columns: dict[str, list[Any]] = {name: (usage * (1 - 0.1 * at)).tolist() for at, name in enumerate(_COLUMNS)}
        now_ms = time.time_ns() // 1_000_000
        return {
            "at": now_ms,
            "node": "n1:8080",
            "leader": {"id": "n1:8080", "url": self.url, "epoch": 3},
            "nodes": ["n1:8080"],
            "openToAnyone": True,
            "availableNamespaces": [],
            "isWhole": True,
            "balancing": {"frozen": "", "dryRun": False, "breaker": None},
            "drains": [],
            "brokers": {
                "id": self._ids,
                **columns,
                "highest": usage.tolist(),
                "msgRate": (usage * 1000).tolist(),
                "throughput": (usage * 1e6).tolist(),
                "bundles": [self.bundles // self.brokers] * self.brokers,
                "state": ["active"] * self.brokers,
                "reportedAt": [now_ms] * self.brokers,
            },
            "mean": float(usage.mean()),
            "lowerBound": float(usage.mean()),
            "capacity": 100.0,
            "bundles": self.bundles,
            "unowned": 0,
            "unserved": [],
            "moving": [],
            "movingInAll": 0,
            "faults": {},
        }

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"event: fleet\ndata: " + orjson.dumps(self.picture()) + b"\n\n")
                self.pictures += 1
                await asyncio.sleep(self.interval_s)
        return response

    async def timeline(self, request: web.Request) -> web.Response:
        """A day of as many rows and columns as are asked for, and a move for each column."""
        since, until = int(request.query["since"]), int(request.query["until"])
        columns, rows = int(request.query["columns"]), min(int(request.query["rows"]), self.brokers)
        step_ms = math.ceil((until - since) / columns)
        cells = (np.add.outer(np.arange(rows) * 7, np.arange(columns)) % 101).astype(np.uint8)
        answer = {
            "of": request.query["of"],
            "from": since,
            "stepMs": step_ms,
            "columns": columns,
            "rows": self._ids[:rows],
            "sizes": [1] * rows,
            "cells": base64.b64encode(cells.tobytes()).decode(),
            "moves": [
                [since + at * step_ms, "t/ns/0x00000000_0x10000000", self._ids[0], self._ids[at % rows], "shed"]
                for at in range(columns)
            ],
            "movesOmitted": 0,
            "splits": [],
            "leaders": [[since + step_ms, "n1:8080", 3]],
        }
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async def decisions(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"epoch": 3, "decisions": []})


@contextlib.asynccontextmanager
async def a_large_fleet(
    brokers: int = 1_000, bundles: int = 100_000, interval_s: float = 1.0
) -> AsyncIterator[LargeFleet]:
    fleet, listener = LargeFleet(brokers, bundles, interval_s), listen()
    fleet.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app, page = web.Application(), PageHandlers(lambda: ())
    app.add_routes(
        [
            web.get("/", page.index),
            web.get("/page/{file:.+}", page.file),
            web.get("/loadbalance/v1/live", fleet.stream),
            web.get("/loadbalance/v1/timeline", fleet.timeline),
            web.get("/loadbalance/v1/decisions", fleet.decisions),
        ]
    )
    runner = await serve_app(app, listener)
    try:
        yield fleet
    finally:
        await end_app(runner)
