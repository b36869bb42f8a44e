"""HTTP bodies: lookup and admin in Pulsar's JSON, and our own under `/loadbalance/v1`."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from loadmanager.core.domain.bundles import HashFunction
from loadmanager.core.domain.names import HASH_SPACE_END, TopicName
from loadmanager.wire.validation import Amount, WireModel

if TYPE_CHECKING:  # not installed with agents
    from loadmanager.core.domain.policies import Unplaceable
    from loadmanager.core.planning.blocking_limits import BlockingLimit

_MOST_NAMESPACES = 20

EPOCH_HEADER = "X-Loadmanager-Epoch"
BUNDLE_VERSION_HEADER = "X-Loadmanager-Bundle-Version"
OWNER_HEADER = "X-Loadmanager-Owner"
INCARNATION_HEADER = "X-Loadmanager-Incarnation"
"""Incarnation of the broker in an unload call: the agent of another broker or registration must refuse it."""

HASH_FUNCTION_HEADER = "X-Loadmanager-Hash-Function"
"""Hash function of the namespace in an unload call, to find the bundle's topics among those of a former range."""

UNKNOWN = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
"""Answers of a broker that does not support a command, such as prepare."""

DESTINATION_HEADER = "X-Loadmanager-Destination"
"""Next owner in an unload call, if known. The broker may send its clients there."""

FORWARDED_HEADER = "X-Loadmanager-Forwarded"
"""Set on a request that a node forwards to the leader, so that it is never forwarded twice."""

CLIENT_HEADER = "X-Loadmanager-Client"
"""Address of the client whose request a node forwards to the leader."""

ORIGINAL_PRINCIPAL_HEADER = "X-Original-Principal"
"""Principal on whose behalf a proxy asks, as in Pulsar; a node forwards it with the caller's own."""

LISTENER_HEADER = "X-Pulsar-ListenerName"
"""Advertised listener that a lookup requests."""

NOT_LEADER_HEADER = "X-Loadmanager-Not-Leader"
"""Marks the refusal of a node that does not lead: the request had no effect, and may be sent to the leader."""


class Problem(WireModel):
    """Body of every error."""

    reason: str


class LookupData(WireModel):
    """Answer to a lookup: the addresses of the topic's owner.

    Old clients read `nativeUrl` and require `brokerUrlSsl`, so both are always present.
    """

    broker_id: str
    broker_url: str | None = None
    broker_url_tls: str | None = None
    http_url: str | None = None
    http_url_tls: str | None = None
    native_url: str | None = None
    broker_url_ssl: str = ""


class WantedLookups(WireModel, extra="forbid"):
    """Topics of a batch lookup, by their full names."""

    topics: Annotated[list[str], Field(min_length=1, max_length=1_000)]


class FailedLookup(WireModel):
    """Error that a lookup of this topic alone would have returned."""

    status: int
    reason: str


class LookupsAnswer(WireModel):
    """Answers for each topic, in the order of the request."""

    lookups: list[LookupData | FailedLookup]


class PartitionedTopicMetadata(WireModel):
    """`{"partitions": 0}`: the topic is not partitioned. This service knows nothing else about topics."""

    partitions: int = 0
    deleted: bool = False
    properties: dict[str, str] = Field(default_factory=dict)


class WantedBundles(WireModel):
    """Bundles of a new namespace: a number of equal ones, or explicit boundaries."""

    boundaries: list[str] | None = None
    num_bundles: int | None = None


class NamespacePolicies(WireModel):
    """Body that creates a namespace: Pulsar's Policies, of which only the bundles are used."""

    bundles: WantedBundles | None = None
    hash_function: HashFunction | None = None


class NamespaceAnswer(NamespacePolicies):
    """`GET /admin/v2/namespaces/...`. `is_available`: open topics of the namespace outlast leases."""

    is_available: bool = False


class BrokerInfo(WireModel):
    """The leader, in the form of `GET /admin/v2/brokers/leaderBroker`."""

    service_url: str
    broker_id: str


