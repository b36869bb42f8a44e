"""Scenario files: fleet, workload, events, and expected results.

The models say what a file may hold; `loadmanager.lab.simulate.scenario_run` makes a world of it. Reading the file is
the caller's business, and so are the files of recorded series that it names. Times are seconds since the beginning,
loads are those of one bundle.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from loadmanager.core.diagnosis.reason_catalogue import REASONS
from loadmanager.core.domain.bundles import MAX_BUNDLES
from loadmanager.core.domain.names import BrokerId, InvalidNameError, NamespaceName, parse_broker_id
from loadmanager.core.domain.reasons import Reason
from loadmanager.errors import ScenarioError
from loadmanager.lab.simulate.fleet_events import ReportFault
from loadmanager.wire.validation import cut, describe

_MOST_BROKERS = 10_000
_MOST_BUNDLES = 1_000_000
_MOST_S = 366 * 86_400
_MOST_ROWS = 10_000_000

Seconds = Annotated[float, Field(ge=0, le=_MOST_S, allow_inf_nan=False)]
Duration = Annotated[float, Field(gt=0, le=_MOST_S, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _namespace(name: str) -> str:
    return _validate_name(NamespaceName.parse, name)


def _broker(name: str) -> str:
    return _validate_name(parse_broker_id, name)


def _validate_name(parse: Callable[[str], object], name: str) -> str:
    try:
        return str(parse(name))
    except InvalidNameError as error:
        raise ValueError(str(error)) from None


def _reason(name: object) -> Reason:
    if not isinstance(name, str) or name not in REASONS:
        close = difflib.get_close_matches(str(name), REASONS, n=1)
        raise ValueError(f"unknown reason {name!r}" + (f", did you mean {close[0]}?" if close else ""))
    return REASONS[name]


Namespace = Annotated[str, AfterValidator(_namespace)]
Broker = Annotated[str, AfterValidator(_broker)]
BundleRef = Annotated[str, Field(min_length=1, max_length=400)]
"""A bundle by its name, `tenant/namespace/0x.._0x..`, or by its place in the namespace, `tenant/namespace#0`."""
BundleRefs = tuple[BundleRef, ...]
"""Bundles; `tenant/namespace#*` stands for all that the namespace begins with."""


class Part(BaseModel):
    """Base of the models of a scenario file; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Capacity(Part):
    """Capacity of a broker, by resource."""

    cpu_cores: Positive = Field(8, description="CPU cores.")
    memory_mib: Positive = Field(16_384, description="Heap memory, MiB.")
    direct_memory_mib: Positive = Field(8_192, description="Direct memory, MiB.")
    bandwidth_in_gbps: Positive = Field(10, description="Incoming bandwidth, Gbit/s.")
    bandwidth_out_gbps: Positive = Field(10, description="Outgoing bandwidth, Gbit/s.")


class BrokerKind(Part):
    """Like brokers."""

    capacity: Capacity = Field(Capacity(), description="What each of them has.")
    speed: Positive = Field(1.0, description="How fast the CPU is: with 2 the same load takes half of it.")
    version: str = Field("1.0.0", description="The version that they report.")
    load_manager_class: str = Field("", description="The load manager's class that they report.")


class ScenarioBrokers(BrokerKind):
    """Group of equal brokers, or one broker with an id."""

    count: int = Field(1, ge=1, le=_MOST_BROKERS, description="How many there are.")
    id: Broker | None = Field(
        None, description="host:port of the only one; without it they are broker-0000:8080 and on, across the file."
    )

    @model_validator(mode="after")
    def _one_id_for_one(self) -> Self:
        if self.id is not None and self.count != 1:
            raise ValueError("an id goes with count 1")
        return self


