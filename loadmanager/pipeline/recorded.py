"""Settings and failure domains of the cluster at the end of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.config.dynamic_settings import settings_of, settings_recorded
from loadmanager.config.node_settings import Settings
from loadmanager.history.gaps import IMPORTED
from loadmanager.history.table_schemas import EVENTS
from loadmanager.pipeline.history_tables import HistoryTables
from loadmanager.wire.policy_records import decode_domains

_CHECKPOINT, _CONFIGURATION, _POLICIES = "checkpoint", "configuration", "policies"
_HOURS_FIRST, _TIMES_MORE = 24, 4


@dataclass(frozen=True, slots=True)
class Recorded:
    """Settings, and the failure domain of each broker that has one. Defaults if the range has no checkpoint."""

    settings: Settings = field(default_factory=lambda: settings_of({}, "defaults"))
    domains: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """The settings that differ from their defaults, by key."""
        changed = self.settings.model_dump(exclude_defaults=True)
        return {Settings.key(name): value for name, value in changed.items()}

    @property
    def overloaded(self) -> float:
        """The usage above which a broker counts as overloaded."""
        return self.settings.planner_settings().broker_overloaded_threshold_percentage / 100


def newest_recorded(history: HistoryTables) -> Recorded:
    """Read hours of events, newest first, until one contains a checkpoint: a checkpoint has all settings."""
    hours = sorted({file.hour_ms for file in history.files(EVENTS)}, reverse=True)
    count = _HOURS_FIRST
    while count < len(hours):
        events = _read_events(history, hours[:count])
        if any(kind == _CHECKPOINT for kind, _ in events):
            return _recorded_in(events)
        count *= _TIMES_MORE
    return _recorded_in(_read_events(history, hours))


_Events = Sequence[tuple[str, str]]
"""Kinds and bodies of events, in order."""


def _read_events(history: HistoryTables, hours: Sequence[int]) -> _Events:
    """Return the events of these hours that contain settings or policies."""
    batches = history.scan(EVENTS, ("kind", "body", "epoch"), set(hours))
    wanted = pa.array([_CHECKPOINT, _CONFIGURATION, _POLICIES])
    rows = (batch.filter(pc.is_in(batch["kind"].cast(pa.string()), wanted)).to_pylist() for batch in batches)
    return [(row["kind"], row["body"]) for row in chain.from_iterable(rows) if row["epoch"] > IMPORTED]


def _recorded_in(events: _Events) -> Recorded:
    settings = _last(events, _CONFIGURATION, "settings")
    policies = _last(events, _POLICIES, "policies")
    domains = decode_domains(orjson.dumps(policies.get("failureDomains", {})), "the recorded failure domains")
    return Recorded(
        settings_recorded(settings),
        {broker: name for name, domain in domains.items() for broker in domain.get("brokers", ())},
    )


def _last(events: _Events, wanted: str, part: str) -> Mapping[str, Any]:
    """Return the body of the last event of the kind, or that part of a checkpoint that came later."""
    for kind, body in reversed(events):
        if kind in (wanted, _CHECKPOINT):
            content: Mapping[str, Any] = orjson.loads(body)
            return content[part] if kind == _CHECKPOINT else content
    return {}
