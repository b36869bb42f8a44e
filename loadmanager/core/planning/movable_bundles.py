"""Input of shedding: the snapshot without the brokers and bundles that may not be shed.

Pinned and frozen bundles may not move, so a strategy chooses among the others. A draining broker is left out: the drain
moves its bundles, and its decreasing load would make all others look overloaded. A broker with rejected reports is left
out too (`core.model.report_validation`). Verdicts name each omitted broker, and each pinned or frozen bundle on a
broker that sheds or has no movable bundle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from loadmanager.core.domain.controls import DrainOrder
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import FilterReason, SheddingReason
from loadmanager.core.model.snapshot import NOBODY, Snapshot
from loadmanager.core.strategies.shedding.shedding_strategy import Shed

_NOTHING_MAY_MOVE = (
    SheddingReason.NO_ELIGIBLE_BUNDLE,
    SheddingReason.NO_BUNDLE_FITS,
    SheddingReason.NO_TRANSFERABLE_BUNDLES,
)


def find_freeze(snapshot: Snapshot) -> Verdict | None:
    """Return the reason why shedding is frozen as a whole, None if it is not."""
    frozen = snapshot.controls.frozen
    return Verdict("cluster", SheddingReason.SHEDDING_FROZEN, acted=False, why={"frozen": frozen}) if frozen else None


def restrain(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot without brokers and bundles that may not be shed; the same one if there are none."""
    controls = snapshot.controls
    if _find_pinned_or_frozen(snapshot):
        snapshot = _mark_unmovable(snapshot)
    left_out = controls.draining.keys() | snapshot.faults.rejected.keys()
    return _without(snapshot, left_out) if left_out & set(snapshot.brokers.ids) else snapshot


def as_if_draining(snapshot: Snapshot, brokers: Collection[BrokerId]) -> Snapshot:
    """Return the snapshot with these brokers draining, so that none receives bundles."""
    draining = snapshot.controls.draining
    more = {broker: DrainOrder(snapshot.taken_at_s) for broker in sorted(brokers) if broker not in draining}
    if not more:
        return snapshot
    controls = replace(snapshot.controls, draining={**draining, **more})
    return replace(snapshot, controls=controls, _derived={})


def explain_restraints(snapshot: Snapshot, shed: Shed) -> Iterator[Verdict]:
    """Yield verdicts on the brokers and bundles omitted from the `snapshot` for the decision `shed`."""
    controls = snapshot.controls
    for broker in sorted(controls.draining):
        if snapshot.brokers.find_row(broker) is not None:
            yield explain_drain(snapshot, broker)
    yield from explain_faults(snapshot)
    if not _find_pinned_or_frozen(snapshot):
        return
    asked = {verdict.subject for verdict in shed.verdicts if verdict.acted or verdict.verdict in _NOTHING_MAY_MOVE}
    for name in sorted(_find_pinned_or_frozen(snapshot)):
        row = snapshot.bundles.find_row(name)
        if row is None or not snapshot.bundles.movable[row]:
            continue
        if snapshot.brokers.ids[snapshot.bundles.broker[row]] in asked or "cluster" in asked:
            yield explain_restraint(name, snapshot)


def explain_faults(snapshot: Snapshot) -> Iterator[Verdict]:
    """Yield verdicts on faulty brokers and reports: brokers left out, and brokers that receive nothing."""
    known, faults = set(snapshot.brokers.ids), snapshot.faults
    for verdict in (*faults.rejected.values(), *faults.sick.values(), *faults.remarks):
        if verdict.subject in known:
            yield verdict


def explain_drain(snapshot: Snapshot, broker: BrokerId) -> Verdict:
    """Return the verdict on a draining broker that is left out."""
    since_s = snapshot.controls.draining[broker].since_s
    why: dict[str, Figure] = {"seconds": max(0, round(snapshot.taken_at_s - since_s))}
    return Verdict(broker, FilterReason.BROKER_DRAINING, acted=False, why=why)


def explain_restraint(bundle: str, snapshot: Snapshot) -> Verdict:
    """Return the verdict on a pinned or frozen bundle."""
    controls = snapshot.controls
    if bundle in controls.frozen_bundles:
        why: dict[str, Figure] = {"frozen": controls.frozen_bundles[bundle]}
        return Verdict(bundle, SheddingReason.BUNDLE_FROZEN, acted=False, why=why)
    return explain_pin(bundle, controls.pinned[bundle])


def explain_pin(bundle: str, broker: BrokerId) -> Verdict:
    """Return the verdict on a bundle pinned to that broker."""
    return Verdict(bundle, SheddingReason.BUNDLE_PINNED, acted=False, why={"pinned_to": broker})


def _find_pinned_or_frozen(snapshot: Snapshot) -> Collection[str]:
    """Return the names of bundles that may not be shed."""
    controls = snapshot.controls
    return controls.pinned.keys() | controls.frozen_bundles.keys()


def _mark_unmovable(snapshot: Snapshot) -> Snapshot:
    movable = snapshot.bundles.movable.copy()
    for name in _find_pinned_or_frozen(snapshot):
        row = snapshot.bundles.find_row(name)
        if row is not None:
            movable[row] = False
    bundles = replace(snapshot.bundles, movable=movable)
    brokers = snapshot.brokers.with_bundles(bundles, snapshot.brokers.settled)
    return replace(snapshot, bundles=bundles, brokers=brokers, _derived={})


def _without(snapshot: Snapshot, left_out: Collection[BrokerId]) -> Snapshot:
    """Return the snapshot without these brokers. Bundles keep their rows; those of an omitted broker become unowned."""
    rows = np.array([row for row, broker in enumerate(snapshot.brokers.ids) if broker not in left_out], dtype=np.int64)
    position = np.full(len(snapshot.brokers) + 1, NOBODY, dtype=np.int32)  # the last entry maps NOBODY to itself
    position[rows] = np.arange(len(rows))
    bundles = snapshot.bundles
    broker = position[bundles.broker]
    bundles = replace(
        bundles, broker=broker, assigned=position[bundles.assigned], movable=bundles.movable & (broker >= 0)
    )
    load, top = snapshot.broker_load, snapshot.top_bundles
    return replace(
        snapshot,
        brokers=snapshot.brokers.only(rows, bundles),
        bundles=bundles,
        broker_load=None if load is None else load.only(rows),
        top_bundles=None if top is None else top.only(rows),
        reports=tuple(snapshot.reports[row] for row in rows.tolist()) if snapshot.reports else (),
        _derived={},
    )
