"""Settings and failure domains of the cluster at the end of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.config.dynamic_settings import settings_of
from loadmanager.config.node_settings import Settings
from loadmanager.config.overrides import settings_recorded
from loadmanager.history.gaps import IMPORTED
from loadmanager.history.table_schemas import EVENTS
from loadmanager.pipeline.history_tables import HistoryTables
from loadmanager.wire.policy_records import decode_domains

_CHECKPOINT, _CONFIGURATION, _POLICIES = "checkpoint", "configuration", "policies"
_HOURS_FIRST, _TIMES_MORE = 24, 4


@dataclass(frozen=True, slots=True)
class Recorded:
    """`domains` is the failure domain of each broker that is in one. Without a leader in the range: the defaults."""

    settings: Settings = field(default_factory=lambda: settings_of({}, "defaults"))
    domains: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The settings that are not as by default, by key."""
        changed = self.settings.model_dump(exclude_defaults=True)
        return {Settings.key(name): value for name, value in changed.items()}

    @property
    def overloaded(self) -> float:
        """The usage above which a broker counts as overloaded."""
        return self.settings.planner_settings().broker_overloaded_threshold_percentage / 100


def newest_recorded(history: HistoryTables) -> Recorded:
    """Read the newest hours of events, as many as it takes to have a checkpoint, which has all settings."""
    hours = sorted({file.hour_ms for file in history.files(EVENTS)}, reverse=True)
    count = _HOURS_FIRST
    while count < len(hours):
        told = _told(history, hours[:count])
        if any(kind == _CHECKPOINT for kind, _ in told):
            return _recorded_in(told)
        count *= _TIMES_MORE
    return _recorded_in(_told(history, hours))


_Told = Sequence[tuple[str, str]]
"""The kind and the body of events, in their order."""


def _told(history: HistoryTables, hours: Sequence[int]) -> _Told:
    """Those events of these hours that say what holds."""
    batches = history.scan(EVENTS, ("kind", "body", "epoch"), set(hours))
    wanted = pa.array([_CHECKPOINT, _CONFIGURATION, _POLICIES])
    rows = (batch.filter(pc.is_in(batch["kind"].cast(pa.string()), wanted)).to_pylist() for batch in batches)
    return [(row["kind"], row["body"]) for row in chain.from_iterable(rows) if row["epoch"] > IMPORTED]


def _recorded_in(told: _Told) -> Recorded:
    settings = _last(told, _CONFIGURATION, "settings")
    policies = _last(told, _POLICIES, "policies")
    domains = decode_domains(orjson.dumps(policies.get("failureDomains", {})), "the recorded failure domains")
    return Recorded(
        settings_recorded(settings),
        {broker: name for name, domain in domains.items() for broker in domain.get("brokers", ())},
    )


def _last(told: _Told, wanted: str, part: str) -> Mapping[str, Any]:
    """The body of the last event of the kind; or that part of a checkpoint, if one came later."""
    for kind, body in reversed(told):
        if kind in (wanted, _CHECKPOINT):
            said: Mapping[str, Any] = orjson.loads(body)
            return said[part] if kind == _CHECKPOINT else said
    return {}
