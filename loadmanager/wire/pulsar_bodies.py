"""Bodies of `/loadbalance/v1/pulsar`: status of a process beside a Pulsar."""

from __future__ import annotations

from typing import Literal

from loadmanager.wire.validation import WireModel


class PulsarServiceStatus(WireModel):
    """State of a process that observes or balances a Pulsar.

    `acting` is whether the next round would move what it plans; each of `obstacles` says why not. `misses` counts moves
    that landed on another broker than asked, `failures` moves that failed in succession; `stopped` says that those were
    too many, and that an operator has to say go on. `unserved` are bundles with clients that nobody has owned for a
    minute, at most 20 of them. Ages are in seconds.
    """

    mode: Literal["observe", "act"]
    cluster: str
    leading: bool
    acting: bool
    obstacles: list[str]
    stopped: bool
    failures: int
    misses: int
    brokers: int
    bundles: int
    pulsars_leader: str | None
    pulsar_sheds: bool
    oldest_report_s: float | None
    unserved: list[str]
    faults: dict[str, str]
