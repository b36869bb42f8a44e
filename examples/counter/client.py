"""Client of the counters: `python examples/counter/client.py --node http://127.0.0.1:8080 --counters 40 --rate 100`.

It increments the counters in turn, each at the owner that a node returns, and prints the increments per broker once a
second.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

import aiohttp

NAMESPACE = "public/counters"
AGAIN_S = 0.2


class Client:
    def __init__(self, node: str, http: aiohttp.ClientSession) -> None:
        self._node = node
        self._http = http
        self._owners: dict[str, str] = {}
        self.counted: Counter[str] = Counter()
        self.in_all = 0

    async def count_on(self, name: str, every_s: float) -> None:
        while True:
            await self.count(name)
            await asyncio.sleep(every_s)

    async def count(self, name: str) -> None:
        """Increment a counter. If the broker no longer serves it, look the owner up and try again."""
        while True:
            try:
                owner = self._owners[name] = self._owners.get(name) or await self._look_up(name)
                params = {"topic": f"persistent://{NAMESPACE}/{name}"}
                async with self._http.post(f"{owner}/count", params=params) as answer:
                    answer.raise_for_status()
            except (aiohttp.ClientError, TimeoutError):
                self._owners.pop(name, None)
                self.counted["tried again"] += 1
                await asyncio.sleep(AGAIN_S)
            else:
                self.counted[owner] += 1
                self.in_all += 1
                return

    async def _look_up(self, name: str) -> str:
        async with self._http.get(f"{self._node}/lookup/v2/topic/persistent/{NAMESPACE}/{name}") as answer:
            answer.raise_for_status()
            owner = await answer.json()
            return str(owner["brokerUrl"])


async def run(node: str, counters: int, rate: float) -> None:
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
        client = Client(node, http)
        group.create_task(tell(client))
        for number in range(counters):
            group.create_task(client.count_on(f"visits-{number}", counters / rate))
            await asyncio.sleep(1 / rate)


async def tell(client: Client) -> None:
    while True:
        client.counted.clear()
        await asyncio.sleep(1)
        where = [f"{each}: {times}" for each, times in sorted(client.counted.items())]
        print(f"{client.in_all} in all", *where, sep=", ", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", default="http://127.0.0.1:8080", help="a load-manager node")
    parser.add_argument("--counters", type=int, default=40, help="how many counters")
    parser.add_argument("--rate", type=float, default=100.0, help="how often something is counted, a second")
    asyncio.run(run(**vars(parser.parse_args())))
