"""Intake of a load report, from its bytes to the model's columns, compared with `json.loads` of the same bytes."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable

import numpy as np
import orjson
from measure import Measured, show
from support.model_memory import hot_bytes

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import Ownership, OwnershipState, Registration
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.store.znode_codec import decode
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData, decode_local_broker_data, encode_local_broker_data

BUNDLES = 200
BUNDLES_OF_MODEL = 100_000
BUNDLES_PER_NAMESPACE = 100
TARGET_MS = 0.5
TARGET_BYTES_PER_BUNDLE = 136
REPEATS = 2_000
WHERE = "/loadbalance/brokers/broker-1.example.com:8080"
BROKER = Registration(BrokerId("broker-1.example.com:8080"), 1)


def a_record(rng: np.random.Generator) -> LocalBrokerData:
    """Return a report like that of a broker: all fields of Pulsar, rates with all digits."""
    names = bundle_names("my-tenant/my-namespace", BUNDLES)
    stats = {
        name: {
            "msgRateIn": rng.uniform(0, 10_000),
            "msgThroughputIn": rng.uniform(0, 10_000_000),
            "msgRateOut": rng.uniform(0, 10_000),
            "msgThroughputOut": rng.uniform(0, 10_000_000),
            "consumerCount": int(rng.integers(1000)),
            "producerCount": int(rng.integers(1000)),
            "topics": int(rng.integers(100_000)),
            "cacheSize": int(rng.integers(10**9)),
        }
        for name in names
    }
    totals = {key: sum(entry[key] for entry in stats.values()) for key in stats[names[0]]}
    usage = {"usage": float(rng.uniform(0, 100)), "limit": 800.0}
    return decode_local_broker_data(
        orjson.dumps(
            {
                "brokerId": BROKER.broker,
                "webServiceUrl": f"http://{BROKER.broker}",
                "pulsarServiceUrl": "pulsar://broker-1.example.com:6650",
                **dict.fromkeys(("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"), usage),
                **{key: totals[key] for key in ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")},
                "lastUpdate": 1_753_000_015_000,
                "lastStats": stats,
                "numTopics": totals["topics"],
                "numBundles": BUNDLES,
                "bundles": names,
                "lastBundleGains": names,
                "lastBundleLosses": [],
                "loadReportType": "LocalBrokerData",
            }
        ),
        WHERE,
    )


def bundle_names(namespace: str, bundles: int) -> list[str]:
    return [f"{namespace}/{bundle}" for bundle in NamespaceBundles(equal_boundaries(bundles)).ranges()]


def a_model() -> ClusterModel:
    """Return a large model in which the broker owns the reported bundles."""
    model = ClusterModel()
    for number in range(BUNDLES_OF_MODEL // BUNDLES_PER_NAMESPACE):
        namespace = f"tenant/namespace-{number:04d}"
        names = bundle_names(namespace, BUNDLES_PER_NAMESPACE)
        model.set_namespace(namespace, names, [Ownership()] * len(names))
    names = bundle_names("my-tenant/my-namespace", BUNDLES)
    owned = Ownership(OwnershipState.OWNED, BROKER, None, 1)
    model.set_namespace("my-tenant/my-namespace", names, [owned] * len(names))
    return model


def median_ms(action: Callable[[], object]) -> float:
    action()
    times = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - started_s)
    return float(np.median(times)) * 1e3


def main() -> None:
    data = encode_local_broker_data(a_record(np.random.default_rng(1)))
    compressed = gzip.compress(data)
    model = a_model()

    def take_in(raw: bytes) -> None:
        record = decode_local_broker_data(decode(raw, WHERE), WHERE)
        model.apply_report(BROKER, report_of(record, WHERE, model.known_bundles))

    record = decode_local_broker_data(data, WHERE)
    report = report_of(record, WHERE, model.known_bundles)
    whole_ms, yardstick_ms = median_ms(lambda: take_in(data)), median_ms(lambda: json.loads(data))
    model.snapshot(0.0, 0.0)
    bundles = BUNDLES_OF_MODEL + BUNDLES
    show(
        f"A report of {BUNDLES} bundles, {len(data) / 1024:.0f} KiB of JSON, median of {REPEATS:,}",
        [
            Measured("from bytes to columns", whole_ms, "ms", TARGET_MS),
            Measured(
                "  of it: bytes to a checked record", median_ms(lambda: decode_local_broker_data(data, WHERE)), "ms"
            ),
            Measured(
                "  of it: record to columns", median_ms(lambda: report_of(record, WHERE, model.known_bundles)), "ms"
            ),
            Measured("  of it: columns into the model", median_ms(lambda: model.apply_report(BROKER, report)), "ms"),
            Measured("json.loads of the same bytes", yardstick_ms, "ms"),
            Measured("orjson.loads of the same bytes", median_ms(lambda: orjson.loads(data)), "ms"),
            Measured("from bytes to columns / json.loads", whole_ms / yardstick_ms, ""),
            Measured("the same compressed with gzip, to columns", median_ms(lambda: take_in(compressed)), "ms"),
            Measured(
                "hot state of a bundle, beside its name", hot_bytes(model) / bundles, "bytes", TARGET_BYTES_PER_BUNDLE
            ),
        ],
    )


if __name__ == "__main__":
    main()
