"""Timing and limits of a simulation, besides the planner's settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from loadmanager.lab.simulate.scenario_fields import Duration, Factor, Part, Seconds

_Moves = Annotated[int, Field(ge=1)]


class Rules(Part):
    """Timing of the simulated fleet, besides the settings.

    A broker measures with a phase of its own as far as the steps allow. The default backlog is the timeout of Pulsar's
    clients. A reconnection costs a lookup (a quarter of a millisecond on a real Pulsar) and the opening of a producer
    or consumer.
    """

    first_round_s: Seconds | None = Field(
        None, description="Time of the first shedding round; by default one and a half intervals."
    )
    stats_interval_s: Duration = Field(60.0, description="Measuring interval of brokers (statsUpdateFrequencyInSecs).")
    report_check_s: Seconds = Field(5.0, description="Maximum delay until a broker checks if a report is due.")
    report_max_interval_s: Duration = Field(900.0, description="Maximum interval between reports.")
    report_threshold_percent: Factor = Field(10.0, description="Change that makes a report due.")
    report_delay_s: Seconds = Field(0.5, description="Delay until the leader reads a report.")
    reports_at_most_limit: bool = Field(default=True, description="Brokers report a usage of at most 100 %.")
    unload_s: Seconds = Field(2.0, description="Interruption of a moving bundle.")
    unload_deadline_s: Duration = Field(60.0, description="Timeout of an unload without an answer.")
    lookup_s: Seconds = Field(0.5, description="Delay until clients look a free bundle up again.")
    session_timeout_s: Duration = Field(10.0, description="Delay until a crashed broker's registration ends.")
    backlog_most_s: Seconds = Field(30.0, description="Maximum backlog of clients, in seconds of load.")
    catch_up_factor: float = Field(
        2.0,
        gt=1,
        le=1000,
        allow_inf_nan=False,
        description="Maximum factor of a bundle's load while clients send their backlog.",
    )
    reconnect_cpu_s: Seconds = Field(0.001, description="CPU time of one core per reconnecting client.")


class WorldRules(Rules):
    """Rules of a world: those of a scenario, and those that a node has settings for, with the defaults of leader and
    agents.

    The leader is elected half an interval after the start, so that rounds do not coincide with measurements. With
    `host_usage_lags` a report has the usage of the previous measurement, as if the host were measured separately.
    Raises `ValueError` for a number that is not allowed in a scenario file.
    """

    shedding_interval_s: Duration = 60.0
    grace_period_s: Seconds = 1800.0
    split_interval_s: Duration = 60.0
    unload_split_bundles: bool = True
    max_concurrent_unloads: _Moves = 16
    max_concurrent_unloads_per_broker: _Moves = 8
    host_usage_lags: bool = False

    def get_first_round_s(self) -> float:
        """Return the time of the first round of shedding."""
        return 1.5 * self.shedding_interval_s if self.first_round_s is None else self.first_round_s
