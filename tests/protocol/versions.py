"""Another version of the product: writes unknown fields and omits optional ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson

from loadmanager.store import paths
from loadmanager.store.metadata_store import Create, Op, Put
from loadmanager.store.znode_codec import decode, pack

_UNKNOWN = {"ofAnotherVersion": {"is": ["not", 1, None]}}
_ASSUMED = "hashFunction"
"""Optional field of a namespace record; the records here have its default."""

_WRITTEN = (paths.NAMESPACES, paths.NODES, paths.BROKERS, paths.LEADER)
"""Records that grow with versions; operators' records are rejected when they hold anything unknown."""


def as_another_version(ops: Sequence[Op]) -> list[Op]:
    """Operations that another version would write instead of these."""
    return [_rewritten(op) if isinstance(op, Create | Put) and op.path.startswith(_WRITTEN) else op for op in ops]


def _rewritten(op: Create | Put) -> Create | Put:
    if not op.data.startswith(b"{"):
        return op
    record: dict[str, Any] = orjson.loads(decode(op.data, op.path))
    record.pop(_ASSUMED, None)
    for part in (record, *record.get("ownership", {}).values()):
        part.update(_UNKNOWN)
    return replace(op, data=pack(orjson.dumps(record)))
