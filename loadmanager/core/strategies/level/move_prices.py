"""What a move costs: the share of all load that it takes along, times what the owners of the namespace say."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from loadmanager.core.model.load import FloatArray
from loadmanager.core.model.snapshot import Snapshot

_MOST = 1_000_000.0


def parse_move_cost(text: str) -> tuple[str, float]:
    """The namespace and the factor of `tenant/namespace=5`. Raises `ValueError` for anything else."""
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
    """(N,): how many times the usual a move of each bundle costs; of one namespace the last in order counts."""
    factors = dict(map(parse_move_cost, sorted(costs)))
    by_namespace = np.array([factors.get(name, 1.0) for name in snapshot.bundles.namespaces], dtype=np.float64)
    return np.asarray(by_namespace[snapshot.bundles.namespace])
