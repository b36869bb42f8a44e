from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.builders import Load, broker, bundle, owned, report

from loadmanager.core.domain.ownership import FREE, Registration
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BrokerReport

A, B, C = broker("a"), broker("b"), broker("c")
X, Y, Z = bundle(1), bundle(2), bundle(3)
NS = "tenant/ns"
WHOLE, LOW, HIGH = (
    f"t/n/{ends}" for ends in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
)
Figures = dict[str, tuple[int, int, list[float]]]


def figures_of(model: ClusterModel, registration: Registration) -> Figures:
    """By bundle its topics, its sessions and its load."""
    report = model.latest_reports()[registration]
    columns = (each.tolist() for each in (report.bundle_topics, report.bundle_sessions, report.bundle_load))
    return dict(zip(report.bundle_names, zip(*columns, strict=True), strict=True))


def with_sessions(given_report: BrokerReport, *sessions: int) -> BrokerReport:
    return replace(given_report, bundle_sessions=np.array(sessions))


def test_latest_report_has_topics_sessions_and_load_of_each_bundle() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [X, Y, Z], [owned(A), owned(A), owned(B)])
    model.apply_report(B, report([Z]))
    model.apply_report(A, with_sessions(report({Y: (1, 2, 30, 40), X: (5, 0, 0, 7)}, topics_per_bundle=3), 11, 12))
    assert list(model.latest_reports()) == [A, B]
    assert figures_of(model, A) == {Y: (3, 11, [1, 2, 30, 40]), X: (3, 12, [5, 0, 0, 7])}
    assert list(figures_of(model, A)) == [Y, X]
    assert figures_of(model, B) == {Z: (1, 0, [0, 0, 0, 0])}


def test_sessions_are_found_by_bundle_name() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [X, Y, Z], [FREE] * 3)
    model.apply_report(A, with_sessions(report([Y, X]), 20, 10))
    assert model.latest_reports()[A].clients() == {X: 10, Y: 20}


def test_report_replaces_the_one_before() -> None:
    model = ClusterModel()
    model.set_namespace(NS, [X, Y], [owned(A), owned(A)])
    model.apply_report(A, report([X, Y]))
    model.apply_report(A, report({Y: (7, 0, 0, 0)}))
    assert figures_of(model, A) == {Y: (1, 0, [7, 0, 0, 0])}
    again = broker("a", incarnation=2)
    model.apply_report(again, report())
    assert not model.latest_reports()[again].bundle_names
    model.remove_broker(A.broker)
    assert model.latest_reports() == {}


def test_returned_report_does_not_change() -> None:
    model = ClusterModel()
    model.apply_report(A, report({X: (1, 0, 0, 0), Y: (2, 0, 0, 0)}))
    latest = model.latest_reports()[A]
    model.apply_report(A, report({Z: (9, 0, 0, 0)}))
    model.apply_report(B, report({bundle(0): (8, 0, 0, 0)}))
    assert (latest.bundle_names, latest.bundle_load[:, 0].tolist()) == ((X, Y), [1, 2])


def test_latest_report_follows_a_change_of_bundles() -> None:
    model = ClusterModel()
    model.set_namespace("t/n", [LOW, HIGH], [owned(A), owned(A)])
    model.apply_report(A, with_sessions(report([LOW, HIGH, WHOLE]), 1, 2, 4))
    assert figures_of(model, A).keys() == {LOW, HIGH}
    model.set_namespace("t/n", [WHOLE], [owned(A)])
    assert figures_of(model, A) == {WHOLE: (1, 4, [0, 0, 0, 0])}


def test_reused_row_does_not_appear_in_an_older_report() -> None:
    model = ClusterModel()
    model.apply_report(A, report({X: (500, 0, 0, 0)}))
    model.apply_report(B, report([X]))
    model.apply_report(B, report())
    model.apply_report(C, report({Y: (1, 0, 0, 0)}))
    assert figures_of(model, A) == {}
    assert figures_of(model, C) == {Y: (1, 0, [1, 0, 0, 0])}
    assert [each.rows.tolist() for each in model.checkpoint().brokers] == [[], [], [0]]


def test_restored_model_has_no_bundle_figures_until_the_next_report() -> None:
    model, restored = ClusterModel(), ClusterModel()
    model.apply_report(A, report([X]))
    restored.restore(model.checkpoint())
    assert figures_of(restored, A) == {}
    restored.apply_report(A, report([X]))
    assert figures_of(restored, A).keys() == {X}


def test_restored_model_waits_for_a_whole_report_when_a_record_adds_bundles() -> None:
    model, restored = ClusterModel(), ClusterModel()
    model.set_namespace("t/n", [WHOLE], [owned(A)])
    model.apply_report(A, report([X, LOW]))
    restored.restore(model.checkpoint())
    restored.set_namespace("t/n", [LOW, HIGH], [owned(A), owned(A)])
    assert figures_of(restored, A) == {}
    restored.set_namespace("t/n", [WHOLE], [owned(A)])
    assert [restored.checkpoint().names[at] for at in restored.checkpoint().brokers[0].rows] == [X]


NAMES = (WHOLE, LOW, HIGH, X, Y)
SHAPES = {"t/n": ((), (WHOLE,), (LOW, HIGH)), NS: ((), (X,), (Y,), (X, Y))}
loads = st.tuples(*[st.integers(0, 1000).map(float)] * 4)
changes = st.one_of(
    st.tuples(st.sampled_from((A, B, C)), st.dictionaries(st.sampled_from(NAMES), loads)),
    st.sampled_from([(namespace, shape) for namespace, shapes in SHAPES.items() for shape in shapes]),
    st.sampled_from((A, B)),
)


@given(st.lists(changes, max_size=12), st.data())
def test_figures_are_those_of_the_last_report_in_any_order(
    inputs: list[tuple[Registration, dict[str, Load]] | tuple[str, tuple[str, ...]] | Registration], data: st.DataObject
) -> None:
    model = ClusterModel()
    last: dict[Registration, dict[str, Load]] = {}
    for each in inputs:
        if isinstance(each, Registration):
            last.pop(each, None)
            model.remove_broker(each.broker)
        elif isinstance(each[0], Registration):
            last[each[0]] = dict(each[1])
            model.apply_report(each[0], report(last[each[0]]))
        else:
            owners = [data.draw(st.sampled_from((FREE, owned(A), owned(B)))) for _ in each[1]]
            model.set_namespace(each[0], list(each[1]), owners)
    reports = model.latest_reports()
    assert list(reports) == sorted(last, key=lambda registration: registration.broker)
    bundles = model.snapshot(0.0, 0.0).bundles
    for position, registration in enumerate(reports):
        figures = figures_of(model, registration)
        assert all(load == list(last[registration][name]) for name, (_, _, load) in figures.items())
        assert figures.keys() <= set(bundles.names)
        kept = {name for name, holder in zip(bundles.names, bundles.broker.tolist(), strict=True) if holder == position}
        assert kept <= figures.keys()
