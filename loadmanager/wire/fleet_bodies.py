"""Bodies of `/loadbalance/v1/fleet` and of what streams send of it: the cluster as it is shown, once a second.

A node shows what it sees itself; what only the leader knows it has from the leader's `Briefing`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from loadmanager.wire.audit_entry import AuditEntry
from loadmanager.wire.http_bodies import CannotMove, ShownLimit, UnplaceableNamespaces
from loadmanager.wire.plan_bodies import DrainProgress
from loadmanager.wire.validation import WireModel

BrokerState = Literal["active", "excluded", "draining", "held_off", "sick", "broker_stuck", "doubted", "unreadable"]
"""What is to be known of a broker first: what operators told, then what is wrong with it. `broker_stuck`: it serves
nothing of what it owns; `doubted`: its reports are not believed; `unreadable`: nothing that it reported can be read.
"""


_PATTERN = r"^([0-9]{1,15}):([0-9]{1,15}):([0-9]{1,15})$"
_MARK = re.compile(_PATTERN)


class Mark(NamedTuple):
    """How far somebody who follows has come: the place in the journal of the leader of that epoch, and the number of
    entries in its audit.
    """

    epoch: int
    place: int
    operations: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.place}:{self.operations}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """None for what is no mark."""
        found = _MARK.fullmatch(text)
        return None if found is None else cls(*map(int, found.groups()))


MarkText = Annotated[str, Field(pattern=_PATTERN)]


class FleetLeader(WireModel):
    id: str
    url: str
    epoch: int


class FleetBrokers(WireModel):
    """Columns, sorted by `id`, the unreadable ones last. Usage in per cent of the limit, `highest` the highest of it
    with the weights that decisions go by, in and out together messages/s and bytes/s; `bundles` are owned by the
    records. `reported_at` in ms since 1970, null of a broker of which nothing could be read yet.
    """

    id: list[str]
    cpu: list[float]
    memory: list[float]
    direct_memory: list[float]
    bandwidth_in: list[float]
    bandwidth_out: list[float]
    highest: list[float]
    msg_rate: list[float]
    throughput: list[float]
    bundles: list[int]
    state: list[BrokerState]
    reported_at: list[int | None]


class Breaker(WireModel):
    """What the breaker has stopped: all of shedding for so many seconds more, and so many bundles."""

    stopped_s: int
    bundles: int


class Balancing(WireModel):
    """What keeps the balancer from moving bundles: `frozen` says why, and is empty when it is not; `cannot_move` why
    nothing can be moved whatever the load; `limits` what keeps some bundles for a time.
    """

    frozen: str
    dry_run: bool
    breaker: Breaker | None
    cannot_move: list[CannotMove]
    limits: list[ShownLimit]


class MovingBundle(WireModel):
    """A bundle that its owner is asked to let go of, since so many ms since 1970."""

    bundle: str
    source: str | None
    destination: str | None
    reason: str
    since: int


class Unserved(WireModel):
    """Bundles that a broker owns and does not serve: `broker_stuck`."""

    broker: str
    bundles: int
    why: str
    remedy: str


class FleetBody(WireModel):
    """The cluster as it is shown. `is_whole` is whether the leader could be asked for what only it knows: drains, the
    breaker, who is sick or doubted, and the `lower_bound`, the least `highest` that any assignment would have left
    when the last round was decided; that is null until a round has been, and so is `mean` without any broker. At
    most some of the bundles that are `moving` are listed. `faults` by znode. `open_to_anyone`: callers from other
    hosts need no token.
    """

    at: int
    node: str
    leader: FleetLeader | None
    nodes: list[str]
    open_to_anyone: bool
    is_whole: bool
    balancing: Balancing
    drains: list[DrainProgress]
    brokers: FleetBrokers
    mean: float | None
    lower_bound: float | None
    capacity: float
    bundles: int
    unowned: int
    unserved: list[Unserved]
    moving: list[MovingBundle]
    moving_in_all: int
    faults: dict[str, str]
    unplaceable: list[UnplaceableNamespaces]


class MarkedDecision(WireModel):
    mark: MarkText
    decision: dict[str, Any]


class MarkedOperation(WireModel):
    mark: MarkText
    operation: AuditEntry


class Briefing(WireModel):
    """What only the leader knows. `decisions` and `operations` are those after the mark that was asked with, the last
    of them if they are many, each with its own mark; `mark` is what to ask with next.
    """

    mark: MarkText
    breaker: Breaker | None
    cannot_move: list[CannotMove]
    limits: list[ShownLimit]
    drains: list[DrainProgress]
    sick: list[str]
    doubted: list[str]
    lower_bound: float | None
    decisions: list[MarkedDecision]
    operations: list[MarkedOperation]