class BrokerAssignment(StrEnum):
    """Role of a broker for a namespace by its isolation policy."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    SHARED = "shared"


class NamespaceOwnershipStatus(BaseModel):
    """Status of a bundle on its owner. Pulsar's names have underscores here."""

    broker_assignment: BrokerAssignment
    is_controlled: bool
    is_active: bool


class MetricsAnswer(WireModel):
    """One element of Pulsar's `GET /admin/v2/broker-stats/metrics`."""

    metrics: dict[str, float]
    dimensions: dict[str, str]


class HealthBody(WireModel):
    """`GET /healthz`."""

    node_id: str
    leading: bool


LONGEST_HOLD_MS = 1_000
"""Longest hold of an answer to `GET /loadbalance/v1/term`."""


class TermAnswer(WireModel):
    """`GET /loadbalance/v1/term`: the epoch of the leader that answers."""

    epoch: int


class CannotMove(WireModel):
    """Stuck diagnosis: the reason why nothing can be moved, and the key of the responsible setting."""

    key: str
    sentence: str


class ShownLimit(WireModel):
    """A limit that currently keeps bundles from moving, and its end in ms since 1970, null if unknown."""

    reason: str
    sentence: str
    until: int | None

    @classmethod
    def of(cls, limit: BlockingLimit) -> Self:
        until_ms = None if limit.until_s is None else round(limit.until_s * 1000)
        return cls(reason=limit.reason, sentence=limit.sentence, until=until_ms)


class UnplaceableNamespaces(WireModel):
    """Namespaces that no broker may own, their total number, and the responsible isolation policy, "" for none."""

    policy: str
    namespaces: list[str]
    count: int
    sentence: str

    @classmethod
    def of(cls, found: Unplaceable) -> Self:
        names = list(found.namespaces[:_MOST_NAMESPACES])
        return cls(policy=found.policy, namespaces=names, count=len(found.namespaces), sentence=found.sentence)


class Readiness(WireModel):
    """`GET /readyz`; `faults` by znode path; `openToAnyone`: callers from other hosts need no token. Only the leader
    has `cannotMove` and `limits`.
    """

    epoch: int
    faults: dict[str, str]
    cannot_move: list[CannotMove]
    limits: list[ShownLimit]
    unplaceable: list[UnplaceableNamespaces]
    open_to_anyone: bool


class Imbalances(WireModel):
    """Load of the busiest broker over the mean, before and after a move."""

    imbalance_before: float
    imbalance_after: float


class EffectEntry(WireModel):
    """Effect of a move: predicted and, once both brokers have reported after it, measured. The measurement includes all
    other changes of load. `load` is the bundle's, in bytes/s; `source` and `destination` are the reported loads of
    these brokers before and after.
    """

    predicted: Imbalances
    measured: Imbalances | None
    measured_at: int | None
    load: float
    source: tuple[float, float] | None
    destination: tuple[float, float] | None


class DecisionEntry(WireModel):
    """A decision or a non-decision; times in epoch milliseconds, `times` counts consecutive repeats. Moves that this
    leader has begun have an `effect`.
    """

    sequence: int
    at: int
    epoch: int
    kind: str
    subject: str
    reason: str
    acted: bool
    sentence: str
    why: dict[str, Any]
    source: str | None
    destination: str | None
    effect: EffectEntry | None
    times: int
    last_at: int


class DecisionsAnswer(WireModel):
    """`GET /loadbalance/v1/decisions`, newest first."""

    epoch: int
    decisions: list[DecisionEntry]


class OwnershipAnswer(WireModel):
    """`GET /loadbalance/v1/ownership/...`: ownership of a bundle in this node's mirror. Never assigns an owner."""

    bundle: str
    state: str
    owner: str | None = None
    incarnation: int | None = None
    version: int
    epoch: int


