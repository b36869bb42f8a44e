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
    """Intervals, delays and limits; the defaults are those of a leader and of agents, where they have one.

    Rounds of shedding come every `shedding_interval_s`. The first comes so long after the leader was elected, which is
    half an interval after the beginning, and so not always just before brokers measure or just after; or
    `first_round_s` after the beginning, if that is given. A broker measures every `stats_interval_s`, at a moment of
    its own as far as the steps of the run allow, looks within `report_check_s` whether its report is due, and the
    leader knows it `report_delay_s` later. Nobody serves a bundle during its unload, `unload_s`, and clients look a
    free one up again after `lookup_s`. A broker that crashed is registered for `session_timeout_s` more; an unload that
    it does not answer is given up after `unload_deadline_s`.

    What clients of a bundle would have sent while nobody served it they send afterwards, as much as comes in
    `backlog_most_s` (for so long a client of Pulsar tries by default), at up to `catch_up_factor` times the load of the
    bundle: as far as its broker has room for it. Each of them that connects to a broker again costs that
    `reconnect_cpu_s` seconds of one core: a lookup, a quarter of a millisecond on a real Pulsar, and the opening of a
    producer or a consumer.

    With `reports_at_most_limit` a broker that is asked for more than it has reports that it uses all of it, as a host
    does. With `host_usage_lags` a report has the usage of the time before that the broker measured, as where a host is
    looked at by itself. Raises `ValueError` for a number that is negative, not finite, or 0 where that means nothing.
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
