"""A dump of a cluster of ours, read from its metadata store.

Ownership is as records and registrations say it together: an owner that is not registered any more, or again, is none.
What strategies remember counts incarnations by the znodes of registrations, a dump by `startTimestamp`; so it is
translated, and forgotten of brokers that registered again.

It is not one moment's picture. A leader knows more than it has written down: averages of bundles and strategies'
memories are those of its last flush, and averaged loads of brokers are only in its memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmanager.config import Settings, StoreSettings
from loadmanager.core.load import BundleAverages, FloatArray
from loadmanager.core.names import BrokerId, InvalidNameError, NamespaceName
from loadmanager.core.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.decide.collecting import Collected, Reader, walk, without_empty_averages
from loadmanager.errors import InvalidRecordError
from loadmanager.store import paths
from loadmanager.wire.dump import StrategyStates
from loadmanager.wire.load_report import decode_broker_record
from loadmanager.wire.records import TimeAverageBrokerData, decode_bundle_data, decode_namespace
from loadmanager.wire.strategy_state import StrategyStateRecord
from loadmanager.wire.validation import parse_model

_OF_THE_NODE = StoreSettings.model_fields.keys() | {
    "cluster_name",
    "bind_address",
    "web_service_port",
    "advertised_address",
}
_BY_INCARNATION = ("usage", "hits")
"""The parts of strategies' memories that are lists by broker, which begin with its incarnation."""


async def collect_cluster(store: Reader, taken_at_ms: int, settings: Settings) -> Collected:
    """The state of the cluster in this store; what differs from the defaults in `settings` becomes `configuration`."""
    collected = Collected({"takenAt": taken_at_ms, "brokers": {}, "bundleData": {}})
    registered = await _brokers(store, collected)
    await _namespaces(store, collected, registered)
    await _averages(store, collected)
    await _memory(store, collected, registered)
    configuration = configuration_of(settings)
    if configuration:
        collected.content["configuration"] = configuration
    return collected


def configuration_of(settings: Settings) -> dict[str, str]:
    """The settings that differ from the defaults, as a `broker.conf` would have them."""
    changed = settings.model_dump(exclude_defaults=True)
    return {Settings.key(name): _text(value) for name, value in changed.items() if name not in _OF_THE_NODE}


def _text(value: object) -> str:
    if isinstance(value, frozenset | list | tuple):
        return ",".join(sorted(map(str, value)))
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _brokers(store: Reader, collected: Collected) -> dict[str, Registration]:
    """Collect the reports; the registrations of the brokers, by id."""
    registered = {}
    names = await store.children(paths.BROKERS)
    znodes = await store.get_many([paths.broker(name) for name in names])
    for name, znode in zip(names, znodes, strict=True):
        path = paths.broker(name)
        text = collected.find_text(znode, path)
        if znode is None or text is None:
            continue
        try:
            record = decode_broker_record(text, path)
        except InvalidRecordError as error:
            collected.faults.append(str(error))
            continue
        collected.add("brokers", name, record, path)
        registered[name] = Registration(BrokerId(name), znode.czxid)
    return registered


async def _namespaces(store: Reader, collected: Collected, registered: Mapping[str, Registration]) -> None:
    reported = {name for data in collected.content["brokers"].values() for name in data.get("lastStats") or ()}
    names = await walk(store, paths.NAMESPACES, 2)
    znodes = await store.get_many([paths.namespace(name) for name in names])
    for name, znode in zip(names, znodes, strict=True):
        path = paths.namespace(name)
        text = collected.find_text(znode, path)
        if text is None:
            continue
        try:
            state = decode_namespace(NamespaceName.parse(name), text, path)
        except InvalidRecordError as error:
            collected.faults.append(str(error))
            continue
        except InvalidNameError as error:
            collected.faults.append(f"{path}: {error}")
            continue
        collected.add("namespaces", name, _namespace(state, registered, reported), path)


def _namespace(state: NamespaceState, registered: Mapping[str, Registration], reported: set[str]) -> dict[str, Any]:
    ownership = {}
    for index, entry in enumerate(state.ownerships):
        text = str(state.bundles.range_at(index))
        if entry.state is not OwnershipState.FREE or f"{state.name}/{text}" in reported:
            ownership[text] = _owned(entry, registered)
    return {
        "boundaries": [f"0x{boundary:08x}" for boundary in state.bundles.boundaries],
        "hashFunction": str(state.bundles.hash_function),
        "ownership": ownership,
    }