class LeaseAnswer(WireModel):
    """`GET /loadmanager/v1/lease` of an agent: the time, from the request on, for which the broker may serve, and the
    namespaces whose open topics it may keep serving without a lease.
    """

    broker_id: str
    incarnation: int
    valid_for_ms: Annotated[int, Field(ge=0)]
    available: list[str] = Field(default_factory=list)


class OwnerAnswer(WireModel):
    """`GET /loadmanager/v1/owner?topic=` of an agent: true if the broker may open this topic."""

    owned: bool
    bundle: str | None = None
    owner: str | None = None
    incarnation: int


class OpenTopic(WireModel):
    """A topic that may be open, its hash and its rates, in messages and bytes per second."""

    topic: str
    hash: Annotated[int, Field(ge=0, le=HASH_SPACE_END)]
    msg_rate_in: Amount = 0.0
    msg_rate_out: Amount = 0.0
    msg_throughput_in: Amount = 0.0
    msg_throughput_out: Amount = 0.0


class TopicsAnswer(WireModel):
    """`GET /loadmanager/v1/topics?bundle=` of an agent: the topics of a bundle that its broker may have open."""

    bundle: str
    topics: list[OpenTopic]


TopicCount = Annotated[int, Field(ge=0)]
_MOST_COUNTED = 2**62
"""At 100 Gbit/s, one topic reaches 2^62 bytes after more than ten years."""


class TopicStats(WireModel):
    """Counters of one open topic since it was opened."""

    topic: Annotated[str, AfterValidator(lambda name: str(TopicName.parse(name)))]
    messages_in: TopicCount = 0
    messages_out: TopicCount = 0
    bytes_in: TopicCount = 0
    bytes_out: TopicCount = 0
    producers: TopicCount = 0
    consumers: TopicCount = 0

    @model_validator(mode="after")
    def _check_counters(self) -> Self:
        for name, value in self:
            if isinstance(value, int) and value > _MOST_COUNTED:
                raise ValueError(f"{name} of {self.topic[:80]!r}: expected at most 2^62")
        return self


def _check_each_once(topics: list[TopicStats]) -> list[TopicStats]:
    names = Counter(each.topic for each in topics)
    if len(names) < len(topics):
        raise ValueError(f"topic {names.most_common(1)[0][0][:80]!r} is listed twice")
    return topics


class HealthStats(WireModel):
    """Health figures of a broker, all optional: latency in milliseconds and error ratio, since the last request or over
    some minutes, and queue length.
    """

    latency_ms: Amount | None = None
    error_share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    queue: Amount | None = None


class BrokerStats(WireModel):
    """`GET /loadmanager/v1/stats` of a broker; `monotonic_s` is its clock at the time of counting.

    `opening` are the topics that it asks for or is about to open. `opened` counts the topics opened since the process
    began. A broker may omit these two and `health`. `sole_process`: when `pid` exits, no process serves under its
    leases.
    """

    pid: int
    sole_process: bool = False
    version: str = ""
    start_timestamp: Annotated[int, Field(ge=0)] = 0
    monotonic_s: Annotated[float, Field(allow_inf_nan=False)]
    topics: Annotated[list[TopicStats], AfterValidator(_check_each_once)] = Field(default_factory=list)
    opening: list[str] | None = None
    opened: Annotated[int, Field(ge=0)] | None = None
    health: HealthStats | None = None

    @property
    def process(self) -> tuple[int, int]:
        """The broker's process: its pid and the start time that it reports."""
        return self.pid, self.start_timestamp


class TopicsOfBundle(WireModel):
    """`POST /loadmanager/v1/prepare` of a broker, and of its agent: a bundle that is about to arrive, with some of its
    topics.
    """

    bundle: str
    topics: list[str]


class UnloadRequest(TopicsOfBundle):
    """`POST /loadmanager/v1/unload` of a broker: close these topics, then answer. `destination` is the id of the next
    owner, if known.
    """

    destination: str | None = None
