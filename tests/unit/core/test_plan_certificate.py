from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.allocated_arrays import held_arrays
from support.builders import MIB, broker, bundle, report, snapshot, throughput
from support.random_clusters import Build, SomeCluster, clusters

from loadmanager.core.domain.controls import Controls, DrainOrder
from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.domain.policies import IsolationPolicy, Policies
from loadmanager.core.domain.reasons import CertificateReason, OwnershipReason
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.load import BrokerReport
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem, build_problem
from loadmanager.core.planning.certificate.bounds import Heaviest, Pigeonhole, Prices, Volume
from loadmanager.core.planning.certificate.plan_certificate import (
    CertificateSummary,
    DecidedRound,
    certify,
    describe,
    highest_of,
    noise_floor,
    sum_certificates,
)
from loadmanager.core.planning.headroom import Reserve
from loadmanager.core.planning.movable_bundles import restrain
from loadmanager.core.planning.plan_effect import owners_after
from loadmanager.core.planning.planner import plan_drain, plan_shedding
from loadmanager.core.strategies.level.level_load import LevelLoads

SETTINGS = PlannerSettings(shedding_strategy="Level", placement_strategy="Level")
GBIT = 1000.0 * 1000.0
"""In kbit/s."""


def carrying(host: str, sizes: list[float], *, capacity: float = GBIT) -> BrokerReport:
    """A broker by the sizes of its bundles in MiB/s, in and out, and its network capacity in kbit/s."""
    used = sum(sizes) * MIB * 8 / 1000
    loads = {bundle(i, f"tenant/{host}"): throughput(size) for i, size in enumerate(sizes)}
    return report(loads, bandwidth_in=(used, capacity), bandwidth_out=(used, capacity))


def cluster(**brokers: BrokerReport) -> Snapshot:
    return snapshot(brokers)


def move(index: int, source: str, destination: str | None) -> Unload:
    name, to = bundle(index, f"tenant/{source}"), None if destination is None else broker(destination)
    return Unload(name, broker(source), to, OwnershipReason.ADMIN_UNLOAD)


def certified(given: Snapshot, *steps: Unload | Assign, emptied: tuple[str, ...] = ()) -> CertificateSummary:
    return certify(given, SETTINGS, steps, emptied)


def uneven() -> Snapshot:
    """Three bundles of 8 MiB/s on a: the level is 8."""
    return cluster(a=carrying("a", [8.0, 8.0, 8.0]), b=carrying("b", []), c=carrying("c", []))


def test_optimal_plan_has_no_gaps() -> None:
    done = certified(uneven(), move(0, "a", "b"), move(1, "a", "c"))
    figures = done.figures
    assert figures.heat_before == pytest.approx(3.0)
    assert (figures.heat_after, figures.bound, figures.bound_in_budget) == pytest.approx((1.0, 1.0, 1.0))
    assert (figures.load_moved, figures.least_load) == pytest.approx((2 / 3, 2 / 3))
    assert figures.bundles_moved == figures.least_bundles == 2
    assert figures.gap == pytest.approx(1.0)
    assert figures.load_gap == pytest.approx(1.0)


def test_wasteful_plan_has_gaps() -> None:
    wasted = certified(uneven(), move(0, "a", "b"), move(1, "a", "b"))
    assert wasted.figures.gap == pytest.approx(2.0)
    assert wasted.figures.bound_in_budget == pytest.approx(1.0)
    assert wasted.figures.load_gap == pytest.approx(2.0)


def test_bound_in_budget_depends_on_the_moved_load() -> None:
    little = certified(uneven(), move(0, "a", "b"))
    assert little.figures.bound == pytest.approx(1.0)
    assert little.figures.bound_in_budget == pytest.approx(2.0, rel=1e-5)


def test_harmful_plan_has_no_load_gap() -> None:
    given = cluster(a=carrying("a", [8.0]), b=carrying("b", [8.0]))
    worse = certified(given, move(0, "a", "b"))
    assert worse.figures.least_load == 0
    assert worse.figures.load_gap is None


def test_empty_plan_has_a_load_gap_of_1() -> None:
    idle = certified(uneven())
    assert idle.figures.load_gap == 1.0
    assert idle.verdict.verdict is CertificateReason.NOTHING_MOVES


def test_an_empty_cluster_has_no_bound() -> None:
    empty = certified(cluster(a=carrying("a", []), b=carrying("b", [])))
    assert empty.figures.bound == 0
    assert empty.figures.gap == 1.0
    assert empty.bound_by == ""
    assert "nobody owns anything" in empty.verdict.sentence()


@pytest.mark.parametrize("hosts", ["", "a"])
def test_cluster_without_remaining_brokers_has_figures(hosts: str) -> None:
    given_cluster = cluster(**{host: carrying(host, [8.0]) for host in hosts})
    draining = Controls(draining={broker(host).broker: DrainOrder(1.0) for host in hosts})
    steps = [move(0, host, "b") for host in hosts]
    nobody = DecidedRound(replace(given_cluster, controls=draining, _derived={}), SETTINGS, steps)
    figures = nobody.certified().figures
    assert (figures.heat_after, figures.bound, figures.noise_floor, figures.gap) == (0, 0, 0, 1)
    assert nobody.reserve() == Reserve(None, None)