class ScenarioLoad(Part):
    """Mean load of a bundle."""

    msg_rate_in: Amount = Field(500, description="Messages/s that come in.")
    msg_rate_out: Amount = Field(500, description="Messages/s that go out.")
    throughput_in: Amount = Field(500_000, description="Bytes/s that come in.")
    throughput_out: Amount = Field(500_000, description="Bytes/s that go out.")

    def columns(self) -> tuple[float, float, float, float]:
        return self.msg_rate_in, self.msg_rate_out, self.throughput_in, self.throughput_out


class Steady(Part):
    """Each bundle carries its weight's times the load."""

    kind: Literal["steady"] = "steady"
    weights: tuple[Factor, ...] | None = Field(
        None, min_length=1, max_length=_MOST_BUNDLES, description="One for each bundle, or for the first ones, then 1."
    )


class HeavyTailed(Part):
    """Few bundles carry much of the load, by a Pareto law, drawn by the seed."""

    kind: Literal["heavyTailed"] = "heavyTailed"
    alpha: float = Field(1.5, gt=0.1, le=100, allow_inf_nan=False, description="The smaller, the more is in a few.")
    largest: float = Field(1000, ge=1, le=1e9, allow_inf_nan=False, description="Largest weight, of the smallest.")


class Zipf(Part):
    """The bundle of rank k carries 1 / k^exponent of what the first one does; the seed says who has which rank."""

    kind: Literal["zipf"]
    exponent: float = Field(1, gt=0, le=10, allow_inf_nan=False, description="The larger, the more is in a few.")


class TopicContents(Part):
    """The topics of each bundle, at random places of its range. A split cuts between them."""

    count: int = Field(ge=1, le=100_000, description="Topics of a bundle.")
    hot_share: float | None = Field(
        None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="The part of the load that one topic carries; else all alike.",
    )


class NamespaceGroup(Part):
    """A namespace, or several alike, with their bundles and what those carry."""

    name: Namespace = Field(description="tenant/namespace; of several, what their names begin with.")
    count: int = Field(1, ge=1, le=100_000, description="How many namespaces.")
    bundles: int = Field(ge=1, le=MAX_BUNDLES, description="Bundles of each.")
    owners: Literal["placed", "dealt"] | tuple[Broker, ...] = Field(
        "placed",
        description="placed: by the placement strategy at the beginning; dealt: in turn to the brokers there are then;"
        " a list of brokers: to those in turn.",
    )
    load: ScenarioLoad = Field(ScenarioLoad(), description="What a bundle of weight 1 carries.")
    weights: Annotated[Steady | HeavyTailed | Zipf, Field(discriminator="kind")] = Field(
        Steady(), description="How the load is spread over the bundles."
    )
    topics: Count = Field(10, description="Topics of a bundle, where `contents` do not say.")
    sessions: Count = Field(20, description="Producers and consumers of a bundle.")
    contents: TopicContents | None = Field(
        None, description="The topics themselves, for splits; else load lies evenly."
    )


class Traces(Part):
    """Bundles that follow recorded series: CSV with `timestamp,value`, or several as `timestamp,series,value`."""

    files: tuple[str, ...] = Field((), description="Files, relative to the scenario's own.")
    directory: str | None = Field(None, description="All *.csv of a directory, relative to the scenario's own.")
    name: Namespace = Field("traces/ns", description="What the names of the namespaces begin with.")
    bundles: int = Field(ge=1, le=_MOST_BUNDLES, description="How many bundles, each with one of the series.")
    bundles_per_namespace: int = Field(16, ge=1, le=MAX_BUNDLES, description="Bundles of a namespace.")
    owners: Literal["placed", "dealt"] = Field("placed", description="As for namespaces.")
    load: ScenarioLoad = Field(ScenarioLoad(), description="What a bundle carries on average.")
    shift: bool = Field(default=True, description="Each bundle begins at a place of its own, drawn by the seed.")
    tail: float | None = Field(
        1.5, gt=0.1, le=100, description="Scales bundles by a Pareto law with this exponent; null: not at all."
    )
    topics: Count = Field(10, description="Topics of a bundle.")
    sessions: Count = Field(20, description="Producers and consumers of a bundle.")

    @model_validator(mode="after")
    def _from_somewhere(self) -> Self:
        if self.files and self.directory is not None:
            raise ValueError("expected either files or directory, or neither: they are named when it is run, then")
        return self


