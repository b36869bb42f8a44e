"""Memory of a model."""

from __future__ import annotations

from dataclasses import fields

from loadmanager.core.model.cluster_model import ClusterModel


def hot_bytes(model: ClusterModel) -> int:
    """Memory of all bundle columns, orders and reporters, without names and without the bundle columns of last reports,
    64 bytes per bundle, which no snapshot has.
    """
    rows = model._rows
    columns = [getattr(rows.columns, column.name) for column in fields(rows.columns)]
    columns += [rows._order.rows, *(broker.rows for broker in model._reporters.brokers.values())]
    return sum(column.nbytes for column in columns)
