"""Dump line: the state of a cluster that a decision reads, at one moment, as a JSON object.

Records are Pulsar's own JSON. Parsing is stricter than Pulsar's mapper where a mistake would silently change a
decision: unknown and duplicate keys are errors, and numbers must be JSON numbers. As in that mapper, `null` means
absent, and a number that is not finite is the string `NaN`, `Infinity` or `-Infinity`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from types import NoneType
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetPydanticSchema,
    Strict,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict, is_typeddict

from loadmanager.errors import InvalidRecordError
from loadmanager.wire import average_records, broker_data, validation
from loadmanager.wire.average_records import BundleData, TimeAverageBrokerData, TimeAverageMessageData
from loadmanager.wire.broker_data import LocalBrokerData, NamespaceBundleStats
from loadmanager.wire.control_records import ControlsData
from loadmanager.wire.learned_records import LearnedData
from loadmanager.wire.policy_records import FailureDomain, IsolationData
from loadmanager.wire.validation import STRICT, cut, describe

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON cannot represent, by the texts that replace them."""

_MAX_DIGITS = 309


class _NotJson:
    """Invalid number: an unquoted `NaN`, or one that overflows a double."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return cut(self._text)


def _parse_non_finite(value: object) -> object:
    if isinstance(value, _NotJson):
        raise ValueError(f'not a number of JSON: one that is not finite has quotes, such as "NaN", not {value!r}')  # noqa: TRY004 - pydantic takes it for a fault of the value
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def _not_negative(value: float) -> float:
    if value < 0:
        raise ValueError("expected 0 or more")
    return value


def _lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Number = Annotated[float, BeforeValidator(_parse_non_finite)]
Amount = Annotated[Number, AfterValidator(_not_negative)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Small = Annotated[int, Field(ge=0, le=2**31 - 1)]
Milliseconds = Annotated[int, Field(ge=0, le=2**52)]
Hash = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Name = Annotated[str, Field(min_length=1)]
_LISTED = Strict(strict=False)
"""Marks a tuple that is a list in JSON."""
Quota = Annotated[tuple[Amount, Amount, Amount, Amount, Amount], _LISTED]
HashFunctionName = Annotated[str, BeforeValidator(_lower_case), Field(pattern="^(murmur3_32|crc32)$")]


_IN_A_DUMP: tuple[tuple[object, object], ...] = (
    (broker_data.Finite, Number),
    (validation.Amount, Amount),
    (broker_data.Count, Count),
    (broker_data.Sessions, Small),
    (broker_data.Milliseconds, Milliseconds),
    (average_records.Samples, Small),
    (broker_data.BundleKey, Name),
    (broker_data.AdvertisedListener, dict[str, str]),
)
"""Field types of a record in a dump, which accepts everything that Pulsar's brokers decide on."""


def _in_a_dump(given: Any, total: bool | None = None) -> Any:  # noqa: ANN401, FBT001 - a type, which has none
    """Return the type with the limits of a dump. Records forbid unknown fields; null means absent.

    `total` replaces that of the type: False makes all its fields optional.
    """
    for declared, dumped in _IN_A_DUMP:
        if given == declared:
            return dumped
    if is_typeddict(given):
        hints = get_type_hints(given, include_extras=True)
        fields = {name: _in_a_dump(hint, total) for name, hint in hints.items()}
        is_total = given.__total__ if total is None else total
        return with_config(STRICT)(TypedDict(given.__name__, fields, total=is_total))  # type: ignore[operator]  # made of fields
    parts = [_in_a_dump(each, total) for each in get_args(given) if each is not NoneType]
    if NoneType in get_args(given):
        return parts[0]
    return get_origin(given)[parts[0] if len(parts) == 1 else tuple(parts)] if parts else given


_DUMPED = GetPydanticSchema(lambda given, handler: handler(_in_a_dump(given)))
DumpedBroker = Annotated[LocalBrokerData, _DUMPED]
DumpedStats = Annotated[NamespaceBundleStats, _DUMPED]
"""Fields of a broker's record and of a bundle's, as strict as the rest of a dump."""
_DUMPED_PARTS = GetPydanticSchema(lambda given, handler: handler(_in_a_dump(given, total=False)))
DumpedAverages = Annotated[BundleData, _DUMPED_PARTS]
"""Averages of a bundle, all of them optional."""
DumpedBrokerAverages = Annotated[TimeAverageBrokerData, _DUMPED]


