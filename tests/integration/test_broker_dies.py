"""A real broker's process is killed beside an agent: what it owned is free long before its lease would have lapsed."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from support.agents import agent_settings, running_agent
from support.delays import a_memory_cluster
from support.fake_broker import FakeBroker
from support.fake_node import FakeNode
from support.memory_store import MemoryStore
from support.waiting import eventually

_LEASE_S = 60.0


async def test_killed_broker_is_deregistered_before_its_lease_lapses(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("agent-file", "serving-log", "ready-file")}
    arguments = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    store = MemoryStore(a_memory_cluster(), session_timeout_s=2 * _LEASE_S)
    await store.start()
    broker = await asyncio.create_subprocess_exec(sys.executable, "-m", "loadmanager.dev.demo.demo_broker", *arguments)
    try:
        await eventually(files["ready-file"].exists)
        told = json.loads(files["ready-file"].read_bytes())
        async with FakeBroker() as other, FakeNode() as node:
            settings = agent_settings(other, node, brokerUrl=told["url"], brokerLeaseMs=int(1000 * _LEASE_S))
            async with running_agent(settings, store) as beside:
                files["agent-file"].write_text(json.dumps({"url": beside.local_url}))
                leases = beside.agent.leases
                await eventually(lambda: leases.lapsed_at_s > time.monotonic(), "it has a lease")
                broker.kill()

                async def is_gone() -> bool:
                    return await beside.record() is None

                await eventually(is_gone, "the znode goes with the process")
                assert beside.metric("withdrawals_total", reason="broker_died") == 1
    finally:
        if broker.returncode is None:
            broker.kill()
        await broker.wait()
        await store.close()
