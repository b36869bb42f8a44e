from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.builders import broker, bundle, owned, releasing, report

from loadmanager.core.domain.ownership import FREE
from loadmanager.core.domain.plan import Verdict
from loadmanager.core.domain.reasons import FilterReason, ValidationReason
from loadmanager.core.domain.resources import HealthFigures
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BundleAverages
from loadmanager.core.model.report_validation import NO_FAULTS, ReportFaults
from loadmanager.core.model.snapshot_builder import ModelCheckpoint
from loadmanager.history.entry_rows import encode_json
from loadmanager.lab.replay.replayed_decisions import Mismatch, compare_checkpoints
from loadmanager.wire.checkpoint_codec import faults_as_json, faults_of, head_of, parts_of, read_checkpoint, unquoted

B1, B2, B3 = (broker(f"b{number}") for number in (1, 2, 3))
LOAD = (10.5, 20.25, 1e6 / 3, 0.1)
WHOLE = "t/split/0x00000000_0xffffffff"
HALVES = ["t/split/0x00000000_0x80000000", "t/split/0x80000000_0xffffffff"]


def a_model() -> ClusterModel:
    """Model with disputes, destinations, unknown bundles, shares by range and unload marks."""
    model = ClusterModel()
    names = [bundle(number) for number in range(4)]
    model.set_namespace("tenant/ns", names, [owned(B1), releasing(B2, B3), FREE, owned(broker("gone", 7))])
    model.set_namespace("t/split", [WHOLE], [owned(B1)])
    first = report({names[0]: LOAD, WHOLE: LOAD}, topics_per_bundle=5, last_update_ms=5)
    model.apply_report(B1, replace(first, health=HealthFigures(12.5, None, 3.0)))
    model.apply_report(B2, report({names[1]: LOAD, names[0]: LOAD, "t/unknown/0x00000000_0xffffffff": LOAD}))
    model.apply_report(B3, report({f"t/split/{'0x00000000_0x40000000'}": LOAD}, last_update_ms=60_000))
    model.set_namespace("t/split", HALVES, [owned(B1), owned(B1)])
    model.mark_unloaded(names[1], 12.5, B2.broker)
    model.seed_bundle(names[2], BundleAverages(np.arange(4.0), np.arange(4.0) / 3, 3, 900, 2))
    return model


def restored(checkpoint: ModelCheckpoint) -> ClusterModel:
    model = ClusterModel()
    model.restore(checkpoint)
    return model


def through_json(checkpoint: ModelCheckpoint) -> ModelCheckpoint:
    head = json.loads(str(encode_json(head_of(checkpoint))))
    parts = [(holds, json.loads(str(encode_json(content)))) for holds, content in parts_of(checkpoint, {})]
    return read_checkpoint(head, parts)[0]


@pytest.mark.parametrize("copied", [lambda checkpoint: checkpoint, through_json])
def test_checkpoint_restores_an_equal_model(copied: Callable[[ModelCheckpoint], ModelCheckpoint]) -> None:
    model = a_model()
    copy = restored(copied(model.checkpoint()))
    compare_checkpoints(model.checkpoint(), copy.checkpoint())
    assert copy.unknown_bundles() == model.unknown_bundles()
    assert copy.awaits_division("t/split")


def test_restored_model_stays_equal_after_the_same_changes() -> None:
    model = a_model()
    copy = restored(through_json(model.checkpoint()))
    for each in (model, copy):
        each.apply_report(B3, report({HALVES[0]: LOAD, bundle(1): LOAD}, last_update_ms=90_000))
        each.apply_report(B2, report({bundle(2): (1.0, 2.0, 3.0, 4.0)}))
        each.set_namespace("t/split", [WHOLE], [owned(B3)])
        each.set_namespace("t/unknown", ["t/unknown/0x00000000_0xffffffff"], [owned(B2)])
        each.remove_broker(B1.broker)
        each.snapshot(100.0, 50.0)
    compare_checkpoints(model.checkpoint(), copy.checkpoint())
    mine, others = model.snapshot(120.0, 1000.0), copy.snapshot(120.0, 1000.0)
    for name in ("broker", "assigned", "free", "movable", "recently_unloaded", "short", "long", "present", "topics"):
        np.testing.assert_array_equal(getattr(mine.bundles, name), getattr(others.bundles, name))
    assert mine.revision == others.revision


@pytest.mark.parametrize(("field", "row"), [("mean", 0), ("last", 1), ("reported_s", 2), ("sigma", 3)])
def test_different_time_means_are_named(field: str, row: int) -> None:
    checkpoint, other = a_model().checkpoint(), a_model().checkpoint()
    column = getattr(other.time_means, field)
    column.setflags(write=True)
    column[row] += 1
    with pytest.raises(Mismatch) as found:
        compare_checkpoints(checkpoint, other)
    assert found.value.args[:2] == (checkpoint.names[row], field)


def test_set_owners_equals_setting_the_whole_record() -> None:
    whole, alone = a_model(), a_model()
    names = [bundle(number) for number in range(4)]
    whole.set_namespace("tenant/ns", names, [releasing(B1, B3), owned(B3), FREE, FREE])
    alone.set_owners({names[0]: releasing(B1, B3), names[1]: owned(B3), names[3]: FREE})
    compare_checkpoints(whole.checkpoint(), alone.checkpoint())


def test_a_checkpoint_does_not_change_with_the_model() -> None:
    model = a_model()
    checkpoint = model.checkpoint()
    before = through_json(checkpoint)
    model.remove_broker(B1.broker)
    model.remove_namespace("tenant/ns")
    compare_checkpoints(before, checkpoint)


def test_first_difference_between_checkpoints_is_named() -> None:
    model = a_model()
    checkpoint = model.checkpoint()
    model.apply_report(B1, report({bundle(0): LOAD}))
    with pytest.raises(Mismatch) as found:
        compare_checkpoints(checkpoint, model.checkpoint())
    assert found.value.args[:2] == (bundle(0), "short_samples")


def test_restore_needs_an_empty_model() -> None:
    model = a_model()
    with pytest.raises(AssertionError, match="only an empty model"):
        model.restore(model.checkpoint())


def test_faults_and_non_finite_numbers_survive_json() -> None:
    verdict = Verdict(B1.broker, ValidationReason.REPORT_DISTRUSTED, acted=False, why={"fault": "nonsense"})
    sick = Verdict(B2.broker, FilterReason.BROKER_SICK, acted=False, why={"value": "2500 ms"})
    faults = ReportFaults({B1.broker: verdict}, (verdict,), {B2.broker: sick})
    found = faults_of(json.loads(str(encode_json(faults_as_json(faults)))))
    assert faults_as_json(found) == faults_as_json(faults)
    assert found.rejected.keys() == {B1.broker}
    assert found.sick.keys() == {B2.broker}
    before = {name: said for name, said in faults_as_json(faults).items() if name != "sick"}
    assert not faults_of(before).sick, "written by a version without sick brokers"
    assert faults_of(faults_as_json(NO_FAULTS)) is NO_FAULTS
    state = unquoted(json.loads(str(encode_json({"statistics": [float("inf"), 1.5], "name": {"x": "NaN"}}))))
    assert state["statistics"] == [float("inf"), 1.5]
    assert np.isnan(state["name"]["x"])
