"""Operator controls in `/loadbalance/policies/controls`, in our own JSON, and the bodies that change them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from loadmanager.core.domain.controls import Controls, DrainOrder, ReturnOrder
from loadmanager.core.domain.names import BrokerId, BundleName, parse_broker_id
from loadmanager.wire.validation import STRICT, Milliseconds, WireModel, parse_json

LONGEST_HOLD_S = 86_400
_MS = 1000
_MOST_CHARACTERS = 1_000


def _bundle(text: str) -> str:
    return str(BundleName.parse(text))


Broker = Annotated[str, AfterValidator(parse_broker_id)]
Bundle = Annotated[str, AfterValidator(_bundle)]
Why = Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS)]


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected one line of printable characters")
    return text


@with_config(STRICT)
class DrainData(TypedDict):
    """A drain: its begin, and the `startTimestamp` of the drained broker process."""

    since: Milliseconds
    startTimestamp: Milliseconds


@with_config(STRICT)
class ReturnData(TypedDict):
    """Bundles that return to a broker after its drain, and the begin of the drain."""

    since: Milliseconds
    bundles: list[Bundle]


@with_config(STRICT)
class StandingControls(TypedDict, total=False):
    """Controls without temporary ones; an absent one is not active."""

    excluded: list[Broker]
    pinned: dict[Bundle, Broker]
    frozenBundles: dict[Bundle, Why]
    frozen: Annotated[str, Field(max_length=_MOST_CHARACTERS)]
    dryRun: bool


@with_config(STRICT)
class ControlsData(StandingControls, total=False):
    """All controls. Times in milliseconds since 1970."""

    draining: dict[Broker, DrainData]
    returning: dict[Broker, ReturnData]
    heldOff: dict[Broker, Milliseconds]


_ADAPTER = TypeAdapter(ControlsData)


def decode_controls(data: bytes, where: str) -> Controls:
    """Decode the controls; raises `InvalidRecordError`, which names `where` and the faulty field."""
    return controls_of(parse_json(_ADAPTER, data, where))


def encode_controls(controls: Controls) -> bytes:
    return _ADAPTER.dump_json(data_of(controls))


def controls_of(data: ControlsData) -> Controls:
    return Controls(
        draining={
            BrokerId(broker): DrainOrder(drain["since"] / _MS, drain["startTimestamp"])
            for broker, drain in data.get("draining", {}).items()
        },
        returning={
            BrokerId(broker): ReturnOrder(order["since"] / _MS, (*order["bundles"],))
            for broker, order in data.get("returning", {}).items()
        },
        excluded=frozenset(BrokerId(broker) for broker in data.get("excluded", ())),
        held_off={BrokerId(broker): ms / _MS for broker, ms in data.get("heldOff", {}).items()},
        pinned={bundle: BrokerId(broker) for bundle, broker in data.get("pinned", {}).items()},
        frozen_bundles=dict(data.get("frozenBundles", {})),
        frozen=data.get("frozen", ""),
        dry_run=data.get("dryRun", False),
    )


def data_of(controls: Controls) -> ControlsData:
    """Encode all controls, including inactive ones."""
    return ControlsData(
        draining={
            broker: DrainData(since=round(order.since_s * _MS), startTimestamp=order.process)
            for broker, order in sorted(controls.draining.items())
        },
        returning={
            broker: ReturnData(since=round(order.since_s * _MS), bundles=[*order.bundles])
            for broker, order in sorted(controls.returning.items())
        },
        heldOff={broker: round(at_s * _MS) for broker, at_s in sorted(controls.held_off.items())},
        **standing_data_of(controls),
    )


def standing_data_of(controls: Controls) -> StandingControls:
    """Encode the controls that are not temporary."""
    return StandingControls(
        excluded=sorted(controls.excluded),
        pinned=dict(sorted(controls.pinned.items())),
        frozenBundles=dict(sorted(controls.frozen_bundles.items())),
        frozen=controls.frozen,
        dryRun=controls.dry_run,
    )


class Reasoned(WireModel, extra="forbid"):
    """Body of a freeze: the reason, which is shown to everybody."""

    reason: Annotated[Why, AfterValidator(_printable)]


class HoldOff(WireModel, extra="forbid"):
    """Body of a hold-off: the time in seconds for which the broker's bundles wait for it."""

    for_s: Annotated[float, Field(gt=0, le=LONGEST_HOLD_S, allow_inf_nan=False)]


class Pin(WireModel, extra="forbid"):
    """Body of a pin: the broker of the bundle."""

    broker: Broker
