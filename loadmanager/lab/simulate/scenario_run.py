"""Run of a scenario with one strategy, and the checks of its bounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmanager.config.dynamic_settings import settings_of, with_overrides
from loadmanager.config.node_settings import Settings
from loadmanager.core.domain.settings import UnknownStrategyError, get_by_name
from loadmanager.core.model.load import BoolArray
from loadmanager.core.planning.certificate.plan_certificate import CertificateFigures, DecidedRound
from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import PAIRED_STRATEGIES, SHEDDING_STRATEGIES
from loadmanager.errors import ScenarioError
from loadmanager.lab.simulate.scenario import BrokerMoves, Expect, Filled, Levelled, Relieved, Said, Scenario
from loadmanager.lab.simulate.sim_result import CompletedMove, Result, mean_known
from loadmanager.lab.simulate.world import Progress
from loadmanager.lab.simulate.world_builder import world_of

if TYPE_CHECKING:
    from loadmanager.history.synthetic_fleet import Series


@dataclass(frozen=True, slots=True)
class BoundCheck:
    """Result of one bound: its key in the file, if it holds, the measured value (None: never reached), and why."""

    key: str
    held: bool
    measured: float | None
    bound: float
    sentence: str


def check(expect: Expect, result: Result) -> tuple[BoundCheck, ...]:
    """Check all given bounds, in the order of the file's keys."""
    found = [*_numbers(expect, result)]
    if expect.quiet_from_s is not None:
        found.append(_quiet(expect.quiet_from_s, result))
    if expect.all_owned_within_s is not None:
        found.append(_all_owned(expect.all_owned_within_s, result))
    if expect.levelled is not None:
        found.append(_check_levelled(expect.levelled, result))
    if expect.relieved is not None:
        found.append(_check_relieved(expect.relieved, result))
    found += [_check_filled(each, result) for each in expect.filled]
    found += [_moves_of("movesTo", each, result, lambda move: str(move.destination)) for each in expect.moves_to]
    found += [_moves_of("movesFrom", each, result, lambda move: str(move.source)) for each in expect.moves_from]
    found += [_check_reason(each, result) for each in expect.said]
    return tuple(found)


def own_moves(result: Result) -> list[CompletedMove]:
    """Return the moves of the balancer, without those for an operator."""
    return [move for move in result.moves if move.is_own]


def mean_imbalance(result: Result, from_s: float = 0.0) -> float:
    """Return the mean over time of the imbalance from `from_s` on; 1 is perfect."""
    return mean_known(result.series.imbalance[result.series.t_s >= from_s])


def _numbers(expect: Expect, result: Result) -> Iterator[BoundCheck]:
    """Check the bounds that are a single number."""
    moves = own_moves(result)
    per_bundle = max(Counter(move.bundle for move in moves).values(), default=0)
    late = result.series.t_s >= expect.settled_after_s
    worst = float(result.series.worst_usage[late].max(initial=0.0))
    share = sum(move.share for move in moves)
    figures: tuple[tuple[str, float, str], ...] = (
        ("moved_again_at_most", result.moved_again, "Moved again within two hours, in shares of all load"),
        ("thrash_at_most", result.thrash, "Returned to former owners within four hours, in shares of all load"),
        ("returns_at_most", result.returns, "Bundles returned to former owners within four hours"),
        ("moves_at_most", len(moves), "Bundles moved"),
        ("moves_at_least", len(moves), "Bundles moved"),
        ("moves_per_bundle_at_most", per_bundle, "Moves of the bundle that moved most"),
        ("moved_share_at_most", share, "Moved, in shares of all load"),
        ("splits_at_most", len(result.splits), "Bundles split"),
        ("splits_at_least", len(result.splits), "Bundles split"),
        ("bundles_at_most", result.bundles, "Bundles at the end"),
        ("imbalance_at_most", mean_imbalance(result, expect.settled_after_s), "Mean imbalance"),
        ("worst_usage_at_most", worst, "Highest usage of a broker"),
        ("unowned_s_at_most", result.unowned_bundle_s, "Seconds without service, added up over bundles"),
    )
    for key, measured, what in figures:
        bound = getattr(expect, key)
        if bound is not None:
            yield _check_bound(key, measured, bound, what)


def _check_bound(key: str, measured: float, bound: float, what: str) -> BoundCheck:
    at_least = key.endswith("at_least")
    held = measured >= bound if at_least else measured <= bound
    words = "at least" if at_least else "at most"
    alias = str(Expect.model_fields[key].alias)
    return BoundCheck(alias, held, measured, bound, f"{what}: {_format(measured)}, expected {words} {_format(bound)}")