def test_sentence_of_a_certificate_names_the_bound() -> None:
    given = cluster(a=carrying("a", [9.0, 1.0]), b=carrying("b", []), c=carrying("c", [2.0]))
    done = certified(given, move(1, "a", "b"))
    assert done.bound_by == "heaviest"
    sentence = done.verdict.sentence()
    assert sentence.startswith("Heat 2.5 -> 2.25; best possible 2.25")
    assert f"bundle {bundle(0, 'tenant/a')} alone" in sentence
    assert "8.33 % of all load moves, at least 8.33 % must" in sentence


def test_each_kind_of_bound_is_described() -> None:
    bundles, resources = ["large"], ["CPU"]
    for bound, text in (
        (Volume(1.0, 0, 3, of_all=True), "CPU of all bundles, over 3 brokers"),
        (Volume(1.0, 0, 2, of_all=False), "CPU of bundles that only these may own, over 2 brokers"),
        (Heaviest(1.0, 0), "bundle large alone, where it uses least"),
        (Pigeonhole(1.0, 0, 2, 2), "CPU: of the 5 largest bundles 3 share a broker"),
        (Prices(1.0), "prices of resources, as brokers are not alike"),
    ):
        assert describe(bound, bundles, resources) == text


# Eligible owners


def of_two_policies() -> Snapshot:
    """The namespace of broker a belongs on a and b, the other ones anywhere else."""
    policy = IsolationPolicy("p", ("tenant/a",), ("a", "b"), ())
    given = cluster(a=carrying("a", [8.0, 8.0]), b=carrying("b", []), c=carrying("c", [4.0]), d=carrying("d", [4.0]))
    return replace(given, policies=Policies(isolation=(policy,)), _derived={})


def allowed(given: Snapshot, name: str, *steps: Unload, emptied: tuple[str, ...] = ()) -> list[str]:
    """The hosts of the brokers that may own the bundle."""
    problem = build_problem(given, SETTINGS, LevelLoads.of(given, SETTINGS), owners_after(given, steps), emptied)
    may_own = problem.may_own[problem.classes[given.bundles.names.index(name)]]
    return [each.split(":")[0] for each, may in zip(given.brokers.ids, may_own, strict=True) if may]


def test_isolation_policies_limit_eligible_owners() -> None:
    given = of_two_policies()
    assert allowed(given, bundle(0, "tenant/a")) == ["a", "b"]
    assert allowed(given, bundle(0, "tenant/c")) == ["c", "d"]
    assert certified(given).figures.bound == pytest.approx(8 / 6)


def test_current_owner_stays_eligible() -> None:
    given = replace(of_two_policies(), controls=Controls(excluded=frozenset({broker("a").broker})), _derived={})
    assert allowed(given, bundle(0, "tenant/a")) == ["a", "b"]
    assert allowed(given, bundle(0, "tenant/c")) == ["c", "d"]


def test_drained_broker_is_eligible_only_without_another() -> None:
    given = of_two_policies()
    moves, emptied = (move(0, "a", "b"), move(1, "a", "b")), (broker("a").broker,)
    drained = certified(given, *moves, emptied=emptied)
    assert allowed(given, bundle(0, "tenant/a"), *moves, emptied=emptied) == ["b"]
    assert drained.figures.bundles_moved == drained.figures.least_bundles == 2
    assert drained.figures.load_gap == pytest.approx(1.0)
    assert drained.figures.bound == pytest.approx(16 / 6)
    nobody_else = replace(given, controls=Controls(excluded=frozenset({broker("b").broker})), _derived={})
    assert allowed(nobody_else, bundle(0, "tenant/a"), emptied=emptied) == ["a"]


def test_pins_and_freezes_limit_eligible_owners() -> None:
    pinned = {
        bundle(0, "tenant/a"): broker("a").broker,
        bundle(1, "tenant/a"): broker("b").broker,
        bundle(2, "tenant/a"): broker("gone").broker,
        bundle(9, "tenant/a"): broker("a").broker,
    }
    given = cluster(a=carrying("a", [8.0, 4.0, 2.0, 1.0]), b=carrying("b", []), c=carrying("c", []))
    controls = Controls(pinned=pinned, frozen_bundles={bundle(3, "tenant/a"): "why"})
    told = replace(given, controls=controls, _derived={})
    assert allowed(told, bundle(0, "tenant/a")) == ["a"]
    assert allowed(told, bundle(1, "tenant/a")) == ["a", "b"]
    assert allowed(told, bundle(2, "tenant/a")) == ["a"]
    assert allowed(told, bundle(3, "tenant/a")) == ["a"]
    assert allowed(told, bundle(0, "tenant/a"), move(0, "a", "b"), emptied=(broker("a").broker,)) == ["b", "c"]


