"""Validation of a dump beyond its schema: bundles have names and do not overlap, brokers exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

from loadmanager.core.domain.bundles import NamespaceBundles
from loadmanager.core.domain.names import BundleRange, InvalidNameError, NamespaceName, namespace_of
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.dump_line import DumpLine
from loadmanager.wire.store_records import parse_boundaries

_RANGE = re.compile(r"(0x[0-9a-f]{1,8})_(0x[0-9a-f]{1,8})", re.IGNORECASE)
_LABEL = re.compile(r"[A-Za-z][-.A-Za-z]*[0-9]+")
"""Label that replaces the range of a bundle in hand-written scenarios, such as `bundle-10`."""


def check(line: DumpLine, where: str) -> None:
    """Raise `InvalidRecordError` for a line that contradicts itself."""
    ranges = _ranges(chain.from_iterable(names for _, names in _bundle_names(line)), line, where)
    for namespace, own in sorted(ranges.items()):
        _check_overlaps(own, where)
        _check_declared(line, namespace, own, where)
    for bundle in line.get("recentlyUnloaded", {}).get("bundles", {}):
        parse_bundle(bundle, f"{where}: recentlyUnloaded.bundles")
    _check_brokers(line, where)


def parse_bundle(name: str, where: str) -> tuple[str, BundleRange | None]:
    """Return the namespace and range of a bundle; the range is None for a bundle with a label.

    Hexadecimal digits may have either case, and the namespace either form of Pulsar's. Raises `InvalidRecordError`.
    """
    namespace, _, text = name.rpartition("/")
    found = _RANGE.fullmatch(text)
    try:
        if found is not None or namespace:
            NamespaceName.parse_any(namespace)
        if found is not None:
            return namespace, BundleRange(int(found[1], 16), int(found[2], 16))
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: bundle {name[:80]!r}: {error}") from None
    if not _LABEL.fullmatch(text):
        raise InvalidRecordError(f"{where}: bundle {name[:80]!r}: expected 'tenant/namespace/0xLLLLLLLL_0xUUUUUUUU'")
    return namespace, None


def is_range(text: str) -> bool:
    """Return True if the text is a bundle range, `0xLLLLLLLL_0xUUUUUUUU`."""
    return _RANGE.fullmatch(text) is not None


def check_bundle(line: DumpLine, name: str, where: str, key: str) -> None:
    """Raise `InvalidRecordError` if the bundle given as `key` does not fit the bundles of the line."""
    names = dict.fromkeys((*chain.from_iterable(names for _, names in _bundle_names(line)), name))
    namespace, own = parse_bundle(name, key)
    same_namespace = [each for each in names if namespace_of(each) == namespace]
    ranges = _ranges(same_namespace, line, where)
    if own is not None:
        _check_overlaps(ranges[namespace], f"{where}: {key}")
        _check_declared(line, namespace, {name: own}, f"{where}: {key}")


def declared_bundles(line: DumpLine, namespace: str, where: str) -> NamespaceBundles | None:
    """Return the bundles of a namespace by its boundaries; None without boundaries."""
    boundaries = line.get("namespaces", {}).get(namespace, {}).get("boundaries")
    if boundaries is None:
        return None
    try:
        return NamespaceBundles(parse_boundaries(boundaries))
    except InvalidNameError as error:
        raise InvalidRecordError(f"{where}: namespaces.{namespace}: {error}") from None


def _bundle_names(line: DumpLine) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the bundles that exist at the time of the line, by the key that names them."""
    for broker, data in line.get("brokers", {}).items():
        yield f"brokers.{broker}.bundles", data.get("bundles") or ()
        yield f"brokers.{broker}.lastStats", data.get("lastStats") or ()
    yield "bundleData", line.get("bundleData", ())
    for broker, bundles in line.get("preallocated", {}).items():
        yield f"preallocated.{broker}", bundles
    for broker, listed in line.get("topBundles", {}).items():
        yield f"topBundles.{broker}", [each["bundle"] for each in listed]
    for namespace, content in line.get("namespaces", {}).items():
        names = [f"{namespace}/{each}" for each in content.get("ownership", ())]
        yield f"namespaces.{namespace}.ownership", names
    yield "topics", line.get("topics", ())


def _ranges(names: Iterable[str], line: DumpLine, where: str) -> dict[str, dict[str, BundleRange]]:
    """Return, by namespace, the ranges of its bundles by name."""
    keys = {name: key for key, listed in _bundle_names(line) for name in listed}
    ranges: dict[str, dict[str, BundleRange]] = {}
    bare = full = None
    for name in dict.fromkeys(names):
        namespace, own = parse_bundle(name, f"{where}: {keys.get(name, '--bundle')}")
        bare, full = (bare, name) if namespace else (name, full)
        if own is not None:
            ranges.setdefault(namespace, {})[name] = own
    if bare and full:
        raise InvalidRecordError(f"{where}: bundles {bare!r} and {full!r}: all or none have a namespace")
    return ranges


def _check_overlaps(ranges: dict[str, BundleRange], where: str) -> None:
    ordered = sorted(ranges, key=lambda name: ranges[name])
    for lower, upper in pairwise(ordered):
        if ranges[upper].lower < ranges[lower].upper:
            raise InvalidRecordError(f"{where}: bundle {upper!r} overlaps {lower!r}: expected ranges side by side")


def _check_declared(line: DumpLine, namespace: str, ranges: dict[str, BundleRange], where: str) -> None:
    declared = declared_bundles(line, namespace, where)
    for name, own in ranges.items() if declared else ():
        if declared is not None and declared.find_index(own) is None:
            raise InvalidRecordError(f"{where}: bundle {name!r}: is none of namespaces.{namespace}.boundaries")


def _check_brokers(line: DumpLine, where: str) -> None:
    """Check that candidates are brokers of the line, and that each bundle is assigned to at most one broker, once."""
    brokers = line.get("brokers", {})
    for broker in line.get("candidates", ()):
        if broker not in brokers:
            raise InvalidRecordError(f"{where}: candidates: {broker!r} is none of the brokers")
    _check_once(line.get("candidates", ()), f"{where}: candidates")
    _check_once(chain.from_iterable(line.get("preallocated", {}).values()), f"{where}: preallocated")
    for broker, listed in line.get("topBundles", {}).items():
        _check_once((each["bundle"] for each in listed), f"{where}: topBundles.{broker}")
    for namespace in line.get("namespaces", {}):
        try:
            NamespaceName.parse_any(namespace)
        except InvalidNameError as error:
            raise InvalidRecordError(f"{where}: namespaces: {error}") from None
        declared_bundles(line, namespace, where)


def _check_once(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRecordError(f"{where}: {name!r} is there twice")
        seen.add(name)