def _quiet(from_s: float, result: Result) -> BoundCheck:
    last_s = max((move.at_s for move in own_moves(result)), default=0.0)
    sentence = f"The last bundle moved after {_format(last_s)} s, expected none after {_format(from_s)} s"
    return BoundCheck("quietFromS", last_s <= from_s, last_s, from_s, sentence)


def _all_owned(within_s: float, result: Result) -> BoundCheck:
    """Check the longest period in which any bundle was without service, in steps of the run."""
    longest = run = 0
    for unowned in result.series.unowned.tolist():
        run = run + 1 if unowned else 0
        longest = max(longest, run)
    measured = longest * result.step_s
    sentence = (
        f"Some bundles without service for {_format(measured)} s at a stretch, expected at most {_format(within_s)} s"
    )
    return BoundCheck("allOwnedWithinS", measured <= within_s, measured, within_s, sentence)


def _check_levelled(wanted: Levelled, result: Result) -> BoundCheck:
    holds = result.series.imbalance <= wanted.imbalance
    what = f"imbalance {_format(wanted.imbalance)}"
    return _in_time("levelled", what, wanted, result, holds, new_brokers=wanted.by == "newBrokers")


def _check_relieved(wanted: Relieved, result: Result) -> BoundCheck:
    holds = result.series.worst_usage <= wanted.usage
    return _in_time("relieved", f"every broker at {_format(100 * wanted.usage)} % or less", wanted, result, holds)


def _shown_at(result: Result, after_s: float, *, new_brokers: bool) -> float | None:
    """Return the time at which the leader could know of an event at `after_s`: that of the next reports."""
    if new_brokers:
        return max((each.at_s for each in result.first_reports if each.at_s >= after_s), default=None)
    series = result.series
    later = np.flatnonzero((series.t_s > after_s) & (series.reports > 0))
    return float(series.t_s[later[0]]) if len(later) else None


def _in_time(
    key: str, what: str, wanted: Levelled | Relieved, result: Result, holds: BoolArray, *, new_brokers: bool = False
) -> BoundCheck:
    """Check the time from the reports that show the event until the condition `holds` (T,) for good."""
    within_s = wanted.within_s
    settled_s = result.find_since(wanted.after_s, holds)
    shown_s = _shown_at(result, wanted.after_s, new_brokers=new_brokers)
    if settled_s is None or shown_s is None:
        why = "Never to stay" if settled_s is None else "No report has shown what happened"
        return BoundCheck(key, held=False, measured=None, bound=within_s, sentence=f"{why}: {what}")
    taken_s = max(settled_s - shown_s, 0.0)
    sentence = (
        f"{what[0].upper()}{what[1:]} {_format(taken_s)} s after the reports, expected within {_format(within_s)} s"
    )
    return BoundCheck(key, taken_s <= within_s, taken_s, within_s, sentence)


def _check_filled(wanted: Filled, result: Result) -> BoundCheck:
    """Check the load moved to the broker minus the load moved away, relative to an equal share of all load."""
    first_s = min(
        (e.at_s for e in result.first_reports if e.broker == wanted.broker and e.at_s >= wanted.after_s),
        default=math.inf,
    )
    until_s = first_s + wanted.within_s
    given = [move for move in result.moves if first_s <= move.at_s <= until_s]
    share = sum(move.share * ((move.destination == wanted.broker) - (move.source == wanted.broker)) for move in given)
    measured = share * float(result.series.brokers[-1])
    sentence = (
        f"{wanted.broker} has {_format(measured)} of an equal part {_format(wanted.within_s)} s after its first report,"
        f" expected {_format(wanted.share)}"
    )
    return BoundCheck("filled", measured >= wanted.share, measured, wanted.share, sentence)


def _moves_of(key: str, wanted: BrokerMoves, result: Result, broker_of: Callable[[CompletedMove], str]) -> BoundCheck:
    until_s = math.inf if wanted.until_s is None else wanted.until_s
    count = sum(
        broker_of(move) == wanted.broker and wanted.from_s <= move.at_s <= until_s for move in own_moves(result)
    )
    way = "to" if key == "movesTo" else "from"
    sentence = f"Bundles moved {way} {wanted.broker}: {count}, expected at most {wanted.at_most}"
    return BoundCheck(key, count <= wanted.at_most, count, wanted.at_most, sentence)


