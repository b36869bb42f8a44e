"""Scenario files: fleet, workload, events, and expected results.

The models define the format; `loadmanager.lab.simulate.scenario_run` builds and runs the simulation. The caller reads
the files of recorded series that a scenario names. Times are seconds since the start, loads are those of one bundle.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from loadmanager.core.diagnosis.reason_catalogue import REASONS
from loadmanager.core.domain.bundles import MAX_BUNDLES
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.reasons import Reason
from loadmanager.errors import ScenarioError
from loadmanager.lab.simulate.fleet_events import (
    BrokerFallsSick,
    BrokersCrash,
    BrokerSlows,
    BrokersRestart,
    BrokersStop,
    FleetEvent,
    LoadJumps,
    ReportsGoBad,
)
from loadmanager.lab.simulate.run_rules import (
    Amount,
    Broker,
    CostModel,
    Count,
    Duration,
    Factor,
    Part,
    Positive,
    Rules,
    Seconds,
)
from loadmanager.lab.simulate.workload import BurstsShape, DiurnalShape, DriftShape, NoiseShape, RampShape
from loadmanager.wire.validation import Namespace, cut, describe

_MOST_BROKERS = 10_000
_MOST_BUNDLES = 1_000_000
_MOST_ROWS = 10_000_000


def _reason(name: object) -> Reason:
    if not isinstance(name, str) or name not in REASONS:
        close = difflib.get_close_matches(str(name), REASONS, n=1)
        raise ValueError(f"unknown reason {name!r}" + (f", did you mean {close[0]}?" if close else ""))
    return REASONS[name]


class Capacity(Part):
    """Capacity of a broker, by resource."""

    cpu_cores: Positive = Field(8, description="CPU cores.")
    memory_mib: Positive = Field(16_384, description="Heap memory, MiB.")
    direct_memory_mib: Positive = Field(8_192, description="Direct memory, MiB.")
    bandwidth_in_gbps: Positive = Field(10, description="Incoming bandwidth, Gbit/s.")
    bandwidth_out_gbps: Positive = Field(10, description="Outgoing bandwidth, Gbit/s.")


class ScenarioBrokers(Part):
    """Group of equal brokers, or one broker with an id."""

    capacity: Capacity = Field(Capacity(), description="Capacity of each.")
    speed: Positive = Field(1.0, description="CPU speed; 2: the same load uses half as much CPU.")
    version: str = Field("1.0.0", description="Version that they report.")
    load_manager_class: str = Field("", description="Load-manager class that they report.")
    count: int = Field(1, ge=1, le=_MOST_BROKERS, description="Number of brokers.")
    id: Broker | None = Field(
        None, description="host:port, if count is 1; else broker-0000:8080 and so on, across the file."
    )

    @model_validator(mode="after")
    def _one_id_for_one(self) -> Self:
        if self.id is not None and self.count != 1:
            raise ValueError("an id goes with count 1")
        return self


class ScenarioLoad(Part):
    """Mean load of a bundle."""

    msg_rate_in: Amount = Field(500, description="Incoming messages/s.")
    msg_rate_out: Amount = Field(500, description="Outgoing messages/s.")
    throughput_in: Amount = Field(500_000, description="Incoming bytes/s.")
    throughput_out: Amount = Field(500_000, description="Outgoing bytes/s.")

    def columns(self) -> tuple[float, float, float, float]:
        return self.msg_rate_in, self.msg_rate_out, self.throughput_in, self.throughput_out


class Steady(Part):
    """The load of each bundle is the mean load times its weight."""

    kind: Literal["steady"] = "steady"
    weights: tuple[Factor, ...] | None = Field(
        None, min_length=1, max_length=_MOST_BUNDLES, description="Weights of the first bundles; that of others is 1."
    )


class HeavyTailed(Part):
    """Few bundles have much of the load: a Pareto distribution, drawn with the seed."""

    kind: Literal["heavyTailed"] = "heavyTailed"
    alpha: float = Field(1.5, gt=0.1, le=100, allow_inf_nan=False, description="Smaller: more concentrated load.")
    largest: float = Field(1000, ge=1, le=1e9, allow_inf_nan=False, description="Largest weight over the smallest.")


class Zipf(Part):
    """The bundle of rank k has 1 / k^exponent of the load of the first one; ranks are drawn with the seed."""

    kind: Literal["zipf"]
    exponent: float = Field(1, gt=0, le=10, allow_inf_nan=False, description="Larger: more concentrated load.")


class TopicContents(Part):
    """Topics of each bundle, at random positions in its range. A split cuts between them."""

    count: int = Field(ge=1, le=100_000, description="Topics of a bundle.")
    hot_share: float | None = Field(
        None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Part of the load of one topic; without it, topics have equal loads.",
    )


class NamespaceGroup(Part):
    """One namespace or several equal ones, with the loads of their bundles."""

    name: Namespace = Field(description="tenant/namespace; for several, the prefix of their names.")
    count: int = Field(1, ge=1, le=100_000, description="Number of namespaces.")
    bundles: int = Field(ge=1, le=MAX_BUNDLES, description="Bundles per namespace.")
    owners: Literal["placed", "dealt"] | tuple[Broker, ...] = Field(
        "placed",
        description="placed: by the placement strategy at the beginning; dealt: in turn to the brokers there are then;"
        " a list of brokers: to those in turn.",
    )
    load: ScenarioLoad = Field(ScenarioLoad(), description="Load of a bundle of weight 1.")
    weights: Annotated[Steady | HeavyTailed | Zipf, Field(discriminator="kind")] = Field(
        Steady(), description="Distribution of the load over the bundles."
    )
    topics: Count = Field(10, description="Topics of a bundle, unless `contents` are given.")
    sessions: Count = Field(20, description="Producers and consumers of a bundle.")
    contents: TopicContents | None = Field(
        None, description="Topics, for splits; without them the load is spread evenly."
    )


class Traces(Part):
    """Bundles that follow recorded series: CSV with `timestamp,value`, or several as `timestamp,series,value`."""

    files: tuple[str, ...] = Field((), description="Files, relative to the scenario's own.")
    directory: str | None = Field(None, description="All *.csv of a directory, relative to the scenario's own.")
    name: Namespace = Field("traces/ns", description="Prefix of the names of the namespaces.")
    bundles: int = Field(ge=1, le=_MOST_BUNDLES, description="Number of bundles; each follows one of the series.")
    bundles_per_namespace: int = Field(16, ge=1, le=MAX_BUNDLES, description="Bundles of a namespace.")
    owners: Literal["placed", "dealt"] = Field("placed", description="As for namespaces.")
    load: ScenarioLoad = Field(ScenarioLoad(), description="Mean load of a bundle.")
    shift: bool = Field(default=True, description="Each bundle begins at a random offset, drawn with the seed.")
    tail: float | None = Field(
        1.5, gt=0.1, le=100, description="Exponent of a Pareto distribution that scales bundles; null: none."
    )
    topics: Count = Field(10, description="Topics of a bundle.")
    sessions: Count = Field(20, description="Producers and consumers of a bundle.")

    @model_validator(mode="after")
    def _from_somewhere(self) -> Self:
        if self.files and self.directory is not None:
            raise ValueError("expected either files or directory, or neither: they are named when it is run, then")
        return self


AnyShape = Annotated[NoiseShape | DiurnalShape | RampShape | DriftShape | BurstsShape, Field(discriminator="kind")]


class BrokersJoin(FleetEvent):
    """New brokers register."""

    kind: Literal["brokersJoin"]
    brokers: ScenarioBrokers = Field(ScenarioBrokers(), description="The new brokers.")
    every_s: Seconds = Field(0, description="Interval between two of them.")


class NamespaceAppears(FleetEvent):
    """A namespace is created, and clients look its bundles up."""

    kind: Literal["namespaceAppears"]
    namespace: NamespaceGroup


AnyEvent = Annotated[
    BrokersJoin
    | BrokersStop
    | BrokersCrash
    | BrokersRestart
    | BrokerSlows
    | BrokerFallsSick
    | NamespaceAppears
    | LoadJumps
    | ReportsGoBad,
    Field(discriminator="kind"),
]


class Levelled(Part):
    """The imbalance falls to a value soon after the leader could know of the event, and stays there."""

    imbalance: float = Field(ge=1, le=1000, allow_inf_nan=False, description="Busiest broker over mean, at most.")
    within_s: Duration = Field(description="Time limit, from the reports that show the event.")
    after_s: Seconds = Field(0, description="Time of the event; the reports that show it come later.")
    by: Literal["reports", "newBrokers"] = Field(
        "reports", description="reports: shown by the next report; newBrokers: by the first report of every new broker."
    )


class Relieved(Part):
    """The highest usage falls to a value soon after the leader could know of the event, and stays there."""

    usage: float = Field(gt=0, le=10, allow_inf_nan=False, description="Maximum usage of any broker, a fraction.")
    within_s: Duration = Field(description="Time limit, from the reports that show the event.")
    after_s: Seconds = Field(0, description="Time of the event.")


class Filled(Part):
    """A broker gets its part of the load within a time."""

    broker: Broker
    share: float = Field(gt=0, le=1, allow_inf_nan=False, description="Minimum part of an equal share.")
    within_s: Duration = Field(description="Time limit, from its first report.")
    after_s: Seconds = Field(0, description="The first report from this time on counts.")


class BrokerMoves(Part):
    """Limit on the bundles that the balancer moves to or from one broker in a period."""

    broker: Broker
    at_most: Count
    from_s: Seconds = 0
    until_s: Seconds | None = None


class Said(Part):
    """Verdicts that the balancer must, or must not, give."""

    reason: Annotated[Reason, BeforeValidator(_reason)] = Field(description="Reason of the verdict.")
    at_least: Count = Field(1, description="Minimum number.")
    at_most: Count | None = Field(None, description="Maximum number.")


class Expect(Part):
    """Expected results. Only given bounds are checked."""

    moved_again_at_most: Factor | None = Field(
        None, description="Load moved again within two hours, in shares of all load."
    )
    thrash_at_most: Factor | None = Field(None, description="Load moved back within four hours, in shares of all load.")
    returns_at_most: Count | None = Field(None, description="Moves back to a broker within four hours.")
    moves_at_most: Count | None = Field(None, description="Moves by the balancer.")
    moves_at_least: Count | None = Field(
        None, description="Moves by the balancer, so that other bounds mean something."
    )
    quiet_from_s: Seconds | None = Field(None, description="Time from which the balancer moves nothing.")
    moves_per_bundle_at_most: Count | None = Field(None, description="Moves by the balancer of any single bundle.")
    moved_share_at_most: Factor | None = Field(None, description="Load moved, in shares of all load.")
    splits_at_most: Count | None = Field(None, description="Bundles that were split.")
    splits_at_least: Count | None = None
    bundles_at_most: Count | None = Field(None, description="Bundles at the end.")
    imbalance_at_most: Factor | None = Field(None, description="Mean over time, from `settledAfterS` on.")
    worst_usage_at_most: Factor | None = Field(
        None, description="Highest usage of any broker, from `settledAfterS` on; a fraction."
    )
    settled_after_s: Seconds = Field(0, description="Start of the two bounds above.")
    unowned_s_at_most: Amount | None = Field(None, description="Sum over bundles of seconds without service.")
    all_owned_within_s: Duration | None = Field(
        None, description="Longest time during which some bundle is not served."
    )
    levelled: Levelled | None = None
    relieved: Relieved | None = None
    filled: tuple[Filled, ...] = ()
    moves_to: tuple[BrokerMoves, ...] = Field((), description="Limits on moves to brokers.")
    moves_from: tuple[BrokerMoves, ...] = Field((), description="Limits on moves from brokers.")
    said: tuple[Said, ...] = Field((), description="Required verdicts.")


class Scenario(Part):
    """A scenario file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="Name: a-z, 0-9 and -.")
    about: str = Field(min_length=1, max_length=2_000, description="Description, in a sentence or two.")
    pathology: str = Field("", max_length=200, description="Class of the problem.")
    duration_s: Duration = Field(description="Duration in virtual time.")
    step_s: Duration = Field(60, description="Step length: loads change, and brokers measure, once per step.")
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Seed of all random numbers.")
    brokers: tuple[ScenarioBrokers, ...] = Field(min_length=1, description="Initial brokers.")
    namespaces: tuple[NamespaceGroup, ...] = Field((), description="Initial namespaces.")
    traces: Traces | None = Field(None, description="Namespaces whose bundles follow recorded series.")
    shapes: tuple[AnyShape, ...] = Field((), description="Shapes by which all loads are multiplied.")
    learned: bool = Field(default=False, description="The leader knows the diurnal shapes, as learned by a pipeline.")
    events: tuple[AnyEvent, ...] = Field((), description="Events.")
    settings: Mapping[str, Any] = Field(
        default_factory=dict, description="Keys of the configuration; others have their defaults."
    )
    rules: Rules = Field(Rules(), description="Timing.")
    costs: CostModel = Field(CostModel(), description="Cost of load.")
    strategies: tuple[str, ...] = Field((), description="Strategies to run; without any, that of the settings.")
    expect: Expect = Field(Expect(), description="Expected results.")

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
        """Return the number of initial bundles."""
        traced = self.traces.bundles if self.traces else 0
        return sum(each.count * each.bundles for each in self.namespaces) + traced


