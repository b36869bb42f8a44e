"""Collection of usable records for a dump or an export; unusable ones become faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, TypeVar

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import InvalidNameError, namespace_of
from loadmanager.errors import InvalidRecordError
from loadmanager.lab.decide.dump_validation import check, declared_bundles, parse_bundle
from loadmanager.store.metadata_store import MetadataStore, Znode
from loadmanager.store.znode_codec import decode
from loadmanager.wire.dump_line import DumpLine, decode_line, encode

THE_DUMP = "the dump"

_Record = TypeVar("_Record")
_Declared = Callable[[str], NamespaceBundles | None]


@dataclass(slots=True)
class Collected:
    """Records, and the faults of the records that were left out."""

    content: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, key: str, name: str, value: Mapping[str, Any], where: str) -> None:
        """Add a record under `key` and its name if it is valid there; otherwise add a fault."""
        try:
            decode_line(encode({key: {name: value}}), where)
        except InvalidRecordError as error:
            self.faults.append(str(error))
        else:
            self.content.setdefault(key, {})[name] = value

    def find_text(self, znode: Znode | None, path: str) -> bytes | None:
        """Decode a znode; None if it does not exist or cannot be decoded, which is a fault."""
        if znode is None:
            return None
        try:
            return decode(znode.data, path)
        except InvalidRecordError as error:
            self.faults.append(str(error))
            return None

    async def read_one(
        self, store: MetadataStore, path: str, decode_record: Callable[[bytes, str], _Record]
    ) -> _Record | None:
        """Return a record, an empty one if its znode does not exist, or None if it is unreadable, which is a fault."""
        znode = await store.get(path)
        try:
            return decode_record(b"{}" if znode is None else decode(znode.data, path), path)
        except InvalidRecordError as error:
            self.faults.append(str(error))
            return None

    async def read(
        self,
        store: MetadataStore,
        named: Mapping[str, str],
        decode_record: Callable[[str, bytes, str], _Record],
        empty: list[str] | None = None,
    ) -> AsyncIterator[tuple[str, str, Znode, _Record]]:
        """Yield name, path, znode and record of each readable znode of `named`, paths by name.

        If `empty` is given, the names of empty znodes, which are only parents of others, are added to it.
        """
        znodes = await store.get_many(list(named.values()))
        for (name, path), znode in zip(named.items(), znodes, strict=True):
            if empty is not None and znode is not None and not znode.data:
                empty.append(name)
                continue
            text = self.find_text(znode, path)
            if znode is None or text is None:
                continue
            try:
                record = decode_record(name, text, path)
            except InvalidRecordError as error:
                self.faults.append(str(error))
            except InvalidNameError as error:
                self.faults.append(f"{path}: {error}")
            else:
                yield name, path, znode, record

    def finish(self) -> DumpLine:
        """Return the dump without reports and averages of bundles that no longer exist.

        Raises `InvalidRecordError` when the records contradict each other.
        """
        line = decode_line(encode(self.content), THE_DUMP)
        declared = cache(lambda namespace: declared_bundles(line, namespace, THE_DUMP))
        for broker, data in line.get("brokers", {}).items():
            reported = dict.fromkeys((*(data.get("bundles") or ()), *(data.get("lastStats") or ())))
            gone = self._find_absent(declared, reported, f"brokers.{broker}")
            if gone:
                data["bundles"] = [name for name in data.get("bundles") or () if name not in gone]
                data["lastStats"] = {n: stats for n, stats in (data.get("lastStats") or {}).items() if n not in gone}
        for name in self._find_absent(declared, line.get("bundleData", ()), "bundleData"):
            del line["bundleData"][name]
        for namespace, content in line.get("namespaces", {}).items():
            names = [f"{namespace}/{each}" for each in content.get("ownership", ())]
            for name in self._find_absent(declared, names, f"namespaces.{namespace}.ownership"):
                del content["ownership"][name.rpartition("/")[2]]
        check(line, THE_DUMP)
        return line

    def _find_absent(self, declared: _Declared, names: Iterable[str], where: str) -> set[str]:
        gone = set()
        for name in names:
            try:
                _, own = parse_bundle(name, where)
            except InvalidRecordError as error:
                gone.add(name)
                self.faults.append(str(error))
                continue
            bundles = declared(namespace_of(name))
            if own is not None and bundles is not None and bundles.find_index(own) is None:
                gone.add(name)
                self.faults.append(f"{where}: {name}: is no bundle of its namespace")
        return gone


async def walk(store: MetadataStore, root: str, levels: int) -> list[str]:
    """Return the names at this level below `root`, joined by `/`."""
    names = await store.children(root)
    for _ in range(1, levels):
        names = [*chain.from_iterable((await below(store, root, names)).values())]
    return names


async def below(store: MetadataStore, root: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the children of each of these names below `root`, joined by `/`."""
    found = await store.children_many([f"{root}/{name}" for name in names])
    return {name: [f"{name}/{child}" for child in children] for name, children in zip(names, found, strict=True)}


def without_empty_averages(averages: Mapping[str, Any], broker: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the time averages of a broker; None if they still have their initial 0 although it has bundles."""
    is_used = bool(broker.get("lastStats")) or bool(broker.get("bundles"))
    return None if is_used and not any(averages.values()) else averages
