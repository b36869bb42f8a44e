from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.builders import MIB, Load, broker, owned, releasing, report

from loadmanager.core.domain.bundles import NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import NamespaceName
from loadmanager.core.domain.ownership import NamespaceState, Ownership
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.strategies.splitting.split_round import ScannedReport, find_candidates

A, B = broker("a"), broker("b")
MODULAR = PlannerSettings()
EXTENSIBLE = PlannerSettings(load_manager_class_name="ExtensibleLoadManagerImpl")
CALM, FAST, WIDE = (1.0,) * 4, (20_000.0, 10_001.0, 1.0, 1.0), (1.0, 1.0, 60.0 * MIB, 41.0 * MIB)


def a_namespace(owners: Sequence[Ownership]) -> NamespaceState:
    state = NamespaceState.unowned(NamespaceName("t", "ns"), NamespaceBundles(equal_boundaries(4)))
    return replace(state, ownerships=tuple(owners))


STATE = a_namespace([owned(A)] * 4)
NAMES = STATE.bundle_names()


def found(
    reported: BrokerReport,
    settings: PlannerSettings = MODULAR,
    state: NamespaceState = STATE,
    before: dict[str, int] | None = None,
) -> ScannedReport:
    """Split candidates of a report of broker A, the first one."""
    model = ClusterModel()
    model.set_namespace("t/ns", NAMES, state.ownerships)
    model.apply_report(A, reported)
    remembered: dict[str, object] = {A.broker: [A.incarnation, before or {}]}
    looked_at, other = find_candidates(
        [(A, reported), (B, report({}))], {"t/ns": state}, model.snapshot(0.0, 0.0), settings, remembered
    )
    assert (other.registration, other.candidates, other.bundles) == (B, (), 0)
    return looked_at


@pytest.mark.parametrize("settings", [MODULAR, EXTENSIBLE])
@pytest.mark.parametrize(("load", "is_hot"), [(CALM, False), (FAST, True), (WIDE, True)])
def test_bundle_with_rates_above_a_limit_is_a_candidate(settings: PlannerSettings, load: Load, *, is_hot: bool) -> None:
    looked_at = found(report({NAMES[0]: CALM, NAMES[1]: load}), settings)
    assert looked_at.bundles == 2
    assert [(each.name, each.msg_rate, each.throughput) for each in looked_at.candidates] == (
        [(NAMES[1], load[0] + load[1], load[2] + load[3])] if is_hot else []
    )


@pytest.mark.parametrize(
    ("most", "sessions", "is_hot"), [(10, 11, True), (10, 10, False), (0, 10_000, False), (-1, 10_000, False)]
)
def test_session_limit_makes_a_candidate(most: int, sessions: int, *, is_hot: bool) -> None:
    reported = replace(report([NAMES[0]]), bundle_sessions=np.array([sessions]))
    looked_at = found(reported, replace(MODULAR, namespace_bundle_max_sessions=most))
    assert [each.sessions for each in looked_at.candidates] == ([sessions] if is_hot else [])


def test_candidates_are_sorted_by_name() -> None:
    looked_at = found(report([NAMES[2], NAMES[0], NAMES[1]], topics_per_bundle=1_001))
    assert [each.name for each in looked_at.candidates] == NAMES[:3]
    assert [each.topics for each in looked_at.candidates] == [1_001] * 3
    assert [each.name for each in looked_at.without({NAMES[1]}).candidates] == [NAMES[0], NAMES[2]]


def test_bundle_with_hits_stays_a_candidate() -> None:
    looked_at = found(report(NAMES), EXTENSIBLE, before={NAMES[3]: 2})
    assert [each.name for each in looked_at.candidates] == [NAMES[3]]


def test_candidate_reported_by_another_broker_is_not_owned() -> None:
    looked_at = found(report({NAMES[0]: FAST}), state=a_namespace([owned(B), *[owned(A)] * 3]))
    assert [(each.name, each.is_owned) for each in looked_at.candidates] == [(NAMES[0], False)]
    looked_at = found(report({NAMES[0]: FAST}), state=a_namespace([releasing(A), *[owned(A)] * 3]))
    assert [each.is_owned for each in looked_at.candidates] == [False]


def test_unknown_bundle_is_no_candidate() -> None:
    gone, elsewhere = "t/ns/0x00000000_0xffffffff", "t/other/0x00000000_0xffffffff"
    looked_at = found(report([gone, elsewhere], topics_per_bundle=1_001))
    assert (looked_at.candidates, looked_at.bundles) == ((), 2)
