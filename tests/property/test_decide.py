from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.builders import bundle
from support.deep import at_most

from loadmanager.core.strategies.placement import PLACEMENT_STRATEGIES
from loadmanager.core.strategies.shedding import SHEDDING_STRATEGIES
from loadmanager.lab.decide.dump_decision import DecidedLine, Decider, PlaceDecider, ShedDecider
from loadmanager.wire.dump_line import DumpLine, decode_line, encode

NEW = bundle(99)
BROKERS = ("a:1", "b:1", "c:1")
BUNDLES = (*(bundle(i) for i in range(5)), "tenant/cluster/ns/0x00000000_0xffffffff")

amounts = st.sampled_from([0.0, 1.0, 1e4, 3e8, 1.7e308, math.nan, math.inf])
usages = st.fixed_dictionaries(
    {
        "usage": st.sampled_from([-1.0, 0.0, 30.0, 90.0, 1e300, math.nan, math.inf]),
        "limit": st.sampled_from([-1.0, 0.0, 100.0, math.nan]),
    }
)
rates = dict.fromkeys(("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut"), amounts)
stats = st.fixed_dictionaries(
    {}, optional={**rates, "topics": st.sampled_from([0, 5, 2**31, 2**62]), "cacheSize": st.just(2**62)}
)
names = st.lists(st.sampled_from(BUNDLES), unique=True, max_size=4)
resources = dict.fromkeys(("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"), usages)
brokers = st.fixed_dictionaries(
    {},
    optional={
        **resources,
        **rates,
        "bundles": names,
        "lastStats": st.dictionaries(st.sampled_from(BUNDLES), stats, max_size=4),
        "numBundles": st.integers(0, 9),
        "lastUpdate": st.integers(0, 9),
        "startTimestamp": st.integers(0, 1),
    },
)
history = st.fixed_dictionaries({}, optional={"shortTermData": st.fixed_dictionaries({}, optional=rates)})
tops = st.lists(
    st.fixed_dictionaries({"bundle": st.sampled_from(BUNDLES), "stats": stats}),
    unique_by=lambda each: str(each["bundle"]),
    max_size=3,
)
moments = st.integers(0, 3_000_000)
ids = st.sampled_from(BROKERS)
lines = st.fixed_dictionaries(
    {},
    optional={
        "takenAt": moments,
        "brokers": st.dictionaries(ids, brokers),
        "bundleData": st.dictionaries(st.sampled_from(BUNDLES), history),
        "timeAverages": st.dictionaries(ids, st.fixed_dictionaries({}, optional={"longTermMsgRateIn": amounts})),
        "preallocated": st.dictionaries(ids, st.just([NEW]), max_size=1),
        "recentlyUnloaded": st.fixed_dictionaries(
            {}, optional={"bundles": st.dictionaries(st.sampled_from(BUNDLES), moments)}
        ),
        "brokerLoad": st.dictionaries(
            ids, st.fixed_dictionaries({}, optional={"weightedMaxEMA": amounts, "msgThroughputEMA": amounts})
        ),
        "topBundles": st.dictionaries(ids, tops),
        "configuration": st.just({"loadBalancerSheddingConditionHitCountThreshold": "0", "maxUnloadPercentage": "0.5"}),
    },
)


def deciders() -> list[Decider]:
    placing: list[Decider] = [PlaceDecider(each, NEW, {}, np.random.default_rng(1)) for each in PLACEMENT_STRATEGIES]
    return [*placing, *(ShedDecider(each, {}) for each in SHEDDING_STRATEGIES)]


def check(decided: DecidedLine, line: dict[str, Any]) -> None:
    registered = line.get("brokers", {})
    for decision in decided.decisions:
        assert decision["destination"] is None or decision["destination"] in registered
        assert decision.get("source", "a:1") in registered or "source" not in decision
        assert decision["bundle"] in (*BUNDLES, NEW)
    moved = [decision["bundle"] for decision in decided.decisions]
    assert len(set(moved)) == len(moved)


@at_most(50)
@given(st.lists(lines, min_size=1, max_size=3))
def test_every_strategy_decides_and_its_state_is_json(given_lines: list[dict[str, Any]]) -> None:
    for decider in deciders():
        for line in given_lines:
            read: DumpLine = decode_line(encode(line), "line")
            decided = decider.decide(read, "line")
            check(decided, line)
            text = encode(decided.to_record())
            again = decode_line(encode({"state": json.loads(text)["state"]}), "state")
            assert again["state"] is not None
