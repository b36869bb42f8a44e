from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import averages, broker, owned, releasing, report

from loadmanager.core.model.bundle_averages import PartLoad
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.learned_loads import LearnedLoads
from loadmanager.core.model.snapshot import Bundles, Snapshot
from loadmanager.core.model.time_means import TimeMeans

A, B = broker("a"), broker("b")
NS = "tenant/ns"
LOW, HIGH = f"{NS}/0x00000000_0x80000000", f"{NS}/0x80000000_0xffffffff"
FIRST, SECOND = f"{NS}/0x00000000_0x20000000", f"{NS}/0x20000000_0x80000000"
LOADS = np.array([1.0, 2.0, 3.0, 4.0])

CHANGES: dict[str, Callable[[ClusterModel], None]] = {
    "a record": lambda model: model.set_namespace(NS, [LOW, HIGH], [owned(A), owned(B)]),
    "a split": lambda model: model.set_namespace(NS, [FIRST, SECOND, HIGH], [owned(A), owned(A), owned(B)]),
    "what its parts carry": lambda model: model.redistribute({FIRST: PartLoad(LOADS, 1), SECOND: PartLoad(LOADS, 3)}),
    "a record that is gone": lambda model: model.remove_namespace(NS),
    "owners": lambda model: model.set_owners({name: owned(B, 2) for name in model._rows.by_name}),
    "a release": lambda model: model.set_owners({name: releasing(B, A) for name in list(model._rows.by_name)[:1]}),
    "a report": lambda model: model.apply_report(A, report({LOW: (5, 6, 7, 8)}, topics_per_bundle=3)),
    "another": lambda model: model.apply_report(B, report({HIGH: (50, 6, 7, 8)}, last_update_ms=9_000)),
    "one of unknown bundles": lambda model: model.apply_report(B, report({f"tenant/z/{LOW[-21:]}": (1, 1, 1, 1)})),
    "a broker that is gone": lambda model: model.remove_broker(B.broker),
    "history": lambda model: model.seed_bundle(HIGH, averages((9, 9, 9, 9), samples=50, topics=4)),
    "what was learned": lambda model: model.set_learned(LearnedLoads({NS: LOADS}, "run", 1)),
    "an unload": lambda model: model.mark_unloaded(LOW, 1.0, A.broker),
}


def columns_of(bundles: Bundles) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in (bundles, bundles.time_means):
        for column in fields(each):
            value = getattr(each, column.name)
            if not isinstance(value, TimeMeans | list):
                found[column.name] = value.tolist() if isinstance(value, np.ndarray) else value
    return found


def taken(model: ClusterModel) -> Snapshot:
    return model.snapshot(10.0, 60.0)


@given(names=st.lists(st.sampled_from(sorted(CHANGES)), max_size=8))
def test_incremental_snapshot_equals_a_full_one(names: list[str]) -> None:
    watched, alone = ClusterModel(), ClusterModel()
    for name in names:
        kept = taken(watched)
        for model in (watched, alone):
            CHANGES[name](model)
        assert columns_of(taken(watched).bundles) == columns_of(taken(alone).bundles)
        del kept


@pytest.mark.parametrize(("change", "is_shared"), [("owners", True), ("an unload", True), ("a report", False)])
def test_load_columns_are_shared_until_loads_change(change: str, *, is_shared: bool) -> None:
    model = ClusterModel()
    CHANGES["a record"](model)
    first = taken(model)
    CHANGES[change](model)
    assert (taken(model).bundles.long is first.bundles.long) is is_shared
