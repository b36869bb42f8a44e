"""Timing and limits of a simulation, besides the planner's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

_MAY_BE_ZERO = frozenset(
    {
        "grace_period_s",
        "report_check_s",
        "report_threshold_percent",
        "report_delay_s",
        "unload_s",
        "lookup_s",
        "first_round_s",
        "backlog_most_s",
        "reconnect_cpu_s",
    }
)


@dataclass(frozen=True, slots=True)
class WorldRules:
    """Intervals, delays and limits; the defaults are those of the leader and of agents, if these have one.

    Shedding rounds come every `shedding_interval_s`. The first comes at `first_round_s` if that is given. Otherwise it
    comes one interval after the election of the leader, which is half an interval after the start, so that rounds do
    not coincide with measurements. A broker measures every `stats_interval_s`, with a phase of its own as far as the
    steps allow. It checks within `report_check_s` if its report is due, and the leader reads it `report_delay_s` later.
    An unload interrupts a bundle for `unload_s`, and clients look a free bundle up again after `lookup_s`. A crashed
    broker stays registered for `session_timeout_s`; an unload that it does not answer fails after `unload_deadline_s`.

    After an interruption clients send their backlog: at most the load of `backlog_most_s` (the default timeout of
    Pulsar's clients), at up to `catch_up_factor` times the load of the bundle, limited by the broker's free capacity.
    Each reconnection costs the broker `reconnect_cpu_s` seconds of one core: a lookup, which takes a quarter of a
    millisecond on a real Pulsar, and the opening of a producer or consumer.

    With `reports_at_most_limit` an overloaded broker reports a usage of at most 100 %, as a host does. With
    `host_usage_lags` a report has the usage of the previous measurement, as if the host were measured separately.
    Raises `ValueError` for a number that is negative, not finite, or 0 where 0 makes no sense.
    """

    shedding_interval_s: float = 60.0
    first_round_s: float | None = None
    grace_period_s: float = 1800.0
    split_interval_s: float = 60.0
    unload_split_bundles: bool = True
    max_concurrent_unloads: int = 16
    max_concurrent_unloads_per_broker: int = 8
    stats_interval_s: float = 60.0
    report_check_s: float = 5.0
    report_max_interval_s: float = 900.0
    report_threshold_percent: float = 10.0
    report_delay_s: float = 0.5
    reports_at_most_limit: bool = True
    host_usage_lags: bool = False
    unload_s: float = 2.0
    unload_deadline_s: float = 60.0
    lookup_s: float = 0.5
    session_timeout_s: float = 10.0
    backlog_most_s: float = 30.0
    catch_up_factor: float = 2.0
    reconnect_cpu_s: float = 0.001

    def get_first_round_s(self) -> float:
        """Return the time of the first round of shedding."""
        return 1.5 * self.shedding_interval_s if self.first_round_s is None else self.first_round_s

    def __post_init__(self) -> None:
        for rule in fields(self):
            value: Any = getattr(self, rule.name)
            if value is None:
                continue
            least_is_zero = rule.name in _MAY_BE_ZERO or isinstance(value, bool)
            if not math.isfinite(value) or value < 0 or (value == 0 and not least_is_zero):
                raise ValueError(
                    f"{rule.name}: expected a number {'from 0 on' if least_is_zero else 'above 0'}, got {value}"
                )
        if not self.catch_up_factor > 1:
            raise ValueError(f"catch_up_factor: expected a number above 1, got {self.catch_up_factor}")
