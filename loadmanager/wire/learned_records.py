"""Learned loads in `/loadbalance/learned`, in our own JSON; also a part of a dump.

Decisions use the loads, and the profiles of namespaces whose forecast `proved` itself: see `core.model.learned_loads`.
Other profiles are only for display.
"""

from __future__ import annotations

from typing import Annotated, NotRequired

import numpy as np
from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from loadmanager.core.model.learned_loads import NOTHING_LEARNED, PROFILE_HOURS, LearnedLoads
from loadmanager.core.model.load import METRICS, read_only
from loadmanager.wire.validation import MAX_COUNT, STRICT, Amount, Milliseconds, Namespace, parse_json

_MOST_CHARACTERS = 1_000


@with_config(STRICT)
class NamespaceLearned(TypedDict):
    """Load of one bundle, learned from this number of `bundles`. `profile` is the expected load in each hour of the
    week, as a part of the mean; `proved`: the back-test preferred it to the last value.
    """

    msgRateIn: Amount
    msgRateOut: Amount
    msgThroughputIn: Amount
    msgThroughputOut: Amount
    bundles: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    profile: NotRequired[Annotated[list[Amount], Field(min_length=PROFILE_HOURS, max_length=PROFILE_HOURS)]]
    proved: NotRequired[bool]


@with_config(STRICT)
class LearnedData(TypedDict):
    """Learned loads with their origin: a `run` of the pipeline over a range of a history. Times in ms since 1970."""

    run: Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]
    publishedAt: Milliseconds
    history: Annotated[str, Field(max_length=_MOST_CHARACTERS)]
    rangeFrom: Milliseconds
    rangeTo: Milliseconds
    namespaces: dict[Namespace, NamespaceLearned]


LEARNED_DATA = TypeAdapter(LearnedData)
_NOTHING = b"{}"


def decode_learned(data: bytes, where: str) -> LearnedData | None:
    """Decode a znode, None for an empty object; raises `InvalidRecordError`, which names `where` and the faulty
    field.
    """
    return None if data.strip() == _NOTHING else parse_json(LEARNED_DATA, data, where)


def encode_learned(data: LearnedData | None) -> bytes:
    return _NOTHING if data is None else LEARNED_DATA.dump_json(data)


def without_unproved_profiles(data: LearnedData) -> LearnedData:
    """Return the learned loads without profiles that no decision uses."""
    namespaces = {name: each.copy() for name, each in data["namespaces"].items()}
    for each in namespaces.values():
        if not each.get("proved"):
            each.pop("profile", None)
    return {**data, "namespaces": namespaces}


def learned_of(data: LearnedData | None) -> LearnedLoads:
    if data is None:
        return NOTHING_LEARNED
    loads, profiles = {}, {}
    for name, each in data["namespaces"].items():
        load = [each["msgRateIn"], each["msgRateOut"], each["msgThroughputIn"], each["msgThroughputOut"]]
        loads[name] = read_only(np.array(load, float), METRICS)
        if each.get("proved") and "profile" in each:
            profiles[name] = read_only(np.array(each["profile"], float), PROFILE_HOURS)
    return LearnedLoads(loads, data["run"], data["publishedAt"], profiles)
