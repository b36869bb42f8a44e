"""Checks of a scenario's expectations against its result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from loadmanager.lab.simulate.scenario import BrokerMoves, Expect, Filled, Levelled, Relieved, Said
from loadmanager.lab.simulate.sim_result import CompletedMove, Result, mean_known


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
    shown_s = _shown_at(result, wanted.after_s, new_brokers=wanted.by == "newBrokers")
    settled_s = result.find_settled(wanted.after_s, wanted.imbalance)
    return _in_time("levelled", f"imbalance {_format(wanted.imbalance)}", shown_s, settled_s, wanted.within_s)


def _check_relieved(wanted: Relieved, result: Result) -> BoundCheck:
    shown_s = _shown_at(result, wanted.after_s, new_brokers=False)
    settled_s = result.find_relieved(wanted.after_s, wanted.usage)
    what = f"every broker at {_format(100 * wanted.usage)} % or less"
    return _in_time("relieved", what, shown_s, settled_s, wanted.within_s)


def _shown_at(result: Result, after_s: float, *, new_brokers: bool) -> float | None:
    """Return the time at which the leader could know of an event at `after_s`: that of the next reports."""
    if new_brokers:
        return max((each.at_s for each in result.first_reports if each.at_s >= after_s), default=None)
    series = result.series
    later = np.flatnonzero((series.t_s > after_s) & (series.reports > 0))
    return float(series.t_s[later[0]]) if len(later) else None


def _in_time(key: str, what: str, shown_s: float | None, settled_s: float | None, within_s: float) -> BoundCheck:
    if settled_s is None:
        return BoundCheck(key, held=False, measured=None, bound=within_s, sentence=f"Never to stay: {what}")
    if shown_s is None:
        return BoundCheck(
            key, held=False, measured=None, bound=within_s, sentence=f"No report has shown what happened: {what}"
        )
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
