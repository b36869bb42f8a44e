"""Dump of a load-manager cluster, read from its metadata store.

Ownership combines records and registrations: an owner whose registration has ended counts as none. The memory of
strategies identifies incarnations by the znodes of registrations, a dump by `startTimestamp`. So the memory is
translated; the entries of brokers that have registered again are dropped.

The dump is not a consistent snapshot, and the leader knows more than the store has. Averages of bundles and memories of
strategies are those of its last flush; averaged loads of brokers are only in its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from loadmanager.config.dynamic_settings import OF_THE_NODE, text_of, usable_overrides, values_as_text
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.controls import NO_CONTROLS
from loadmanager.core.domain.names import BrokerId, NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership, OwnershipState, Registration
from loadmanager.core.domain.settings import AS_PULSAR, PlannerSettings
from loadmanager.core.model.load import percent_usage, weighted_max_usage
from loadmanager.core.strategies.shedding.threshold_shedder import are_overloaded, reset_averages
from loadmanager.errors import InvalidRecordError
from loadmanager.lab.decide.record_collector import Collected, walk, without_empty_averages
from loadmanager.store import paths
from loadmanager.store.metadata_store import MetadataStore
from loadmanager.wire.average_records import bundle_data_of, decode_broker_averages, decode_bundle_data
from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import decode_local_broker_data
from loadmanager.wire.control_records import data_of, decode_controls
from loadmanager.wire.dump_line import StrategyStates
from loadmanager.wire.learned_records import decode_learned, without_unproved_profiles
from loadmanager.wire.policy_records import decode_domains, decode_groups, decode_isolation
from loadmanager.wire.store_records import decode_configuration, decode_namespace
from loadmanager.wire.strategy_state import RememberedStates, StrategyStateRecord
from loadmanager.wire.validation import parse_model

_Value = TypeVar("_Value")

_BY_INCARNATION = ("usage", "hits")
"""Keys of strategies' memories with a list per broker that begins with its incarnation."""


async def collect_cluster(store: MetadataStore, taken_at_ms: int, settings: Settings) -> Collected:
    """Collect the state of the cluster in this store; `settings` that differ from Pulsar's defaults become
    `configuration`.
    """
    collected = Collected({"takenAt": taken_at_ms, "brokers": {}, "bundleData": {}})
    registered = await _brokers(store, collected)
    await _namespaces(store, collected, registered)
    await _averages(store, collected)
    await _memory(store, collected, registered)
    await _operator_config(store, collected)
    live = await _overridden(store, collected, settings)
    _reset_averages(collected, live.planner_settings())
    configuration = configuration_of(live)
    if configuration:
        collected.content["configuration"] = configuration
    return collected


def configuration_of(settings: Settings) -> dict[str, str]:
    """Return the settings that differ from Pulsar's defaults, as in a `broker.conf`."""
    changed = settings.model_dump(exclude_defaults=True)
    texts = {Settings.key(name): text_of(value) for name, value in changed.items()}
    values = values_as_text(settings)
    texts = {key: text for key, text in texts.items() if key not in AS_PULSAR}
    texts |= {
        key: values[key]
        for key, pulsars in AS_PULSAR.items()
        if not values[key] or float(values[key]) != float(pulsars)
    }
    return {key: text for key, text in texts.items() if key not in OF_THE_NODE}


async def _brokers(store: MetadataStore, collected: Collected) -> dict[str, Registration]:
    """Collect the reports; return the registrations of the brokers by id."""
    registered = {}
    named = {name: paths.broker(name) for name in await store.children(paths.BROKERS)}
    read = collected.read(store, named, lambda _, text, path: decode_local_broker_data(text, path))
    async for name, path, znode, record in read:
        collected.add("brokers", name, record, path)
        registered[name] = Registration(BrokerId(name), znode.czxid)
    return registered


async def _namespaces(store: MetadataStore, collected: Collected, registered: Mapping[str, Registration]) -> None:
    reported = {name for data in collected.content["brokers"].values() for name in data.get("lastStats") or ()}
    named = {name: paths.namespace(name) for name in await walk(store, paths.NAMESPACES, 2)}
    read = collected.read(
        store, named, lambda name, text, path: decode_namespace(NamespaceName.parse(name), text, path)
    )
    async for name, path, _, state in read:
        collected.add("namespaces", name, _namespace(state, registered, reported), path)


def _namespace(state: NamespaceState, registered: Mapping[str, Registration], reported: set[str]) -> dict[str, Any]:
    ownership = {}
    for index, entry in enumerate(state.ownerships):
        text = str(state.bundles.range_at(index))
        if entry.state is not OwnershipState.FREE or f"{state.name}/{text}" in reported:
            ownership[text] = _owner_fields(entry, registered)
    return {
        "boundaries": [f"0x{boundary:08x}" for boundary in state.bundles.boundaries],
        "hashFunction": str(state.bundles.hash_function),
        "ownership": ownership,
    }


