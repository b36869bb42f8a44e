"""Bodies of `/loadbalance/v1/beside`: status of a process beside a Pulsar."""

from __future__ import annotations

from typing import Literal

from loadmanager.wire.validation import WireModel


class BesideStatus(WireModel):
    """Status; `acting`: the next round would move its steps; `obstacles` say why not, each in a sentence.

    `failures` counts the moves that failed in succession; `stopped` says that they were too many, and that an operator
    has to say go on. `pulsars_leader` is the broker that leads Pulsar's own balancing. Ages are in seconds.
    """

    mode: Literal["shadow", "act"]
    cluster: str
    leading: bool
    acting: bool
    obstacles: list[str]
    stopped: bool
    failures: int
    brokers: int
    bundles: int
    pulsars_leader: str | None
    pulsar_sheds: bool
    oldest_report_s: float | None
    faults: dict[str, str]