@with_config(STRICT)
class RecentlyUnloaded(TypedDict, total=False):
    """Time of each bundle's last unload, and of the last unload from each broker."""

    bundles: dict[Name, Milliseconds]
    brokers: dict[Name, Milliseconds]


@with_config(STRICT)
class PublishedBrokerLoad(TypedDict, total=False):
    """Fields of Pulsar's BrokerLoadData that decisions use. By default the usage is full, and the time of publication
    is that of the dump.
    """

    weightedMaxEMA: Number
    msgThroughputEMA: Number
    msgThroughputIn: Amount
    msgThroughputOut: Amount
    updatedAt: Milliseconds


@with_config(STRICT)
class TopBundle(TypedDict):
    bundle: Name
    stats: NotRequired[DumpedStats]


@with_config(STRICT)
class OwnedBundle(TypedDict):
    """Ownership of a bundle in our records. Reports do not contain it."""

    state: Annotated[str, Field(pattern="^(Free|Owned|Releasing)$")]
    owner: NotRequired[Name]
    destination: NotRequired[Name]


@with_config(STRICT)
class Namespace(TypedDict, total=False):
    """Bundles of a namespace, and their owners by range. Without `ownership`, the broker that reports a bundle owns
    it.
    """

    boundaries: list[str]
    numBundles: Count
    hashFunction: HashFunctionName
    antiAffinityGroup: str
    ownership: dict[Name, OwnedBundle]


@with_config(STRICT)
class DumpedTopic(TypedDict):
    topic: Name
    hash: NotRequired[Hash]
    msgRateIn: NotRequired[Amount]
    msgRateOut: NotRequired[Amount]
    msgThroughputIn: NotRequired[Amount]
    msgThroughputOut: NotRequired[Amount]


@with_config(STRICT)
class MovingAverages(TypedDict):
    """Average usage of each broker as a fraction, with the broker's incarnation."""

    usage: NotRequired[dict[Name, Annotated[tuple[int, Number], _LISTED]]]


@with_config(STRICT)
class AvgShedderState(TypedDict, total=False):
    """State of AvgShedder: by broker its incarnation and its low and high hits; by bundle its destination and its last
    placement.
    """

    hits: dict[Name, Annotated[tuple[int, Small, Small], _LISTED]]
    planned: dict[Name, Name]
    placed: dict[Name, Name]


@with_config(STRICT)
class TransferShedderState(TypedDict, total=False):
    """State of TransferShedder; `statistics` are the average and the standard deviation of the last round."""

    hits: Small
    counters: dict[Name, Count]
    statistics: list[Number | None]


@with_config(STRICT)
class LevelState(TypedDict, total=False):
    """State of Level, as `core.strategies.level.hysteresis` describes it. Seconds since 1970."""

    brokers: dict[
        Name,
        Annotated[
            tuple[int, Number, Number, Number | None, Amount, Amount, Number | None, Small, Number, Small, Small],
            _LISTED,
        ],
    ]
    moved: list[Annotated[tuple[Number, Amount, dict[Name, Amount]], _LISTED]]
    put: dict[Name, dict[Name, Number]]


@with_config(STRICT)
class RoundRobinState(TypedDict, total=False):
    turn: Small
    order: list[Name]


@with_config(STRICT)
class DumpedQuotas(TypedDict, total=False):
    """Resource quota of bundles: messages/s in and out, bytes/s in and out, MB."""

    quotas: dict[Name, Quota]
    fixed: list[Name]
    default: Quota
    average: Quota
    cpu_factor: Amount
    memory_factor: Amount
    last_update_ms: Milliseconds
    stored_at_ms: Milliseconds


@with_config(STRICT)
class QuotasState(TypedDict, total=False):
    """State of SimpleLoadManagerImpl: resource quotas, and the round-robin position."""

    model: DumpedQuotas
    cursor: Small


@with_config(STRICT)
class SplitState(TypedDict, total=False):
    """State of the split rule: by broker its incarnation; by bundle the number of rounds in a row above a limit."""

    hits: dict[Name, Annotated[tuple[int, dict[Name, Small]], _LISTED]]


