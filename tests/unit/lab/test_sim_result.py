from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.worlds import world

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import ChurnReason, OwnershipReason
from loadmanager.core.planning.repeated_moves import NEVER
from loadmanager.lab.simulate.sim_result import CompletedMove, Result


def _result(imbalance: list[float], bound: list[float], usage: list[float]) -> Result:
    result = world([1.0] * 3).run(60.0 * len(imbalance))
    series = replace(
        result.series, imbalance=np.array(imbalance), lower_bound=np.array(bound), worst_usage=np.array(usage)
    )
    return replace(result, series=series)


def _move(share: float, *, is_own: bool = True, moved_s: float = NEVER, left_s: float = NEVER) -> CompletedMove:
    source, destination = BrokerId("a:1"), BrokerId("b:1")
    bundle, reason = "t/n/0x00000000_0xffffffff", OwnershipReason.DRAIN
    return CompletedMove(20_000.0, bundle, source, destination, reason, share, 5.0, 7, is_own, moved_s, left_s)


def test_time_above_counts_only_avoidable_imbalance() -> None:
    result = _result([1.5, 1.5, 1.1, 1.0], [1.0, 1.5, np.nan, 1.0], [0.9, 0.5, 0.95, 0.1])
    assert result.time_above(1.2) == 60.0
    assert result.time_above(1.05) == 120.0
    assert result.time_overloaded(0.85) == 120.0
    assert result.worst_usage == 0.95


def test_settled_state_lasts_to_the_end() -> None:
    result = _result([1.0, 2.0, 1.1, 1.0], [1.0] * 4, [0.5, 0.9, 0.9, 0.5])
    assert result.find_since(0.0, result.series.imbalance <= 1.2) == 120.0
    assert result.find_since(150.0, result.series.imbalance <= 1.2) == 180.0
    assert result.find_since(0.0, result.series.worst_usage <= 0.8) == 180.0
    assert result.find_since(0.0, result.series.imbalance <= 0.5) is None
    assert result.find_since(1000.0, result.series.imbalance <= 1.2) is None


def test_thrash_is_load_moved_back_by_the_balancer_within_four_hours() -> None:
    moves = (
        _move(0.1, left_s=20_000.0 - 4 * 3600),
        _move(0.2, left_s=20_001.0 - 4 * 3600),
        _move(0.4, left_s=19_000.0, is_own=False),
    )
    result = replace(world([1.0] * 3).run(60.0), moves=moves)
    assert (result.returns, result.thrash, result.clients_disturbed) == (1, 0.2, 21)
    assert result.moved_share == sum((0.1, 0.2, 0.4))


def test_moved_again_is_load_moved_by_the_balancer_within_two_hours() -> None:
    moves = (
        _move(0.1, moved_s=20_000.0 - 2 * 3600),
        _move(0.2, moved_s=20_001.0 - 2 * 3600),
        _move(0.4, moved_s=19_000.0, is_own=False),
    )
    assert replace(world([1.0] * 3).run(60.0), moves=moves).moved_again == 0.2


def test_digest_changes_with_the_last_bit_of_any_number() -> None:
    result = world([1.0] * 3).run(120.0)
    load = result.series.load.copy()
    load[1] = np.nextafter(load[1], np.inf)
    others = [
        replace(result, series=replace(result.series, load=load)),
        replace(result, moves=(_move(0.1),)),
        replace(result, unowned_bundle_s=np.nextafter(0.0, 1.0)),
        replace(result, verdicts={**result.verdicts, ("shed", ChurnReason.NO_RETURN, False): 1}),
    ]
    assert len({each.digest() for each in (result, *others)}) == 5
    assert replace(result).digest() == result.digest()