class NoiseShape(Part):
    """Every bundle's load deviates by chance."""

    kind: Literal["noise"]
    spread: float = Field(ge=0, le=1, allow_inf_nan=False, description="Standard deviation, as a fraction.")
    period_s: Duration = Field(60, description="It deviates anew so often.")


class DiurnalShape(Part):
    """A daily wave."""

    kind: Literal["diurnal"]
    amplitude: float = Field(ge=0, le=1, allow_inf_nan=False, description="Up and down from the load, a fraction.")
    period_s: Duration = Field(86_400, description="A wave takes so long.")
    phases: Literal["together", "namespaces", "spread"] = Field(
        "together",
        description="spread: each bundle has its wave at a time of its own, drawn by the seed; namespaces: all bundles"
        " of a namespace together, each namespace as if in a time zone of its own.",
    )


class RampShape(Part):
    """Some bundles' load grows, or shrinks, and stays."""

    kind: Literal["ramp"]
    bundles: BundleRefs | None = Field(None, description="Which bundles; without it all.")
    factor: Factor = Field(description="What it is multiplied by at the end.")
    from_s: Seconds = Field(0, description="When it begins.")
    until_s: Seconds = Field(description="When it is over; at once if it is the same.")


class DriftShape(Part):
    """Every bundle's load wanders slowly, each its own way."""

    kind: Literal["drift"]
    factor: float = Field(ge=1, le=1000, allow_inf_nan=False, description="At most so many times the load, or less.")
    period_s: Duration = Field(description="It is somewhere else after so long, on a straight line.")


class BurstsShape(Part):
    """All bundles of a namespace carry more for a short time, again and again, each namespace at moments of its own."""

    kind: Literal["bursts"]
    factor: Factor = Field(description="So many times the load.")
    lasts_s: Duration = Field(description="For so long.")
    every_s: Duration = Field(description="Once in such a time.")

    @model_validator(mode="after")
    def _over_before_the_next(self) -> Self:
        if self.lasts_s > self.every_s:
            raise ValueError("lastsS: expected at most everyS")
        return self


AnyShape = Annotated[NoiseShape | DiurnalShape | RampShape | DriftShape | BurstsShape, Field(discriminator="kind")]


class _At(Part):
    at_s: Seconds = Field(description="When.")


class BrokersJoin(_At):
    """New brokers register."""

    kind: Literal["brokersJoin"]
    brokers: ScenarioBrokers = Field(ScenarioBrokers(), description="Which.")
    every_s: Seconds = Field(0, description="One after the other, so far apart.")


class BrokersStop(_At):
    """Brokers are stopped by an operator."""

    kind: Literal["brokersStop"]
    brokers: tuple[Broker, ...] = Field(min_length=1)
    drain: bool = Field(default=True, description="Their bundles are moved away before; else they are gone at once.")


class BrokersCrash(_At):
    """Brokers die; their registrations end with their sessions."""

    kind: Literal["brokersCrash"]
    brokers: tuple[Broker, ...] = Field(min_length=1)
    down_s: Duration | None = Field(None, description="They are back, with nothing, so long after; without it never.")


class BrokersRestart(_At):
    """Brokers are restarted, one after the other where `everyS` says so."""

    kind: Literal["brokersRestart"]
    brokers: tuple[Broker, ...] = Field(min_length=1)
    down_s: Duration = Field(30, description="How long each is away.")
    every_s: Seconds = Field(0, description="So far apart.")


class BrokerSlows(_At):
    """A broker's CPU is slower, or faster, from then on."""

    kind: Literal["brokerSlows"]
    broker: Broker
    factor: Positive = Field(description="0.5: half as fast.")