def test_destinations_of_the_plan_are_eligible() -> None:
    assert allowed(of_two_policies(), bundle(0, "tenant/a"), move(0, "a", "c")) == ["a", "b", "c"]
    assert certified(of_two_policies(), move(0, "a", "c")).figures.gap >= 1


def test_restrained_brokers_do_not_count() -> None:
    given = replace(uneven(), controls=Controls(draining={broker("a").broker: DrainOrder(1.0)}), _derived={})
    done = certified(restrain(given), Assign(bundle(9), broker("b"), OwnershipReason.ADMIN_UNLOAD), move(0, "a", None))
    assert done.figures.heat_before == done.figures.heat_after == 0
    assert done.figures.bundles_moved == 0


def test_certificate_of_a_round_is_cached() -> None:
    given_round = DecidedRound(uneven(), SETTINGS, [move(0, "a", "b")])
    assert given_round.certified() is given_round.certified()
    assert given_round.certified().figures.heat_after == pytest.approx(2.0)
    assert given_round.reserve() is given_round.reserve()


def test_certified_round_keeps_no_arrays() -> None:
    given_large = cluster(**{name: carrying(name, [1.0] * 100) for name in "abcd"})
    given_round = DecidedRound(given_large, SETTINGS, [])
    with held_arrays() as held:
        given_round.certified()
        given_round.reserve()
        assert held() < 2 * len(given_large.bundles)


@given(
    some=clusters(), strategy=st.sampled_from(["Level", "ThresholdShedder", "OverloadShedder"]), drains=st.booleans()
)
def test_no_plan_is_better_than_its_bounds(some: SomeCluster, strategy: str, *, drains: bool) -> None:
    given_cluster = Build().snapshot(some)
    placement = "Level" if strategy == "Level" else SETTINGS.placement_strategy
    by = replace(SETTINGS, shedding_strategy=strategy, placement_strategy=placement)
    rng, emptied = np.random.default_rng(0), given_cluster.brokers.ids[:1] if drains else ()
    if drains:
        plan, _ = plan_drain(given_cluster, emptied, by, {}, rng)
    else:
        plan, _ = plan_shedding(given_cluster, by, {}, rng)
    figures = certify(given_cluster, by, plan.steps, emptied).figures
    assert figures.bound <= figures.bound_in_budget <= figures.heat_after
    assert figures.least_load <= figures.load_moved
    assert figures.least_bundles <= figures.bundles_moved <= len(plan.steps)
    assert all(np.isfinite(value) and value >= 0 for value in astuple(figures))
    losses = astuple(DecidedRound(given_cluster, by, plan.steps).reserve())
    assert all(loss is None or 0 <= loss[1] <= loss[2] < np.inf for loss in losses)


def test_certificates_of_rounds_are_summed() -> None:
    done, idle = certified(uneven(), move(0, "a", "b")).figures, replace(certified(uneven()).figures, bound_in_budget=0)
    sums = sum_certificates([done, idle])
    assert sums["rounds"] == 2
    assert sums["gapMean"] == pytest.approx(2.5)
    assert sums["gapInBudgetMean"] == pytest.approx(1.0, rel=1e-5)
    assert (sums["loadMoved"], sums["leastLoad"]) == pytest.approx((1 / 3, 1 / 3))
    assert sum_certificates([idle])["gapInBudgetMean"] == 1.0


# Noise


def instance(owner: list[int], brokers: int) -> BalancingProblem:
    count = len(owner)
    need, per_need = np.ones((count, 1)), np.ones((brokers, 1))
    everybody = np.ones((1, brokers), dtype=bool)
    return BalancingProblem(
        need, per_need, np.array(owner), np.zeros(count, dtype=int), everybody, np.ones(count) / count
    )


def test_noise_floor_equals_simulated_maximum() -> None:
    many = instance([k % 50 for k in range(5000)], 50)
    seen = np.random.default_rng(1).normal(1, 0.2, (300, 50, 100)).sum(axis=2).max(axis=1).mean() / 100
    assert noise_floor(many, np.full(5000, 0.2)) == pytest.approx(seen, rel=0.002)
    assert noise_floor(many, np.zeros(5000)) == pytest.approx(1.0)


def test_unowned_bundles_make_no_noise() -> None:
    assert noise_floor(instance([0, 1, -1], 2), np.array([0.0, 0.0, 9.0])) == pytest.approx(1.0)
    assert noise_floor(instance([-1], 2), np.array([9.0])) == 0.0


@given(deviations=st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_expected_maximum_grows_with_the_number_of_brokers(deviations: list[float]) -> None:
    some, all_of_them = highest_of(np.array(deviations[1:])), highest_of(np.array(deviations))
    largest = max(deviations)
    assert 0 <= some <= all_of_them + 0.05 * largest
    assert all_of_them <= largest * np.sqrt(2 * np.log(max(len(deviations), 2))) + 1e-9


def test_heat_accounts_for_broker_capacity() -> None:
    given = cluster(a=carrying("a", [8.0]), b=carrying("b", [4.0, 4.0], capacity=2 * GBIT))
    assert certified(given).figures.heat_before == pytest.approx(1.5)