def _owned(entry: Ownership, registered: Mapping[str, Registration]) -> dict[str, str]:
    owned = {
        key: str(each.broker)
        for key, each in (("owner", entry.owner), ("destination", entry.destination))
        if each is not None and registered.get(each.broker) == each
    }
    is_orphan = entry.state is OwnershipState.OWNED and "owner" not in owned
    return {"state": str(OwnershipState.FREE if is_orphan else entry.state), **owned}


async def _averages(store: Reader, collected: Collected) -> None:
    names = await walk(store, paths.BUNDLE_DATA, 2)
    znodes = await store.get_many([paths.bundle_data(name) for name in names])
    for name, znode in zip(names, znodes, strict=True):
        path = paths.bundle_data(name)
        text = collected.find_text(znode, path)
        try:
            histories = {} if text is None else decode_bundle_data(name, text, path)
        except InvalidRecordError as error:
            collected.faults.append(str(error))
            continue
        for bundle, history in histories.items():
            collected.add("bundleData", bundle, _history(history), path)
    await _time_averages(store, collected)


async def _time_averages(store: Reader, collected: Collected) -> None:
    brokers = collected.content["brokers"]
    znodes = await store.get_many([paths.broker_time_average(broker) for broker in brokers])
    for (broker, data), znode in zip(brokers.items(), znodes, strict=True):
        path = paths.broker_time_average(broker)
        text = collected.find_text(znode, path)
        try:
            record = None if text is None else parse_model(TimeAverageBrokerData, text, path)
        except InvalidRecordError as error:
            collected.faults.append(str(error))
            continue
        averages = None if record is None else without_empty_averages(record.model_dump(by_alias=True), data)
        if averages is not None:
            collected.add("timeAverages", broker, averages, path)


def _history(averages: BundleAverages) -> dict[str, Any]:
    return {
        "shortTermData": _message_averages(averages.short, averages.short_samples, 10),
        "longTermData": _message_averages(averages.long, averages.long_samples, 1000),
        "topics": averages.topics,
    }


def _message_averages(mean: FloatArray, samples: int, most: int) -> dict[str, float]:
    rate_in, rate_out, throughput_in, throughput_out = mean.tolist()
    return {
        "maxSamples": most,
        "numSamples": samples,
        "msgThroughputIn": throughput_in,
        "msgThroughputOut": throughput_out,
        "msgRateIn": rate_in,
        "msgRateOut": rate_out,
    }


async def _memory(store: Reader, collected: Collected, registered: Mapping[str, Registration]) -> None:
    path = paths.STRATEGY_STATE
    text = collected.find_text(await store.get(path), path)
    if text is None:
        return
    try:
        record = parse_model(StrategyStateRecord, text, path)
    except InvalidRecordError as error:
        collected.faults.append(str(error))
        return
    starts = {name: data.get("startTimestamp", 0) for name, data in collected.content["brokers"].items()}
    for strategy, state in record.states.items():
        if strategy in StrategyStates.__annotations__:
            collected.add("state", strategy, _translated(state, registered, starts), path)
        else:
            collected.faults.append(f"{path}: {strategy}: no strategy of this version")
    unloaded = {"bundles": record.recently_unloaded, "brokers": record.last_unloaded}
    for kind, at_s in unloaded.items():
        collected.add("recentlyUnloaded", kind, {name: round(each * 1000) for name, each in at_s.items()}, path)


def _translated(
    state: Mapping[str, Any], registered: Mapping[str, Registration], starts: Mapping[str, int]
) -> dict[str, Any]:
    """The memory with each broker's `startTimestamp` for its incarnation; without that of earlier incarnations."""
    translated = dict(state)
    for key in _BY_INCARNATION:
        by_broker = state.get(key)
        if isinstance(by_broker, dict):
            translated[key] = {
                broker: [starts[broker], *remembered[1:]]
                for broker, remembered in by_broker.items()
                if broker in starts and registered[broker].incarnation == remembered[0]
            }
    return translated