class SickBroker(_At):
    """A broker serves badly, and little: its load drops. All brokers say how they serve then."""

    kind: Literal["brokerFallsSick"]
    broker: Broker
    until_s: Seconds | None = Field(None, description="Until then; without it until it is restarted.")
    latency_ms: Amount = Field(2_000, description="Its latency.")
    error_share: Factor = Field(0.5, le=1, description="The share of requests that fail.")
    queue: Amount = Field(5_000, description="How many wait.")
    carries: Factor = Field(0.1, le=1, description="The part of its load that it still serves.")


class NamespaceAppears(_At):
    """A namespace is created, and clients look its bundles up."""

    kind: Literal["namespaceAppears"]
    namespace: NamespaceGroup


class LoadJumps(_At):
    """Some bundles carry more, or less, for a time."""

    kind: Literal["loadJumps"]
    until_s: Seconds = Field(description="Until then.")
    bundles: BundleRefs = Field(min_length=1)
    factor: Factor


class ReportsGoBad(_At):
    """A broker sends wrong reports."""

    kind: Literal["reportsGoBad"]
    broker: Broker
    fault: ReportFault
    until_s: Seconds | None = Field(None, description="Until then; without it to the end.")
    factor: Positive = Field(10, description="For wrong_capacity and sum_differs: how many times as much.")


AnyEvent = Annotated[
    BrokersJoin
    | BrokersStop
    | BrokersCrash
    | BrokersRestart
    | BrokerSlows
    | SickBroker
    | NamespaceAppears
    | LoadJumps
    | ReportsGoBad,
    Field(discriminator="kind"),
]


class Costs(Part):
    """Cost model: usage of each resource by load, see `docs/simulation.md`."""

    base: tuple[Amount, ...] | None = Field(None, min_length=5, max_length=5, description="What an idle broker uses.")
    coefficients: tuple[tuple[Amount, ...], ...] | None = Field(
        None,
        min_length=5,
        max_length=5,
        description="A row per resource: per message/s and byte/s, in and out, and topic.",
    )


class Rules(Part):
    """Timing of the simulated fleet, besides the settings."""

    first_round_s: Seconds | None = Field(
        None, description="The first round of shedding; else one and a half intervals."
    )
    stats_interval_s: Duration = Field(60, description="Brokers measure so often (statsUpdateFrequencyInSecs).")
    report_check_s: Seconds = Field(5, description="Within this time a broker looks whether a report is due.")
    report_max_interval_s: Duration = Field(900, description="A report is written at least so often.")
    report_threshold_percent: Factor = Field(10, description="A report is due when something changed by more.")
    report_delay_s: Seconds = Field(0.5, description="From a broker's report to the leader.")
    reports_at_most_limit: bool = Field(default=True, description="No broker reports to use more than it has.")
    unload_s: Seconds = Field(2, description="A moving bundle is served by nobody for so long.")
    unload_deadline_s: Duration = Field(60, description="An unload without an answer is given up.")
    lookup_s: Seconds = Field(0.5, description="Until clients look a free bundle up again.")
    session_timeout_s: Duration = Field(10, description="Until a crashed broker's registration ends.")
    backlog_most_s: Seconds = Field(30, description="What clients of a bundle without service keep to send it later.")
    catch_up_factor: Annotated[float, Field(gt=1, le=1000, allow_inf_nan=False)] = Field(
        2, description="So many times their load bundles carry while clients send what they kept."
    )
    reconnect_cpu_s: Seconds = Field(0.001, description="What it costs a broker that a client connects, of one core.")


class Levelled(Part):
    """The imbalance is down to a value soon after the leader has seen that it is not, and stays there."""

    imbalance: float = Field(ge=1, le=1000, allow_inf_nan=False, description="Busiest broker by mean, at most.")
    within_s: Duration = Field(description="So soon after the reports show it.")
    after_s: Seconds = Field(0, description="What has happened then; the reports that show it come later.")
    by: Literal["reports", "newBrokers"] = Field(
        "reports", description="reports: shown by the next report; newBrokers: by the first report of every new broker."
    )