def _owner_fields(entry: Ownership, registered: Mapping[str, Registration]) -> dict[str, str]:
    owned = {
        key: str(each.broker)
        for key, each in (("owner", entry.owner), ("destination", entry.destination))
        if each is not None and registered.get(each.broker) == each
    }
    is_orphan = entry.state is OwnershipState.OWNED and "owner" not in owned
    return {"state": str(OwnershipState.FREE if is_orphan else entry.state), **owned}


async def _operator_config(store: MetadataStore, collected: Collected) -> None:
    """Collect policies, controls and learned loads; anti-affinity groups only of namespaces with a record."""
    policies = await _read(store, collected, paths.ISOLATION, decode_isolation)
    for name, policy in policies.items():
        collected.add("isolationPolicies", name, policy, paths.ISOLATION)
    domains = await _read(store, collected, paths.FAILURE_DOMAINS, decode_domains)
    for name, domain in domains.items():
        collected.add("failureDomains", name, domain, paths.FAILURE_DOMAINS)
    namespaces = collected.content.get("namespaces", {})
    for name, group in (await _read(store, collected, paths.ANTI_AFFINITY, decode_groups)).items():
        if name in namespaces:
            namespaces[name]["antiAffinityGroup"] = group
    controls = await _read(store, collected, paths.CONTROLS, decode_controls)
    if controls != NO_CONTROLS:
        collected.content["controls"] = data_of(controls)
    learned = await _read(store, collected, paths.LEARNED, decode_learned)
    if learned is not None:
        collected.content["learned"] = without_unproved_profiles(learned)


async def _overridden(store: MetadataStore, collected: Collected, settings: Settings) -> Settings:
    """Return the settings with dynamic configuration applied, as nodes use them."""
    path = paths.CONFIGURATION
    stored = await _read(store, collected, path, decode_configuration)
    settings, _, faults = usable_overrides(settings, stored)
    collected.faults += [f"{path}: {fault}" for fault in faults]
    return settings


async def _read(store: MetadataStore, collected: Collected, path: str, read: Callable[[bytes, str], _Value]) -> _Value:
    """Read a znode. A missing or unreadable one counts as empty; an unreadable one is also a fault."""
    found = await collected.read_one(store, path, read)
    return read(b"{}", path) if found is None else found


async def _averages(store: MetadataStore, collected: Collected) -> None:
    named = {name: paths.bundle_data(name) for name in await walk(store, paths.BUNDLE_DATA, 2)}
    async for _, path, _, histories in collected.read(store, named, decode_bundle_data):
        for bundle, history in histories.items():
            collected.add("bundleData", bundle, bundle_data_of(history), path)
    brokers = collected.content["brokers"]
    named = {name: paths.broker_time_average(name) for name in brokers}
    read = collected.read(store, named, lambda _, text, path: decode_broker_averages(text, path))
    async for broker, path, _, record in read:
        averages = without_empty_averages(record, brokers[broker])
        if averages is not None:
            collected.add("timeAverages", broker, averages, path)


async def _memory(store: MetadataStore, collected: Collected, registered: Mapping[str, Registration]) -> None:
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
            collected.add("state", strategy, _translate_memory(state, registered, starts), path)
        elif strategy not in RememberedStates.__annotations__:  # the memory of churn limits is not dumped
            collected.faults.append(f"{path}: {strategy}: no strategy of this version")
    unloaded = {"bundles": record.recently_unloaded, "brokers": record.last_unloaded}
    for kind, at_s in unloaded.items():
        collected.add("recentlyUnloaded", kind, {name: round(each * 1000) for name, each in at_s.items()}, path)


def _reset_averages(collected: Collected, settings: PlannerSettings) -> None:
    """Drop the averages that the leader's next round resets, so that a decision on the dump equals the leader's."""
    state = collected.content.get("state")
    if state is None:
        return
    overloaded = set()
    for broker, record in collected.content["brokers"].items():
        try:
            used, limit = report_of(record, paths.broker(broker)).usage.T
        except InvalidRecordError:  # the leader uses an earlier report
            continue
        usage = weighted_max_usage(percent_usage(used, limit)[np.newaxis], settings.resource_weights)
        if are_overloaded(usage, settings).any():
            overloaded.add(broker)
    collected.content["state"] = reset_averages(state, overloaded)


def _translate_memory(
    state: Mapping[str, Any], registered: Mapping[str, Registration], starts: Mapping[str, int]
) -> dict[str, Any]:
    """Replace each broker's incarnation by its `startTimestamp`; drop entries of earlier incarnations."""
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