def numbered(groups: tuple[ScenarioBrokers, ...], first: int) -> list[tuple[BrokerId, ScenarioBrokers]]:
    """Return each broker of the groups with its id; brokers without a given id are numbered from `first` on."""
    number = itertools.count(first)
    each_broker = (group for group in groups for _ in range(group.count))
    return [(group.id or BrokerId(f"broker-{next(number):04d}:8080"), group) for group in each_broker]


P = TypeVar("P", bound=Part)


def parse_yaml(model: type[P], text: str, where: str) -> P:
    """Parse the text of a YAML file as this model; raises as `parse_as`."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScenarioError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None
    return parse_as(model, content, where)


def parse_as(model: type[P], content: object, where: str) -> P:
    """Parse the content of a YAML file as this model.

    Raises `ScenarioError`, which names file, key and allowed values.
    """
    if not isinstance(content, Mapping):
        raise ScenarioError(f"{where}: expected a mapping with the keys of a scenario, got {cut(repr(content))}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ScenarioError(f"{where}: {_describe(error, model)}") from None


def _describe(error: ValidationError, model: type[Part]) -> str:
    """Describe the faults of a file of this model. Paths do not name the alternatives of a union."""
    schema = model.model_json_schema()
    parts = [part.get("properties", {}) for part in (schema, *schema["$defs"].values())]
    kinds = {part["kind"]["const"] for part in parts if "kind" in part}

    def is_in_file(part: object) -> bool:
        return not (isinstance(part, str) and (part in kinds or "[" in part))

    return describe(error, sorted({key for part in parts for key in part}), is_in_file)
