"""What the history says of the cluster besides its load: the settings and the failure domains that held last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.config import Settings, settings_of
from loadmanager.history.gaps import IMPORTED
from loadmanager.history.schemas import EVENTS
from loadmanager.overrides import settings_recorded
from loadmanager.pipeline.reading import HistoryTables
from loadmanager.wire.policies import decode_domains

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
    """From as many of the newest hours of events as have a checkpoint, which says all that held by then."""
    hours = sorted({file.hour_ms for file, _ in history.files(EVENTS)}, reverse=True)
    count = _HOURS_FIRST
    while count < len(hours):
        events = history.frame(EVENTS, hours=set(hours[:count]))
        if not events.where((f.col("kind") == _CHECKPOINT) & (f.col("epoch") > IMPORTED)).isEmpty():
            return _recorded_in(events)
        count *= _TIMES_MORE
    return _recorded_in(history.frame(EVENTS))


def _recorded_in(events: DataFrame) -> Recorded:
    """From the history's `events`."""
    settings = _last(events, _CONFIGURATION, "settings")
    policies = _last(events, _POLICIES, "policies")
    domains = decode_domains(orjson.dumps(policies.get("failureDomains", {})), "the recorded failure domains")
    return Recorded(
        settings_recorded(settings),
        {broker: name for name, domain in domains.items() for broker in domain.get("brokers", ())},
    )


def _last(events: DataFrame, kind: str, part: str) -> Mapping[str, Any]:
    """The body of the last event of the kind; or that part of a checkpoint, if one came later."""
    wanted = events.where(f.col("kind").isin(kind, _CHECKPOINT) & (f.col("epoch") > IMPORTED))
    row = wanted.orderBy(f.desc("epoch"), f.desc("sequence")).select("kind", "body").first()
    if row is None:
        return {}
    body = orjson.loads(row["body"])
    found: Mapping[str, Any] = body[part] if row["kind"] == _CHECKPOINT else body
    return found
