"""Bodies of `/loadbalance/v1/explain/...`. Ages are in seconds, other times in milliseconds since 1970."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from loadmanager.core.domain.plan import Verdict
from loadmanager.wire.http_bodies import DecisionEntry
from loadmanager.wire.validation import WireModel


class Explanation(WireModel):
    """A rule that decided: its reason, sentence and figures, and the remedy, unless only the load can change the
    result. A `Verdict` validates as one too.
    """

    reason: str
    sentence: str
    why: dict[str, Any]
    change: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_verdict(cls, given: object) -> object:
        if not isinstance(given, Verdict):
            return given
        return {
            "reason": given.verdict.value,
            "sentence": given.sentence(),
            "why": given.why,
            "change": given.remedy() or None,
        }


class Obstacle(Explanation):
    """Filter that excludes a broker. A preference is ignored if it would exclude all brokers."""

    is_preference: bool = False


class ExplainInputs(WireModel):
    """Inputs of the explanation. `report_age_s` is the age of the broker's report, by its own clock. `sample_age_s` is
    the age of the bundle's last sample, if its owner reports it.
    """

    epoch: int
    revision: int
    taken_at: int
    dry_run: bool
    report_age_s: float | None = None
    sample_age_s: float | None = None


class ExplainedOwnership(WireModel):
    """Ownership of the bundle, with the age and the reason of its last transition."""

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
    """Averages of the bundle, and its share of the bytes/s of its broker and of all brokers. `taken_from` states the
    source of averages for a bundle without history.
    """

    short_term: LoadFigures
    long_term: LoadFigures
    short_samples: int
    long_samples: int
    topics: int
    share_of_broker_percent: float
    share_of_cluster_percent: float
    taken_from: str | None = None


class BrokerStanding(WireModel, from_attributes=True):
    """Figures of a broker that strategies compare: reported usage and MiB/s, long-term messages per second of its
    bundles, and its topics and bundles, including incoming ones.
    """

    broker_id: str
    usage_percent: float
    msg_rate_per_s: float
    mib_per_s: float
    topics: int
    bundles: int
    bundles_of_namespace: int


class ExplainedShedding(WireModel, from_attributes=True):
    """Decision of a shedding round on the bundle now. `stays_by_rule`: a rule keeps this bundle in place, whatever its
    broker's load. `broker_verdicts` are on its broker and the cluster.
    """

    would_move: bool
    destination: str | None = None
    stays: Explanation | None = None
    stays_by_rule: bool
    broker_verdicts: list[Explanation]


class ExplainedPlacement(WireModel, from_attributes=True):
    """Placement of the bundle if it left its broker now. The runner-up is the choice without the chosen broker.
    `standings` are those of its broker and of these two. `dropped` is the number of brokers dropped per filter.
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
    """Usage in per cent of CPU, heap memory, direct memory, bandwidth in and out; null for one without a limit."""

    cpu: float | None
    memory: float | None
    direct_memory: float | None
    bandwidth_in: float | None
    bandwidth_out: float | None


class RoundMove(WireModel):
    """A move that a round would make now."""

    bundle: str
    destination: str | None = None


class BrokerExplanation(WireModel):
    """`GET /loadbalance/v1/explain/broker/{broker}`. `thresholds` are the settings that decided, by key; `margin` is
    the distance from the shedding threshold, `certificate` the gap of the round to the best possible one. `is_settled`:
    no bundle has left it, or is leaving, since its report.
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
    """`GET /loadbalance/v1/explain/why-not`: the `answer` in one sentence, all obstacles between bundle and broker, and
    the decisions of placement and shedding.
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
