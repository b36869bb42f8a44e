"""Bodies of `/loadbalance/v1/fleet` and of its streams: the fleet status, once a second.

A node shows its own mirror, and the leader's `Briefing` for what only the leader knows.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from loadmanager.wire.http_bodies import CannotMove, ShownLimit, UnplaceableNamespaces
from loadmanager.wire.lineage_bodies import AuditEntry
from loadmanager.wire.plan_bodies import DrainProgress
from loadmanager.wire.validation import WireModel

BrokerState = Literal["active", "excluded", "draining", "held_off", "sick", "broker_stuck", "rejected", "unreadable"]
"""State of a broker, the most urgent one: operator controls first, then faults. `broker_stuck`: it serves none of its
bundles; `rejected`: its reports are rejected; `unreadable`: its report cannot be read."""


_PATTERN = r"^([0-9]{1,15}):([0-9]{1,15}):([0-9]{1,15})$"
_MARK = re.compile(_PATTERN)


class Mark(NamedTuple):
    """Position of a follower: place in the decision log of that epoch's leader, and number of its audit entries."""

    epoch: int
    place: int
    operations: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.place}:{self.operations}"

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """Parse a mark; None for an invalid one."""
        found = _MARK.fullmatch(text)
        return None if found is None else cls(*map(int, found.groups()))


MarkText = Annotated[str, Field(pattern=_PATTERN)]


class FleetLeader(WireModel):
    id: str
    url: str
    epoch: int


class FleetBrokers(WireModel):
    """Columns, sorted by `id`, unreadable brokers last. Usage is in per cent of the limit, null without a limit;
    `highest` is the weighted maximum that decisions use. Messages/s and bytes/s are sums of in and out. `bundles`
    counts owned bundles by the records. `reported_at` is in ms since 1970, null without a readable report.
    """

    id: list[str]
    cpu: list[float | None]
    memory: list[float | None]
    direct_memory: list[float | None]
    bandwidth_in: list[float | None]
    bandwidth_out: list[float | None]
    highest: list[float]
    msg_rate: list[float]
    throughput: list[float]
    bundles: list[int]
    state: list[BrokerState]
    reported_at: list[int | None]


class BrokersNeeded(WireModel):
    """Minimum number of brokers that can carry the current peak after a loss, and its reason."""

    needed: int
    sentence: str


class Breaker(WireModel):
    """Effect of the breaker: remaining seconds without shedding, and the number of frozen bundles."""

    stopped_s: int
    bundles: int


class Balancing(WireModel):
    """Limits on the balancer: `frozen` is the reason of a freeze, or empty; `cannot_move` are the reasons why nothing
    can be moved; `limits` keep some bundles in place for a time.
    """

    frozen: str
    dry_run: bool
    breaker: Breaker | None
    cannot_move: list[CannotMove]
    limits: list[ShownLimit]


class MovingBundle(WireModel):
    """A bundle that its owner is releasing. `since` is in ms since 1970."""

    bundle: str
    source: str | None
    destination: str | None
    reason: str
    since: int


class Unserved(WireModel):
    """Bundles whose owner does not serve them: `broker_stuck`."""

    broker: str
    bundles: int
    why: str
    remedy: str


class FleetBody(WireModel):
    """Fleet status. `leader` is null without one, and while the node has no lease. `is_whole`: the leader has answered,
    so drains, the breaker, sick and rejected brokers, and the `lower_bound` are known. That is the lowest possible
    `highest` at the time of the last round; null before the first round, as `mean` is without brokers. `moving` lists
    only some bundles. `faults` are by znode. `open_to_anyone`: callers from other hosts need no token. Topics of
    `available_namespaces` may have two owners.
    """

    at: int
    node: str
    leader: FleetLeader | None
    nodes: list[str]
    open_to_anyone: bool
    available_namespaces: list[str]
    is_whole: bool
    balancing: Balancing
    drains: list[DrainProgress]
    brokers: FleetBrokers
    mean: float | None
    lower_bound: float | None
    size: BrokersNeeded | None
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
    """State that only the leader knows. `decisions` and `operations` are the newest ones after the requested mark, each
    with its own mark. `mark` is for the next request.
    """

    mark: MarkText
    breaker: Breaker | None
    cannot_move: list[CannotMove]
    limits: list[ShownLimit]
    drains: list[DrainProgress]
    sick: list[str]
    rejected: list[str]
    lower_bound: float | None
    size: BrokersNeeded | None
    decisions: list[MarkedDecision]
    operations: list[MarkedOperation]


Moment = list[int | str | None]
"""Time of an event in ms since 1970, and its data."""


class Timeline(WireModel):
    """Heat map. `cells` are bytes in base64, row by row, in per cent: for brokers the highest usage of any resource,
    for bundles the bytes/s relative to `scale`, the hottest cell; 255 means unknown. The first column begins at `from`,
    each is `step_ms` long; a row shows the maximum of the `sizes` brokers or bundles that share it. Moves, splits and
    leaders list the newest, times in ms since 1970.
    """

    of: Literal["brokers", "bundles"]
    from_: int = Field(alias="from")
    step_ms: int
    columns: int
    rows: list[str]
    sizes: list[int]
    cells: str
    scale: float | None
    moves: list[Moment]
    moves_omitted: int
    splits: list[Moment]
    leaders: list[Moment]
