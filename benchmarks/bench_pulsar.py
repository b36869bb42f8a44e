"""Cost of polling a large Pulsar every 10 s: bytes that its brokers send, and CPU time of the polling process.

The brokers are simulated in one process; their answers have real sizes, and their own cost is not measured. Every third
poll also reads topics (extensible), namespaces and policies.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import Measured, show

from loadmanager.cli.service_runner import reading_cluster
from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.leader.mirror.cluster_mirror import ClusterMirror
from loadmanager.net.http_client import HttpClient
from loadmanager.pulsar import pulsar_intake
from loadmanager.pulsar.broker_settings import BrokerSettingsPoll, PulsarSettings
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.pulsar_intake import PulsarIntake

BROKERS, BUNDLES = 100, 10_000
POLLS = 3
POLL_S, WHOLE_POLL_S = 10.0, 30.0
_TIMEOUT_S = 600.0
TARGET_MB_PER_S, TARGET_CORE_PERCENT = 2.0, 10.0


def main() -> None:
    for load_manager in sys.argv[1:] or ("modular", "extensible"):
        with tempfile.TemporaryDirectory() as folder:
            ready = Path(folder) / "ready"
            script = Path(__file__).with_name("pulsar_server.py")
            server = subprocess.Popen([sys.executable, script, str(BROKERS), str(BUNDLES), load_manager, str(ready)])
            try:
                while not ready.exists():
                    time.sleep(0.1)
                asyncio.run(measure(load_manager, json.loads(ready.read_text(encoding="utf-8"))["url"]))
            finally:
                server.kill()
                server.wait()


async def measure(load_manager: str, url: str) -> None:
    async with PulsarAdmin([url], timeout_s=_TIMEOUT_S) as admin:
        live = PulsarSettings(await admin.settings(url), PulsarServiceSettings(admin_urls=(url,)))
        mirror = ClusterMirror()
        intake = PulsarIntake(admin, BrokerSettingsPoll(admin), mirror, live, 1e6, lambda: None, lambda _: None)
        polling = asyncio.create_task(intake.run())
        with reading_cluster():
            await intake.settled()
        assert len(mirror.registrations) == BROKERS, mirror.faults
        whole_s, whole_bytes = await poll(intake, url, every_s=0.0)
        usual_s, usual_bytes = await poll(intake, url, every_s=1e6)
        polling.cancel()
    usual_share = 1 / POLL_S - 1 / WHOLE_POLL_S
    core = 100 * (whole_s / WHOLE_POLL_S + usual_s * usual_share)
    sent = (whole_bytes / WHOLE_POLL_S + usual_bytes * usual_share) / 1e6
    show(
        f"{load_manager}: {BROKERS} brokers, {BUNDLES:,} bundles, a poll every {POLL_S:.0f} s",
        [
            Measured("bytes from all brokers", sent, "MB/s", TARGET_MB_PER_S),
            Measured("CPU time of the process", core, "% of a core", TARGET_CORE_PERCENT),
            Measured("CPU time of a poll", usual_s, "s"),
            Measured("  every third one, with topics and policies", whole_s, "s"),
        ],
    )


async def poll(intake: PulsarIntake, url: str, *, every_s: float) -> tuple[float, float]:
    """Return CPU seconds and bytes of a poll, which asks for everything if `every_s` is 0."""
    pulsar_intake.TOPICS_S = pulsar_intake.POLICIES_S = every_s
    before, cpu_before_s = await find_sent(url), time.process_time()
    for _ in range(POLLS):
        await intake.settled()
    cpu_s = time.process_time() - cpu_before_s
    return cpu_s / POLLS, (await find_sent(url) - before) / POLLS


async def find_sent(url: str) -> int:
    async with HttpClient() as http:
        return int((await http.call("GET", f"{url}/sent", _TIMEOUT_S)).body)


if __name__ == "__main__":
    main()