class Relieved(Part):
    """No broker is used more than so much soon after the leader has seen it, to the end."""

    usage: float = Field(gt=0, le=10, allow_inf_nan=False, description="Of a broker's capacity, a fraction.")
    within_s: Duration = Field(description="So soon after the reports show it.")
    after_s: Seconds = Field(0, description="What has happened then.")


class Filled(Part):
    """A broker carries its part of the load in time."""

    broker: Broker
    share: float = Field(gt=0, le=1, allow_inf_nan=False, description="Of what an equal part would be, at least.")
    within_s: Duration = Field(description="So soon after its first report.")
    after_s: Seconds = Field(0, description="The first report from then on.")


class BrokerMoves(Part):
    """Limit on the bundles that the balancer moves to or from one broker in a period."""

    broker: Broker
    at_most: Count
    from_s: Seconds = 0
    until_s: Seconds | None = None


class Said(Part):
    """Verdicts that the balancer must, or must not, give."""

    reason: Annotated[Reason, BeforeValidator(_reason)] = Field(description="Which verdict.")
    at_least: Count = Field(1, description="So often.")
    at_most: Count | None = Field(None, description="And no more often.")


class Expect(Part):
    """Expected results. A bound that is not given is not checked."""

    moved_again_at_most: Factor | None = Field(
        None, description="Load of bundles that had moved within two hours before, in shares of all load."
    )
    thrash_at_most: Factor | None = Field(
        None, description="Load returned to where it had been within four hours, in shares of all load."
    )
    returns_at_most: Count | None = Field(None, description="Moves back to where a bundle had been within four hours.")
    moves_at_most: Count | None = Field(None, description="Moves by the balancer.")
    moves_at_least: Count | None = Field(None, description="Moves by the balancer: that there is something to judge.")
    quiet_from_s: Seconds | None = Field(None, description="From then on the balancer moves nothing.")
    moves_per_bundle_at_most: Count | None = Field(None, description="Moves of any one bundle by the balancer.")
    moved_share_at_most: Factor | None = Field(None, description="Load moved, in shares of all load.")
    splits_at_most: Count | None = Field(None, description="Bundles that were split.")
    splits_at_least: Count | None = None
    bundles_at_most: Count | None = Field(None, description="Bundles at the end.")
    imbalance_at_most: Factor | None = Field(None, description="The mean over time, from `settledAfterS` on.")
    worst_usage_at_most: Factor | None = Field(None, description="Of any broker, from `settledAfterS` on; a fraction.")
    settled_after_s: Seconds = Field(0, description="From when on the two bounds above count.")
    unowned_s_at_most: Amount | None = Field(None, description="Seconds without service, added up over bundles.")
    all_owned_within_s: Duration | None = Field(
        None, description="Once bundles have lost their broker, everything is served again so soon."
    )
    levelled: Levelled | None = None
    relieved: Relieved | None = None
    filled: tuple[Filled, ...] = ()
    moves_to: tuple[BrokerMoves, ...] = Field((), description="Bounds on what brokers are given.")
    moves_from: tuple[BrokerMoves, ...] = Field((), description="Bounds on what is taken from brokers.")
    said: tuple[Said, ...] = Field((), description="Verdicts that have to be there.")


