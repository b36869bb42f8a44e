"""Operations on a Pulsar through its REST interface, as an operator does them."""

from __future__ import annotations

import itertools
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from examples.pulsar.admin import RefusedError, demand
from examples.pulsar.cluster import CLUSTER, Broker, PulsarCluster
from examples.pulsar.progress import wait_until

_MOVE_TIMEOUT_S = 60.0
_OWNED_TRIES, _RETRY_S = 5, 1.0
_HASHES = 2**32


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator of a Pulsar. Any serving broker takes a request and redirects it if needed."""

    cluster: PulsarCluster

    def make_namespace(self, namespace: str, bundles: int) -> None:
        """Create a namespace with equal bundles, and its tenant."""
        tenant, _, _ = namespace.partition("/")
        if tenant not in self.get("/admin/v2/tenants"):
            self._demand("PUT", f"/admin/v2/tenants/{tenant}", {"allowedClusters": [CLUSTER]})
        policies = {"bundles": {"numBundles": bundles}, "replication_clusters": [CLUSTER]}
        self._demand("PUT", f"/admin/v2/namespaces/{namespace}", policies)

    def bundles_of(self, namespace: str) -> list[str]:
        """Return the ranges of its bundles, in order: `0x00000000_0x10000000` ..."""
        edges = self.get(f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
        return [f"{low}_{high}" for low, high in itertools.pairwise(edges)]

    def set_dynamic(self, key: str, value: str) -> None:
        """Change a setting on all brokers until it is removed."""
        self._demand("POST", f"/admin/v2/brokers/configuration/{key}/{quote(value, safe='')}")

    def unset_dynamic(self, key: str) -> None:
        self._demand("DELETE", f"/admin/v2/brokers/configuration/{key}")

    def dynamic(self) -> dict[str, str]:
        """Return the dynamic configuration."""
        values: dict[str, str] = self.get("/admin/v2/brokers/configuration/values")
        return values

    def settings_of(self, broker: Broker) -> dict[str, str]:
        """Return every setting of a broker."""
        url = "/admin/v2/brokers/configuration/runtime"
        settings: dict[str, str] = demand(broker.web_url, "GET", url).content()
        return settings

    def leader(self) -> Broker:
        """Return the leader, whose shedder is active."""
        return self.cluster.broker(self.get("/admin/v2/brokers/leaderBroker")["brokerId"])

    def owners(self, namespace: str) -> dict[str, str]:
        """Return the owners of bundles by range."""
        found: dict[str, str] = {}
        for broker in self.cluster.serving():
            owned = self._owned_by(broker)
            found |= {name.rpartition("/")[2]: broker.name for name in owned if name.startswith(f"{namespace}/")}
        return found

    def counts(self, namespace: str) -> Counter[str]:
        """Count the bundles of each broker."""
        return Counter(self.owners(namespace).values())

    def place(self, namespace: str, bundle: str, broker: Broker) -> None:
        """Move a bundle to this broker: unload it there and look up a topic of it, until the broker owns it."""
        topic = topics_in(namespace, bundle, 1)[0]
        wait_until(
            lambda: self._placed(namespace, bundle, topic, broker),
            f"{namespace}/{bundle} at {broker.name}",
            timeout_s=_MOVE_TIMEOUT_S,
        )

    def spread(self, namespace: str, where: Mapping[str, Broker]) -> None:
        """Call `place` for many bundles, by their ranges."""
        for bundle, broker in where.items():
            self.place(namespace, bundle, broker)

    def look_up(self, topic: str) -> str:
        """Return the id of the broker that owns a topic; Pulsar assigns one if needed."""
        found = self.get(f"/lookup/v2/topic/{topic.replace('://', '/')}")
        return str(found["httpUrl"]).removeprefix("http://")

    def get(self, path: str) -> Any:  # noqa: ANN401 - JSON
        return self._demand("GET", path)

    def _owned_by(self, broker: Broker) -> list[str]:
        """Return the bundles of a broker. Pulsar may answer 500 while one of them changes hands; it is asked again."""
        path = f"/admin/v2/brokers/{CLUSTER}/{broker.name}/ownedNamespaces"
        for _ in range(_OWNED_TRIES - 1):
            with suppress(RefusedError):
                return list(demand(broker.web_url, "GET", path).content())
            time.sleep(_RETRY_S)
        return list(demand(broker.web_url, "GET", path).content())

    def _placed(self, namespace: str, bundle: str, topic: str, broker: Broker) -> bool:
        if self.owners(namespace).get(bundle) == broker.name:
            return True
        try:
            where = f"/admin/v2/namespaces/{namespace}/{bundle}/unload?destinationBroker={quote(broker.name)}"
            self._demand("PUT", where)
            self.look_up(topic)
        except RefusedError:  # another unload is in progress
            return False
        return self.owners(namespace).get(bundle) == broker.name

    def _demand(self, method: str, path: str, content: object = None) -> Any:  # noqa: ANN401 - JSON
        serving = self.cluster.serving()
        answer = demand(serving[0].web_url, method, path, content)
        return answer.content() if answer.body else None


def topics_in(namespace: str, bundle: str, count: int) -> list[str]:
    """Return `count` topics whose hash lies in a bundle's range."""
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    found: list[str] = []
    number = 0
    while len(found) < count:
        topic = f"persistent://{namespace}/t-{number}"
        if low <= zlib.crc32(topic.encode()) < high + (high == _HASHES - 1):
            found.append(topic)
        number += 1
    return found
