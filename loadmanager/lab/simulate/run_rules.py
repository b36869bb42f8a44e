"""Timing and limits of a simulation, besides the planner's settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from loadmanager.lab.simulate.scenario import CatchUpFactor, Duration, Factor, Seconds

_Moves = Annotated[int, Field(ge=1)]


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
    Raises `ValueError` for a number that is not allowed in a scenario file.
    """

    shedding_interval_s: Duration = 60.0
    first_round_s: Seconds | None = None
    grace_period_s: Seconds = 1800.0
    split_interval_s: Duration = 60.0
    unload_split_bundles: bool = True
    max_concurrent_unloads: _Moves = 16
    max_concurrent_unloads_per_broker: _Moves = 8
    stats_interval_s: Duration = 60.0
    report_check_s: Seconds = 5.0
    report_max_interval_s: Duration = 900.0
    report_threshold_percent: Factor = 10.0
    report_delay_s: Seconds = 0.5
    reports_at_most_limit: bool = True
    host_usage_lags: bool = False
    unload_s: Seconds = 2.0
    unload_deadline_s: Duration = 60.0
    lookup_s: Seconds = 0.5
    session_timeout_s: Duration = 10.0
    backlog_most_s: Seconds = 30.0
    catch_up_factor: CatchUpFactor = 2.0
    reconnect_cpu_s: Seconds = 0.001

    def get_first_round_s(self) -> float:
        """Return the time of the first round of shedding."""
        return 1.5 * self.shedding_interval_s if self.first_round_s is None else self.first_round_s
