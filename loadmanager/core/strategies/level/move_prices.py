"""Cost of a move: its share of all load, times the factor set for the namespace."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot

_MOST = 1_000_000.0


def parse_move_cost(text: str) -> tuple[str, float]:
    """Parse `tenant/namespace=5` into namespace and factor. Raises `ValueError`."""
    namespace, _, factor = text.partition("=")
    tenant, _, name = namespace.partition("/")
    try:
        cost = float(factor)
    except ValueError:
        cost = -1.0
    if not (tenant and name and 0 <= cost <= _MOST):
        raise ValueError(f"{text!r}: expected tenant/namespace=factor, with a factor from 0 to {_MOST:,.0f}")
    return namespace, cost


def move_costs(snapshot: Snapshot, costs: Iterable[str]) -> FloatArray:
    """Return the cost factor of each bundle (N,); the last entry of a namespace counts."""
    factors = dict(map(parse_move_cost, sorted(costs)))
    by_namespace = np.array([factors.get(name, 1.0) for name in snapshot.bundles.namespaces], dtype=np.float64)
    return np.asarray(by_namespace[snapshot.bundles.namespace])