@with_config(STRICT)
class NothingRemembered(TypedDict):
    pass


@with_config(STRICT)
class StrategyStates(TypedDict, total=False):
    """State of strategies, by their names."""

    OverloadShedder: NothingRemembered
    UniformLoadShedder: NothingRemembered
    LeastLongTermMessageRate: NothingRemembered
    LeastResourceUsageWithWeightExtensible: NothingRemembered
    ThresholdShedder: MovingAverages
    LeastResourceUsageWithWeight: MovingAverages
    AvgShedder: AvgShedderState
    TransferShedder: TransferShedderState
    Level: LevelState
    RoundRobinBrokerSelector: RoundRobinState
    SimpleLoadManagerImpl: QuotasState
    DefaultNamespaceBundleSplitStrategyImpl: SplitState
    leastLoadedServer: QuotasState
    leastMsgPerSecond: QuotasState
    weightedRandomSelection: QuotasState
    loadBalancerSheddingExcludedNamespaces: RoundRobinState


@with_config(STRICT)
class DumpLine(TypedDict, total=False):
    """State of a cluster at one moment."""

    takenAt: Milliseconds
    brokers: dict[Name, DumpedBroker]
    bundleData: dict[Name, DumpedAverages]
    timeAverages: dict[Name, DumpedBrokerAverages]
    preallocated: dict[Name, list[Name]]
    recentlyUnloaded: RecentlyUnloaded
    brokerLoad: dict[Name, PublishedBrokerLoad]
    topBundles: dict[Name, list[TopBundle]]
    namespaces: dict[Name, Namespace]
    topics: dict[Name, list[DumpedTopic]]
    isolationPolicies: dict[Name, IsolationData]
    failureDomains: dict[Name, FailureDomain]
    controls: ControlsData
    learned: LearnedData
    candidates: list[Name]
    state: StrategyStates
    configuration: dict[Name, str]


_ADAPTER = TypeAdapter(DumpLine)
_KEYS = frozenset(
    key
    for record in (
        DumpLine,
        LocalBrokerData,
        NamespaceBundleStats,
        BundleData,
        TimeAverageMessageData,
        PublishedBrokerLoad,
        Namespace,
    )
    for key in record.__annotations__
)


def decode_line(text: str, where: str) -> DumpLine:
    """Decode a line; raises `InvalidRecordError`, which names `where` (the line), the faulty keys and what was
    expected.
    """
    try:
        content = json.loads(
            text, object_pairs_hook=_object, parse_constant=_NotJson, parse_float=_parse_float, parse_int=_parse_int
        )
    except json.JSONDecodeError as error:
        raise InvalidRecordError(f"{where}: not one whole JSON object: {error.msg} at column {error.colno}") from None
    except ValueError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    except RecursionError:
        raise InvalidRecordError(f"{where}: nested too deeply") from None
    if not isinstance(content, dict):
        raise InvalidRecordError(f"{where}: expected a JSON object, got {cut(text)}")
    try:
        return _ADAPTER.validate_python(content)
    except ValidationError as error:
        raise InvalidRecordError(f"{where}: {describe(error, _KEYS)}") from None


def encode(record: Mapping[str, Any]) -> str:
    """Encode as one line of JSON without the newline; non-finite numbers are quoted."""
    try:
        return _dumps(record)
    except (TypeError, ValueError):  # a value that is not a plain dictionary, or not finite
        return _dumps(quoted(record))


_dumps = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def quoted(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can hold
    """Return the value with non-finite numbers as strings, as Pulsar writes them."""
    if isinstance(value, Mapping):
        return {key: quoted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [quoted(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = {key: value for key, value in pairs if value is not None}
    if len(content) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{key}: is there twice in one object")
            seen.add(key)
    return content


def _parse_float(text: str) -> float | _NotJson:
    """Parse a number that fits a double; otherwise return a value that fails validation under its key."""
    number = float(text)
    return number if math.isfinite(number) else _NotJson(text)


def _parse_int(text: str) -> int | _NotJson:
    """Parse a whole number; one with too many digits fails validation under its key."""
    return int(text) if len(text) <= _MAX_DIGITS else _NotJson(text)
