"""Records of a real Pulsar, and two of our own beside it: the history of moves and the status of the process.

Unknown fields of Pulsar's znodes are dropped. Source: Pulsar's NamespaceEphemeralData, LeaderBroker, LocalPolicies,
NamespaceIsolationDataImpl and BrokerLookupData, as written by its brokers.

The history of moves is kept in `/loadbalance/pulsar/moves`, for the next leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NotRequired
from urllib.parse import urlsplit

import orjson
from pydantic import Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.protocol.guardrails import MoveHistory, PendingMove
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.control_records import Broker, Bundle
from loadmanager.wire.policy_records import FailoverPolicy, IsolationData
from loadmanager.wire.validation import MAX_COUNT, STRICT, Milliseconds, WireModel, parse_json

HASH_FUNCTION = "crc32"
"""Hash function by which Pulsar places topics in bundles."""

NO_LOAD = "publishes no load in ZooKeeper"
_EXTENSIBLE = "ExtensibleLoadManagerImpl"


def parse_record(data: bytes, where: str) -> dict[str, Any]:
    """Parse the JSON object in a znode; raises `InvalidRecordError`."""
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidRecordError(f"{where}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise InvalidRecordError(f"{where}: expected a JSON object")
    return record


def only(record: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the known fields of a record."""
    return {key: record[key] for key in keys if key in record}


def owner_in(record: Mapping[str, Any]) -> str:
    """Return the broker that owns a bundle, empty without one. Pulsar 4.0 omits it; then use its address."""
    named, given = record.get("brokerId"), record.get("httpUrl") or record.get("httpUrlTls") or ""
    if isinstance(named, str) and named:
        return named
    return urlsplit(given).netloc if isinstance(given, str) else ""


def boundaries_in(local_policies: Mapping[str, Any]) -> Any:  # noqa: ANN401 - not validated
    """Return the bundle boundaries in a namespace's local policies, None without them."""
    bundles = local_policies.get("bundles")
    return (bundles.get("boundaries") or None) if isinstance(bundles, dict) else None


def anti_affinity_group_in(local_policies: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """Return the anti-affinity group of a namespace, None without one."""
    return local_policies.get("namespaceAntiAffinityGroup") or None


def isolation_in(policy: object) -> dict[str, Any]:
    """Return the known parts of an isolation policy; empty for anything else."""
    content = only(policy, IsolationData.__annotations__) if isinstance(policy, dict) else {}
    failover = content.get("auto_failover_policy")
    if isinstance(failover, dict):
        content["auto_failover_policy"] = only(failover, FailoverPolicy.__annotations__)
    return content


def publishes_no_load(broker: Mapping[str, Any]) -> bool:
    """Return True for a broker with ExtensibleLoadManagerImpl, which publishes its load in topics instead."""
    return str(broker.get("loadManagerClassName", "")).endswith(_EXTENSIBLE) and "cpu" not in broker


class PulsarServiceStatus(WireModel):
    """State of a process that observes or balances a Pulsar.

    `acting`: the next round will execute its plan; otherwise `obstacles` has the reasons. `misses` counts moves that
    landed on another broker, or back on their source. `failures` counts consecutive failed moves; `stopped`: there were
    too many, and an operator has to run `resume`. `unserved` are bundles with clients that have no owner for a
    minute, or whose owner has lost their topics and refuses lookups; at most 20 are listed. Ages are in seconds.
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


_MS = 1000


@with_config(STRICT)
class MoveData(TypedDict):
    """A move. Without a destination, Pulsar places the bundle. `own`: requested by shedding, not by an operator."""

    source: Broker
    destination: NotRequired[Broker]
    beganAt: Milliseconds
    own: bool


@with_config(STRICT)
class ActsData(TypedDict, total=False):
    """See `core.protocol.guardrails.MoveHistory`; times in milliseconds since 1970."""

    inProgress: dict[Bundle, MoveData]
    began: list[Milliseconds]
    touched: dict[Broker, Milliseconds]
    failures: Annotated[int, Field(ge=0, le=MAX_COUNT)]


_ADAPTER = TypeAdapter(ActsData)


def decode_move_history(data: bytes, where: str) -> MoveHistory:
    """Decode the record; raises `InvalidRecordError`, which names `where` and the faulty field."""
    content = parse_json(_ADAPTER, data, where)
    return MoveHistory(
        {bundle: _move_of(move) for bundle, move in content.get("inProgress", {}).items()},
        tuple(ms / _MS for ms in content.get("began", ())),
        {BrokerId(broker): ms / _MS for broker, ms in content.get("touched", {}).items()},
        content.get("failures", 0),
    )


def encode_move_history(history: MoveHistory) -> bytes:
    content = ActsData(
        inProgress={bundle: _data_of(move) for bundle, move in sorted(history.in_progress.items())},
        began=[round(at_s * _MS) for at_s in history.began_s],
        touched={broker: round(at_s * _MS) for broker, at_s in sorted(history.touched_s.items())},
        failures=history.failures,
    )
    return _ADAPTER.dump_json(content)


def _move_of(move: MoveData) -> PendingMove:
    destination = move.get("destination")
    return PendingMove(
        BrokerId(move["source"]),
        None if destination is None else BrokerId(destination),
        move["beganAt"] / _MS,
        move["own"],
    )


def _data_of(move: PendingMove) -> MoveData:
    data = MoveData(source=move.source, beganAt=round(move.began_s * _MS), own=move.is_own)
    if move.destination is not None:
        data["destination"] = move.destination
    return data
