"""Cost of the search for bundles to split, by the number of bundles, and of each algorithm for a bundle of many topics.

Every hundredth bundle is above a limit. For the extensible rule all bundles belong to one broker, and the number of
splits per cycle is not limited. The baseline is a bare comparison of the same figures with the limits. For an algorithm
the baseline is sorting the hashes of the topics.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
from bench_core import BUNDLES_PER_NAMESPACE, best_s, namespace_bundles
from rich.console import Console
from rich.table import Table

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import HASH_SPACE_END, BundleRange, namespace_of
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.strategies.splitting import MIB, SPLIT_ALGORITHMS
from loadmanager.core.strategies.splitting.split_finder import (
    SplitCandidate,
    find_for_extensible,
    find_for_modular,
)

SIZES = (10_000, 100_000, 1_000_000)
ONE_IN_HOT = 100
TOPICS = 10_000
REPEATS = 3
SETTINGS = PlannerSettings(
    namespace_bundle_split_condition_hit_count_threshold=0, max_number_of_bundles_to_split_per_cycle=SIZES[-1]
)


def some_candidates(bundles: int, rng: np.random.Generator) -> list[SplitCandidate]:
    rates = rng.uniform(0, 10_000, bundles)
    rates[::ONE_IN_HOT] += SETTINGS.namespace_bundle_max_msg_rate
    throughputs = rng.uniform(0, 50 * MIB, bundles).tolist()
    names = [
        name
        for number in range(bundles // BUNDLES_PER_NAMESPACE)
        for name in namespace_bundles(f"tenant/ns-{number:05d}", BUNDLES_PER_NAMESPACE)
    ]
    return [
        SplitCandidate(name, BundleRange.parse(name.rpartition("/")[2]), 10, 20, rate, throughput)
        for name, rate, throughput in zip(names, rates.tolist(), throughputs, strict=True)
    ]


def halve(_name: str, own: BundleRange) -> list[int] | None:
    return SPLIT_ALGORITHMS["range_equally_divide"](own, [], [], SETTINGS)


def compare(candidates: list[SplitCandidate]) -> int:
    """Count the bundles above a limit by bare comparisons."""
    rate, throughput = SETTINGS.namespace_bundle_max_msg_rate, SETTINGS.namespace_bundle_max_bandwidth_mbytes * MIB
    topics, sessions = SETTINGS.namespace_bundle_max_topics, SETTINGS.namespace_bundle_max_sessions
    return sum(
        each.topics > topics or each.sessions > sessions or each.msg_rate > rate or each.throughput > throughput
        for each in candidates
    )


def show_finders(rng: np.random.Generator) -> None:
    table = Table(title="Finding bundles to split", title_justify="left", title_style="bold", min_width=98)
    for heading in ("bundles", "splits", "modular", "extensible", "a bundle", "comparing alone", "of it", "grows"):
        table.add_column(heading, justify="right", no_wrap=True)
    first_s = 0.0
    for size in SIZES:
        candidates = some_candidates(size, rng)
        counts = Counter(namespace_of(each.name) for each in candidates)
        modular_s = best_s(partial(find_for_modular, candidates, counts, halve, SETTINGS), REPEATS)
        extensible_s = best_s(partial(find_for_extensible, candidates, {}, counts, halve, SETTINGS), REPEATS)
        splits = len(find_for_modular(candidates, counts, halve, SETTINGS).splits)
        bare_s = best_s(partial(compare, candidates), REPEATS)
        first_s = first_s or modular_s
        table.add_row(
            f"{size:,}",
            f"{splits:,}",
            f"{modular_s * 1e3:,.1f} ms",
            f"{extensible_s * 1e3:,.1f} ms",
            f"{modular_s / size * 1e6:.2f} us",
            f"{bare_s * 1e3:,.1f} ms",
            f"{modular_s / bare_s:.1f} x",
            f"{modular_s / first_s:,.1f} x",
        )
    Console(width=120).print(table)
    print()


def show_algorithms(rng: np.random.Generator) -> None:
    own = BundleRange(0, HASH_SPACE_END)
    hashes = rng.integers(0, HASH_SPACE_END, TOPICS).tolist()
    rates = rng.uniform(0, 100, TOPICS).tolist()
    topics = [TopicLoad(topic_hash, rate, rate * 1000) for topic_hash, rate in zip(hashes, rates, strict=True)]
    positions = rng.integers(0, HASH_SPACE_END, TOPICS).tolist()
    sorting_s = best_s(lambda: sorted(hashes), REPEATS)
    table = Table(title=f"A bundle of {TOPICS:,} topics", title_justify="left", title_style="bold", min_width=80)
    for heading, justify in (("", "left"), ("parts", "right"), ("measured", "right"), ("of sorting", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left", no_wrap=True)
    for name, algorithm in SPLIT_ALGORITHMS.items():
        given = positions if name == "specified_positions_divide" else []
        ask = partial(algorithm, own, topics, given, SETTINGS)
        elapsed_s = best_s(ask, REPEATS)
        table.add_row(name, f"{len(ask() or ()) + 1:,}", f"{elapsed_s * 1e3:.3f} ms", f"{elapsed_s / sorting_s:.2f} x")
    Console(width=100).print(table)
    print(f"sorting alone: {sorting_s * 1e3:.3f} ms\n")


def main() -> None:
    rng = np.random.default_rng(1)
    show_finders(rng)
    show_algorithms(rng)


if __name__ == "__main__":
    main()
