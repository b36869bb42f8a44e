"""Import of a Pulsar broker's configuration: which keys a node uses, under which name, and which it does not, and why.

Source of the keys: Pulsar's broker configuration.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from loadmanager.cli.pulsar_files import ConfEntry, read_entries
from loadmanager.cli.service_runner import store_of
from loadmanager.config import AgentSettings, Settings, TlsSettings, settings_of, with_overrides
from loadmanager.config.settings_base import is_secret
from loadmanager.core.domain.settings import AS_PULSAR
from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.decision_settings import LEGACY_WEIGHTS
from loadmanager.net.auth.gate import AuthGate

_OTHER_STORE = re.compile(r"(?!zk:)[a-z][a-z0-9+-]*:(?!\d)")

_FIELDS = {Settings.key(name): name for name in Settings.model_fields}
_AGENT_KEYS = frozenset(map(AgentSettings.key, AgentSettings.model_fields)) - _FIELDS.keys()
_BY_HAND = {
    **dict.fromkeys(
        (
            *("advertisedAddress", "bindAddress", "webServicePort", "webServicePortTls"),
            *map(TlsSettings.key, TlsSettings.model_fields),
        ),
        "says where the broker is and what it shows; set it for the node",
    ),
    **{
        Settings.key(name): "a secret, which is printed nowhere: write it into the file yourself"
        for name, field in Settings.model_fields.items()
        if is_secret(field)
    },
}
"""Keys that a node has too, but not from here."""

_CHECKED_BY_HAND = ("tokenSecretKey", "tlsTrustCertsFilePath")
"""Keys that are not converted, without which a node may refuse what is."""

_STORE = "metadataStoreUrl"
_HASH_STRATEGY = "topicBundleAssignmentStrategy"
_CONSISTENT_HASHING = "ConsistentHashingTopicBundleAssigner"

_RENAMED = {
    **LEGACY_WEIGHTS,
    "zookeeperServers": _STORE,
    "zooKeeperSessionTimeoutMillis": "metadataStoreSessionTimeoutMillis",
}
"""Deprecated keys, which Pulsar still reads where the new one is not set."""

_OWN_RECORDS = "who owns what is kept in records of this service's own"
_NOT_NEEDED = {
    "exposeBundlesMetricsInPrometheus": "there are no metrics per bundle here",
    "loadBalancerDebugModeEnabled": "every decision is explained anyway",
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": _OWN_RECORDS,
    "loadBalancerMultiPhaseBundleUnload": "a bundle is always handed over in one write",
    "loadBalancerOverrideBrokerNics": "an agent measures all network interfaces",
    "loadBalancerServiceUnitStateMaxConcurrentOverrides": _OWN_RECORDS,
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds": _OWN_RECORDS,
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds": _OWN_RECORDS,
    "loadBalancerServiceUnitTableViewSyncer": _OWN_RECORDS,
    "loadManagerMigrationEnabled": "there is one load manager here",
    "loadManagerServiceUnitStateTableViewClassName": _OWN_RECORDS,
}
_ABOUT_BALANCING = re.compile(r"load(Balance|Manager)|.*(Bundle|Unload)")


class KeyOutcome(StrEnum):
    """Outcome of a key."""

    USED = "used"
    TRANSLATED = "translated"
    IGNORED = "ignored"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class ConvertedEntry:
    """Outcome of an entry, with its reason. With a `key`, the node gets that `value` under it.

    `about_balancing` tells Pulsar's other keys apart.
    """

    entry: ConfEntry
    outcome: KeyOutcome
    why: str
    key: str = ""
    value: str = ""
    about_balancing: bool = True


@dataclass(frozen=True, slots=True)
class ImportedConf:
    """The settings that follow from a file, which of their fields it sets, and what became of each of its keys.

    `secrets` are the keys that have to be added by hand; `refusal` says why no node would start, and is empty if one
    would.
    """

    settings: Settings
    fields: list[str]
    converted: list[ConvertedEntry]
    secrets: list[str]
    refusal: str


def import_broker_conf(path: Path) -> ImportedConf:
    """Read the file. `ConfigurationError` names the line and the key of a value that cannot be used."""
    entries = {entry.key: entry for entry in read_entries(path, _is_ours)}
    older = _find_deprecated_in_use(entries)
    converted = [_convert_entry(entry, older) for entry in entries.values()]
    settings = _validate({each.key: each for each in converted if each.key}, path)
    named = dict.fromkeys([*(each.key for each in converted if each.key), *AS_PULSAR])
    refusal = _find_refusal(settings, entries)
    if refusal:
        converted = [
            replace(each, outcome=KeyOutcome.REJECTED, why=refusal) if each.key and each.key in refusal else each
            for each in converted
        ]
    secrets = [key for key in entries if key in _FIELDS and is_secret(Settings.model_fields[_FIELDS[key]])]
    return ImportedConf(settings, [_FIELDS[key] for key in named], converted, secrets, refusal)


def _find_deprecated_in_use(entries: Mapping[str, ConfEntry]) -> dict[str, str]:
    """The deprecated keys that hold by the keys that replace them: where the new one is not set, or to its default."""
    older = {}
    for deprecated, key in _RENAMED.items():
        newer = entries.get(key)
        if deprecated in entries and entries[deprecated].value and (newer is None or _is_default(newer)):
            older[key] = deprecated
    return older


def _is_default(entry: ConfEntry) -> bool:
    """Tell if the entry is empty or the default."""
    default = settings_of({}, "defaults")
    try:
        return not entry.value or with_overrides(default, {entry.key: entry.value}, entry.key) == default
    except ConfigurationError:
        return False


def _convert_entry(entry: ConfEntry, older: Mapping[str, str]) -> ConvertedEntry:
    """Decide the outcome of an entry; `older` are the deprecated keys in use, by the new ones."""
    key = entry.key
    if not entry.value:
        return ConvertedEntry(
            entry, KeyOutcome.IGNORED, "empty: the default holds", about_balancing=_is_about_balancing(key)
        )
    if key in _BY_HAND:
        return ConvertedEntry(entry, KeyOutcome.IGNORED, _BY_HAND[key])
    if key in _RENAMED:
        return _take_renamed(entry, older)
    if key in older:
        return ConvertedEntry(entry, KeyOutcome.IGNORED, f"the default, and {older[key]} is set")
    if key == _HASH_STRATEGY and entry.value.rpartition(".")[2] == _CONSISTENT_HASHING:
        return ConvertedEntry(
            entry, KeyOutcome.TRANSLATED, "now defaultHashFunction: crc32", "defaultHashFunction", "crc32"
        )
    return ConvertedEntry(entry, KeyOutcome.USED, "", key, entry.value) if key in _FIELDS else _explain_unused(entry)


def _take_renamed(entry: ConfEntry, older: Mapping[str, str]) -> ConvertedEntry:
    key = _RENAMED[entry.key]
    if older.get(key) != entry.key:
        return ConvertedEntry(entry, KeyOutcome.IGNORED, f"deprecated, and {key} is set")
    value = f"zk:{entry.value}" if key == _STORE else entry.value
    return ConvertedEntry(entry, KeyOutcome.TRANSLATED, f"deprecated: now {key}", key, value)


def _explain_unused(entry: ConfEntry) -> ConvertedEntry:
    """Return the outcome of an entry for which a node has no setting, with the reason."""
    key = entry.key
    if key == _HASH_STRATEGY:
        return ConvertedEntry(entry, KeyOutcome.IGNORED, "only Pulsar's usual hash of a topic's name can be used")
    if key in _AGENT_KEYS:
        return ConvertedEntry(
            entry, KeyOutcome.IGNORED, "a setting of the agent: put it into its file under the same name"
        )
    if key in _NOT_NEEDED:
        return ConvertedEntry(entry, KeyOutcome.IGNORED, _NOT_NEEDED[key])
    if _is_about_balancing(key):
        return ConvertedEntry(entry, KeyOutcome.IGNORED, "no such setting here")
    return ConvertedEntry(entry, KeyOutcome.IGNORED, "not about load balancing", about_balancing=False)


def _is_about_balancing(key: str) -> bool:
    return key in _FIELDS or key in _AGENT_KEYS or key in _NOT_NEEDED or _ABOUT_BALANCING.match(key) is not None


def _is_ours(key: str) -> bool:
    return key in _RENAMED or _is_about_balancing(key)


def _validate(wanted: Mapping[str, ConvertedEntry], path: Path) -> Settings:
    store = wanted.get(_STORE)
    if store is not None and _OTHER_STORE.match(store.value):
        where = f"{path}:{store.entry.line}: {store.entry.key}"
        raise ConfigurationError(f"{where}: only ZooKeeper can be used (got {store.value!r})")
    default = settings_of({}, "defaults")
    try:
        meant = {key: str(value) for key, value in AS_PULSAR.items()}
        return with_overrides(default, {**meant, **{key: each.value for key, each in wanted.items()}}, str(path))
    except ConfigurationError:
        for key, each in wanted.items():
            _check(default, key, each, f"{path}:{each.entry.line}")
        raise


def _find_refusal(settings: Settings, entries: Mapping[str, ConfEntry]) -> str:
    """Return why a node would not start with these settings and what its operator adds by hand; empty if it would.

    The file with the key of tokens may be on other machines only.
    """
    by_hand = {key: entries[key].value for key in _CHECKED_BY_HAND if key in entries}
    try:
        whole = with_overrides(settings, by_hand, "settings")
        store_of(whole.metadata_store_url, whole)
        AuthGate(whole)
    except ConfigurationError as error:
        return "" if os.strerror(errno.ENOENT) in str(error) else str(error)
    return ""


def _check(default: Settings, key: str, converted: ConvertedEntry, where: str) -> None:
    """Raise `ConfigurationError` for a value that cannot be used, whatever the other keys say."""
    try:
        with_overrides(default, {key: converted.value}, where)
    except ConfigurationError as error:
        if str(error).startswith(f"{where}: {key}:"):
            raise
