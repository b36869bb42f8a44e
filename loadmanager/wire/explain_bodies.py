"""Answers of `/loadbalance/v1/explain/...`. Ages are in seconds, other times in milliseconds since 1970."""

from __future__ import annotations

from typing import Any

from loadmanager.wire.http_bodies import DecisionEntry
from loadmanager.wire.validation import WireModel


class Explanation(WireModel):
    """A rule that decided: its word, the sentence, the numbers behind it, and what would have to change, if anything
    but the load can.
    """

    reason: str
    sentence: str
    why: dict[str, Any]
    change: str | None = None


class Obstacle(Explanation):
    """A filter that keeps bundles from a broker; a preference is given up when nobody would be left."""

    is_preference: bool = False


class ExplainInputs(WireModel):
    """What the explanation is made from. `report_age_s` is that of the broker's report, by its own clock;
    `sample_age_s` that of the bundle's last sample, when the broker that has it reports it.
    """

    epoch: int
    revision: int
    taken_at: int
    dry_run: bool
    report_age_s: float | None = None
    sample_age_s: float | None = None


class ExplainedOwnership(WireModel):
    """The bundle in its namespace's record, and how long ago its last transition was, and why."""

    state: str
    owner: str | None = None
    incarnation: int | None = None
    destination: str | None = None
    version: int
    epoch: int
    reason: str
    age_s: float | None = None


class LoadFigures(WireModel):
    """Messages and bytes per second."""

    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float


class ExplainedLoad(WireModel):
    """The bundle's averages, and its share of the bytes/s of its broker and of all brokers. `taken_from` is a sentence
    that says where the averages come from when the bundle has none of its own.
    """

    short_term: LoadFigures
    long_term: LoadFigures
    short_samples: int
    long_samples: int
    topics: int
    share_of_broker_percent: float
    share_of_cluster_percent: float
    taken_from: str | None = None


class BrokerStanding(WireModel):
    """How a broker stands in what strategies compare: usage and MiB/s as reported, long-term messages per second of its
    bundles, topics and bundles with those on their way.
    """

    broker_id: str
    usage_percent: float
    msg_rate_per_s: float
    mib_per_s: float
    topics: int
    bundles: int
    bundles_of_namespace: int


class ExplainedShedding(WireModel):
    """What a round of shedding would do with the bundle now. `stays_by_rule`: by a rule for this bundle, whatever its
    broker's load; `broker_verdicts` are about its broker and the cluster.
    """

    would_move: bool
    destination: str | None = None
    stays: Explanation | None = None
    stays_by_rule: bool
    broker_verdicts: list[Explanation]


class ExplainedPlacement(WireModel):
    """Where placement would put the bundle now, if it left the broker that has it; the runner-up is who would be chosen
    if that one were not there. `standings` are of its broker and of the two. `dropped`: how many brokers each filter
    dropped.
    """

    chosen: str | None = None
    verdict: Explanation
    drawn_from: list[str]
    runner_up: Explanation | None = None
    standings: list[BrokerStanding]
    dropped: dict[str, int]


class BundleExplanation(WireModel):
    """`GET /loadbalance/v1/explain/bundle/{tenant}/{namespace}/{range}`."""

    bundle: str
    inputs: ExplainInputs
    ownership: ExplainedOwnership
    load: ExplainedLoad
    shedding: ExplainedShedding
    placement: ExplainedPlacement
    decisions: list[DecisionEntry]


class UsagePercentages(WireModel):
    """Usage in per cent of CPU, heap memory, direct memory, bandwidth in and out."""

    cpu: float
    memory: float
    direct_memory: float
    bandwidth_in: float
    bandwidth_out: float


class RoundMove(WireModel):
    """A bundle that a round now would move, and where to."""

    bundle: str
    destination: str | None = None


class BrokerExplanation(WireModel):
    """`GET /loadbalance/v1/explain/broker/{broker}`. `thresholds` are the settings that decided, by key; `margin` says
    how far the broker is from being shed from, `certificate` how near the round comes to what no plan can beat.
    `is_settled`: no bundle has left it, or is leaving, since its report.
    """

    broker_id: str
    inputs: ExplainInputs
    usage_percent: float
    resources: UsagePercentages
    standing: BrokerStanding
    is_settled: bool
    shedding_strategy: str
    thresholds: dict[str, Any]
    would_shed: list[RoundMove]
    verdicts: list[Explanation]
    certificate: Explanation
    margin: Explanation | None = None
    takes_bundles: bool
    is_overloaded: bool
    obstacles: list[Explanation]
    bundles_wait_s: float | None = None
    decisions: list[DecisionEntry]


class WhyNotExplanation(WireModel):
    """`GET /loadbalance/v1/explain/why-not`: the `answer` in one sentence, every obstacle between bundle and broker,
    and what placement and shedding would do instead.
    """

    bundle: str
    broker_id: str
    inputs: ExplainInputs
    ownership: ExplainedOwnership
    answer: Explanation
    obstacles: list[Obstacle]
    placement: Explanation
    standings: list[BrokerStanding]
    shedding: ExplainedShedding
    decisions: list[DecisionEntry]
