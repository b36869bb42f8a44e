"""Versions of brokers, in the order of semantic versioning with build metadata: 1.2.0-SNAPSHOT, 1.2.0, 1.2.0+build."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from loadmanager.core.model.load import IntArray

UNREADABLE = -1
"""Rank of a string that is no semantic version."""

_MAX_LENGTH = 255
"""Maximum length of a version: longer strings are no versions, and their numbers might be too long to parse."""

_NUMBER = r"(?:0|[1-9]\d*)"
_IDENTIFIER = rf"(?:{_NUMBER}|\d*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)

_Identifiers = tuple[tuple[bool, int, str], ...]
_Key = tuple[int, int, int, bool, _Identifiers, bool, _Identifiers]


def rank_versions(versions: Sequence[str]) -> IntArray:
    """Rank versions: equal for equal ones, greater for later ones, `UNREADABLE` for invalid ones."""
    keys = {version: _find_key(version) for version in set(versions)}
    ranks: dict[_Key | None, int] = {None: UNREADABLE}
    ranks |= {key: rank for rank, key in enumerate(sorted({key for key in keys.values() if key is not None}))}
    return np.array([ranks[keys[version]] for version in versions], dtype=np.int64)


def _find_key(version: str) -> _Key | None:
    """Parse the sort key: a release sorts after its pre-releases, and build metadata after none."""
    found = _VERSION.fullmatch(version) if len(version) <= _MAX_LENGTH else None
    if found is None:
        return None
    major, minor, patch, pre_release, build = found.groups()
    before = pre_release is None, _identifiers(pre_release)
    after = build is not None, _identifiers(build)
    return int(major), int(minor), int(patch), *before, *after


def _identifiers(text: str | None) -> _Identifiers:
    """Parse the dot-separated identifiers: numbers sort before words."""
    parts = text.split(".") if text else ()
    return tuple((False, int(part), "") if part.isdigit() else (True, 0, part) for part in parts)