def _check_reason(wanted: Said, result: Result) -> BoundCheck:
    count = sum(times for (_, reason, _), times in result.verdicts.items() if reason is wanted.reason)
    too_many = wanted.at_most is not None and count > wanted.at_most
    bound = wanted.at_most if wanted.at_most is not None and (too_many or not wanted.at_least) else wanted.at_least
    words = f"at least {wanted.at_least}" if wanted.at_most is None else f"{wanted.at_least} to {wanted.at_most}"
    sentence = f"Said {wanted.reason.value}: {count} times, expected {words}"
    return BoundCheck("said", not too_many and count >= wanted.at_least, count, bound, sentence)


def _format(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".") if isinstance(number, float) else str(number)


SHEDDING = "loadBalancerLoadSheddingStrategy"
PLACEMENT = "loadBalancerLoadPlacementStrategy"
LOAD_MANAGER = "loadManagerClassName"

_SIMPLE = "SimpleLoadManagerImpl"
_DEFAULTS = {
    SHEDDING: Settings.model_fields["load_balancer_load_shedding_strategy"].default,
    PLACEMENT: Settings.model_fields["load_balancer_load_placement_strategy"].default,
}


SIDE_BY_SIDE = (
    "ThresholdShedder",
    "ThresholdShedder+LeastResourceUsageWithWeight",
    "OverloadShedder",
    "UniformLoadShedder",
    "AvgShedder",
    "TransferShedder",
    "SimpleLoadManagerImpl",
    "Level",
)
"""All shedding strategies, each with the default placement unless it has its own; the first is the default."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Result of a scenario with one strategy (empty: that of its settings), and the checks of its bounds.

    `certified` are the certificates of the shedding rounds that moved something; empty unless requested.
    """

    strategy: str
    result: Result
    checks: tuple[BoundCheck, ...]
    certified: tuple[CertificateFigures, ...] = ()

    @property
    def held(self) -> bool:
        return all(each.held for each in self.checks)


def run(
    scenario: Scenario,
    strategy: str = "",
    overrides: Mapping[str, str] | None = None,
    *,
    recorded: Sequence[Series] = (),
    observe: Callable[[Progress], None] | None = None,
    certify: bool = False,
) -> Run:
    """Run a scenario with this strategy, and with these overrides of its settings.

    `recorded` are the series of its traces; with `certify`, each round that moves something gets a certificate. Raises
    `ScenarioError` or `ConfigurationError`, which name the fault.
    """
    world = world_of(scenario, settings_for(scenario, strategy, overrides or {}), recorded)
    certified: list[CertificateFigures] = []

    def note(decided: DecidedRound) -> None:
        if certify and decided.steps:
            certified.append(decided.certified().figures)

    result = world.run(scenario.duration_s, scenario.step_s, observe, note)
    return Run(strategy, result, check(scenario.expect, result), tuple(certified))


def settings_for(scenario: Scenario, strategy: str, overrides: Mapping[str, str]) -> Settings:
    """Return the settings of a scenario with this strategy, and with the overrides.

    Raises `ScenarioError` or `ConfigurationError`.
    """
    settings = settings_of(with_strategy(scenario.settings, strategy), f"scenario {scenario.name}: settings")
    return with_overrides(settings, overrides, "--set") if overrides else settings


def with_strategy(values: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """Return the keys with this strategy in place of theirs; unchanged if it is empty. Raises `ScenarioError`."""
    found = dict(values)
    for name in filter(None, strategy.split("+")):
        found |= _strategy_keys(name, found)
    return found


def _strategy_keys(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that select this strategy: for shedding, for placement, or for both if it has to be."""
    if name.rpartition(".")[2] == _SIMPLE:
        return {LOAD_MANAGER: _SIMPLE}
    try:
        short, _ = get_by_name("--strategy", name, {**SHEDDING_STRATEGIES, **PLACEMENT_STRATEGIES})
    except UnknownStrategyError as error:
        raise ScenarioError(str(error)) from None
    if short in PAIRED_STRATEGIES:
        return {SHEDDING: short, PLACEMENT: short}
    key, other = (SHEDDING, PLACEMENT) if short in SHEDDING_STRATEGIES else (PLACEMENT, SHEDDING)
    if values.get(other) in PAIRED_STRATEGIES:
        return {key: short, other: _DEFAULTS[other]}
    return {key: short}
