"""TransferShedder and lists of busiest bundles compared with a literal transcription of Pulsar's rules."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.builders import broker, bundle, report
from support.transcription_transfer import Decision, Load, Rule, Shedder, Stats, Store, top_bundles

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.policies import Policies
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.extensible_load import Published, PublishedLoad, find_busiest
from loadmanager.core.model.snapshot import Snapshot, build_snapshot
from loadmanager.core.strategies.shedding.shedding_strategy import Shed, State
from loadmanager.core.strategies.shedding.transfer_shedder import TransferShedder

NOW_MS = 10_000_000
CYCLES = 25
SEEDS = st.integers(0, 2**32 - 1)


def random_store(rng: np.random.Generator) -> Store:
    """Return a few brokers with often equal figures, some missing, outdated, or from just after an unload."""
    ids = [f"broker{i}:8080" for i in range(int(rng.integers(1, 8)))]
    store = Store(NOW_MS, ids, {}, {}, {})
    trouble = rng.random() < 0.3
    for number, name in enumerate(ids):
        if trouble and rng.random() < 0.1:
            continue
        names = [bundle(i, f"tenant/ns{number}") for i in range(int(rng.integers(0, 7)))]
        carried = rng.choice([0.0, 1e6, 2e6, 3e6, 5e6], len(names)) + rng.choice([0.0, rng.uniform(0, 3e6)])
        total = float(carried.sum()) + float(rng.choice([0.0, 1.0, 1e6]))
        ema = float(rng.choice([0, 5, 10, 30, 48, 60, 90, 100, int(rng.integers(0, 130))])) / 100
        updated_at = NOW_MS - int(rng.choice([0, 60_000, 1_800_000, 1_800_001] if trouble else [0, 60_000]))
        store.loads[name] = Load(ema, float(rng.choice([total, 0.0, 1e5])), total, updated_at)
        if rng.random() < 0.95:
            store.top[name] = sorted(zip(names, carried.tolist(), strict=True), key=lambda each: each[1])
        for each in names:
            store.owner[each] = name if rng.random() < 0.9 else ids[int(rng.integers(len(ids)))]
            store.recent |= {each} if rng.random() < 0.1 else set()
        if trouble and rng.random() < 0.2:
            store.unloaded_from[name] = NOW_MS - int(rng.choice([60_000, 180_000, 239_999, 240_000]))
    return store


def snapshot_of(store: Store) -> Snapshot:
    reports = {
        broker(name): report([each for each, owner in store.owner.items() if owner == name], num_bundles=9)
        for name in store.available
    }
    published = Published(
        {
            BrokerId(name): PublishedLoad(load.ema, load.throughput_ema, 0.0, load.throughput, load.updated_at)
            for name, load in store.loads.items()
        },
        {
            BrokerId(name): {each: np.array([0.0, 0.0, carried, 0.0]) for each, carried in listed}
            for name, listed in store.top.items()
        },
        {BrokerId(name): at_ms / 1000 for name, at_ms in store.unloaded_from.items()},
    )
    return build_snapshot(store.now / 1000, reports, {}, frozenset(store.recent), published=published)


def random_rule(rng: np.random.Generator) -> Rule:
    return Rule(
        target=float(rng.choice([0.0, 0.1, 0.25, 2.0])),
        hit_threshold=int(rng.choice([0, 0, 1])),
        transfer=bool(rng.random() < 0.8),
        per_cycle=int(rng.choice([0, 1, 3, 10])),
        overloaded=int(rng.choice([50, 85])),
        excluded=frozenset({"tenant/ns1"} if rng.random() < 0.2 else ()),
    )


def settings_of(rule: Rule) -> PlannerSettings:
    return PlannerSettings(
        broker_load_target_std=rule.target,
        shedding_condition_hit_count_threshold=rule.hit_threshold,
        transfer_enabled=rule.transfer,
        max_number_of_broker_shedding_per_cycle=rule.per_cycle,
        broker_overloaded_threshold_percentage=rule.overloaded,
        shedding_excluded_namespaces=rule.excluded,
    )


def decisions(snapshot: Snapshot, shed: Shed) -> set[Decision]:
    ids, names = snapshot.brokers.ids, snapshot.bundles.names
    return {
        (ids[pick.broker], names[row], None if pick.destination is None else ids[pick.destination], pick.reason.value)
        for pick in shed.bundles
        for row in pick.bundles
    }


def skipped(shed: Shed, before: State) -> str:
    """Return the reason under which an idle cycle was counted."""
    counters = before.get("counters", {})
    labels = [name for name, value in shed.state["counters"].items() if value != counters.get(name, 0)]
    return "" if shed.bundles else labels[0].removeprefix("Skip/")


def run(seed: int) -> Counter[str]:
    """Compare consecutive cycles of changing clusters; return the count of each outcome."""
    rng = np.random.default_rng(seed)
    rule = random_rule(rng)
    fast, slow = TransferShedder(settings_of(rule)), Shedder(rule)
    state: State = {}
    seen: Counter[str] = Counter()
    for _ in range(CYCLES):
        store = random_store(rng)
        snapshot = snapshot_of(store)
        shed = fast.find_bundles_for_unloading(snapshot, state)
        found = decisions(snapshot, shed)
        assert found == slow.find(store)
        assert skipped(shed, state) == slow.outcome
        assert shed.state["hits"] == slow.hits
        if shed.bundles:
            np.testing.assert_equal(shed.metrics["stdAfter"], slow.std)
        state = json.loads(json.dumps(shed.state))
        seen[slow.outcome or "moved"] += 1
        seen["exchanged"] += len({destination for _, _, destination, _ in found} & {source for source, *_ in found}) > 0
        seen |= Counter({reason: 1 for *_, reason in found})
    return seen


@given(seed=SEEDS)
def test_transfers_equal_pulsars_over_cycles(seed: int) -> None:
    run(seed)


def test_random_clusters_cover_every_outcome() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += run(seed)
    outcomes = {"moved", "HitCount", "NoBundles", "CoolDown", "OutDatedData", "NoLoadData", "NoBrokers"}
    assert seen.keys() == outcomes | {"exchanged", "overloaded", "underloaded"}


@given(seed=SEEDS)
def test_pulsars_debug_mode_matters_only_for_exchanges(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CYCLES):
        store, rule = random_store(rng), replace(random_rule(rng), hit_threshold=0)
        with_debug, without = Shedder(rule), Shedder(replace(rule, debug=False))
        found = with_debug.find(store)
        sources = {source for source, *_ in found}
        if not sources & {destination for _, _, destination, _ in found}:
            assert without.find(store) == found


@given(seed=SEEDS)
def test_busiest_bundles_equal_pulsars_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(CYCLES):
        stats: dict[str, Stats] = {}
        for number in rng.permutation(int(rng.integers(0, 30))).tolist():
            name = bundle(number, str(rng.choice(["tenant/a", "tenant/b", "pulsar/system"])))
            in_out = rng.choice([0.0, 1e5, 1.49e5, 1.51e5, rng.uniform(0, 1e6)], 2)
            rates = rng.choice([0.0, 40.0, 60.0, 1e3], 2)
            count, cache = int(rng.choice([0, 499, 500])), int(rng.choice([0, 99_999, 100_000]))
            stats[name] = (float(rates[0]), float(rates[1]), float(in_out[0]), float(in_out[1]), count, cache)
        most = int(rng.integers(-1, 12))
        given_report = replace(
            report({name: (a, b, c, d) for name, (a, b, c, d, _, _) in stats.items()}),
            bundle_topics=np.array([each[4] for each in stats.values()], dtype=np.int64),
            bundle_cache_bytes=np.array([each[5] for each in stats.values()], dtype=np.int64),
        )
        found = find_busiest(
            given_report,
            PlannerSettings(max_number_of_bundles_in_bundle_load_report=most),
            Policies(anti_affinity_groups={"tenant/b": "group"}),
        )
        names = [given_report.bundle_names[i] for i in found.tolist()]
        assert names == top_bundles(stats, most, unlisted={"tenant/b"})