class Scenario(Part):
    """A scenario file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="What it is called: a-z, 0-9 and -.")
    about: str = Field(min_length=1, max_length=2_000, description="What it is, in a sentence or two.")
    pathology: str = Field("", max_length=200, description="The class of trouble that it stands for.")
    duration_s: Duration = Field(description="How long it takes in virtual time.")
    step_s: Duration = Field(60, description="Loads change, and brokers measure, only so often.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Where chance begins.")
    brokers: tuple[ScenarioBrokers, ...] = Field(min_length=1, description="Those there at the beginning.")
    namespaces: tuple[NamespaceGroup, ...] = Field((), description="Those there at the beginning.")
    traces: Traces | None = Field(None, description="Namespaces whose bundles follow recorded series.")
    shapes: tuple[AnyShape, ...] = Field((), description="What all loads are multiplied by.")
    learned: bool = Field(default=False, description="The leader knows diurnal shapes, as a pipeline learns them.")
    events: tuple[AnyEvent, ...] = Field((), description="What happens.")
    settings: Mapping[str, Any] = Field(default_factory=dict, description="Keys of the configuration; others default.")
    rules: Rules = Field(Rules(), description="How long things take.")
    costs: Costs = Field(Costs(), description="What load costs.")
    strategies: tuple[str, ...] = Field((), description="What it is run with; without any, with what settings say.")
    expect: Expect = Field(Expect(), description="What has to hold.")

    @model_validator(mode="after")
    def _of_a_size_that_can_be_run(self) -> Self:
        if not self.namespaces and self.traces is None:
            raise ValueError("expected namespaces or traces")
        if self.step_s > self.duration_s:
            raise ValueError("stepS: expected at most durationS")
        if self.duration_s / self.step_s > _MOST_ROWS:
            raise ValueError(f"durationS / stepS: expected at most {_MOST_ROWS} steps")
        if self.bundles() > _MOST_BUNDLES:
            raise ValueError(f"expected at most {_MOST_BUNDLES} bundles, got {self.bundles()}")
        if sum(each.count for each in self.brokers) > _MOST_BROKERS:
            raise ValueError(f"expected at most {_MOST_BROKERS} brokers")
        return self

    def bundles(self) -> int:
        """Return the number of bundles at the beginning."""
        traced = self.traces.bundles if self.traces else 0
        return sum(each.count * each.bundles for each in self.namespaces) + traced

    def broker_ids(self) -> list[BrokerId]:
        """Those there at the beginning."""
        return [each for each, _ in numbered(self.brokers, 0)]


def numbered(groups: tuple[ScenarioBrokers, ...], first: int) -> list[tuple[BrokerId, ScenarioBrokers]]:
    """Each broker of the groups with its id; those without one of their own are numbered from `first` on."""
    found = []
    for group in groups:
        for _ in range(group.count):
            if group.id is not None:
                found.append((BrokerId(group.id), group))
                continue
            found.append((BrokerId(f"broker-{first:04d}:8080"), group))
            first += 1
    return found


P = TypeVar("P", bound=Part)


def parse_scenario(content: object, where: str) -> Scenario:
    """The scenario in what a YAML file holds. Raises `ScenarioError`: the file, the key, and what is allowed."""
    return parse_as(Scenario, content, where)


def parse_as(model: type[P], content: object, where: str) -> P:
    """The same for any model of a file that describes runs."""
    if not isinstance(content, Mapping):
        raise ScenarioError(f"{where}: expected a mapping with the keys of a scenario, got {cut(repr(content))}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ScenarioError(f"{where}: {describe(error, _keys(), _is_in_file)}") from None


def _parts(model: type[Part]) -> list[type[Part]]:
    return [each for part in model.__subclasses__() for each in (part, *_parts(part))]


def _keys() -> list[str]:
    """Every key that a file may have somewhere."""
    return sorted({str(field.alias) for part in _parts(Part) for field in part.model_fields.values()})


_KINDS = frozenset(
    kind for part in _parts(Part) for kind in get_args(part.model_fields.get("kind", FieldInfo()).annotation)
)


def _is_in_file(part: object) -> bool:
    """Tell if a part of pydantic's path to a fault is a key of the file, and not an alternative of a union."""
    return not (isinstance(part, str) and (part in _KINDS or "[" in part))
