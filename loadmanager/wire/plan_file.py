"""Plan file, which anybody can verify: columns in numpy's `.npz` with JSON among them; docs/plan-file.md."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from loadmanager.core.planning.certificate.balancing_problem import BalancingProblem
from loadmanager.core.planning.certificate.bounds import Bound, Heaviest, Pigeonhole, Prices, Volume
from loadmanager.core.planning.certificate.minimum_moves import Relief
from loadmanager.core.planning.certificate.plan_certificate import (
    BOUND_NAMES,
    CertificateFigures,
    Certified,
    Proof,
    name_binding_bounds,
)
from loadmanager.core.planning.certificate.plan_verification import Claims, PlannedStep, owners_after
from loadmanager.core.protocol.plan_machine import KeptPlan
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.validation import parse_model

FORMAT_VERSION: Literal[1] = 1
_LARGEST_BYTES = 1 << 30
_RESAVE = "have the plan computed and saved again"
_RELIEFS = ("budget", "load", "moves")

_Columns = Mapping[str, npt.NDArray[Any]]
_MOST = 1e100
"""Larger numbers are refused: what is worked out of them would overflow."""
_Number = Annotated[float, Field(allow_inf_nan=False, ge=-_MOST, le=_MOST)]
_Count = Annotated[int, Field(ge=0, le=1 << 53)]
_Row = _Count


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="forbid", strict=True)


class _Step(_Part):
    bundle: str
    version: int
    source: tuple[str, int] = Field(strict=False)
    destination: tuple[str, int] = Field(strict=False)
    reason: str


class _Figures(_Part):
    level: _Number
    heat_before: _Number
    heat_after: _Number
    bound: _Number
    bound_in_budget: _Number
    noise_floor: _Number
    load_moved: _Number
    least_load: _Number
    bundles_moved: _Count
    least_bundles: _Count


class _Bound(_Part):
    """A bound; `brokers` are rows, the other fields depend on the kind."""

    kind: Literal["volume", "heaviest", "pigeonhole", "prices"]
    resource: _Row = 0
    brokers: list[_Row] = Field(default_factory=list)
    bundle: _Row = 0
    each: _Row = 0


class _Proof(_Part):
    bounds: list[_Bound]
    budget_peak: _Number
    load_peak: _Number
    moves_peak: _Number


class _Head(_Part):
    format: Literal["loadmanager plan"]
    format_version: Literal[1]
    cluster: str
    kind: str
    hash: str
    at: int
    epoch: int
    resources: list[str]
    brokers: list[str]
    steps: list[_Step]
    figures: _Figures
    bound_by: str
    gap: _Number
    load_gap: _Number | None
    proof: _Proof


@dataclass(frozen=True, slots=True, eq=False)
class PackedCertificate:
    """Certificate kept for a later plan file: its columns take less than half of the memory of the computation.
    `bundles` are the snapshot's own names.
    """

    figures: CertificateFigures
    proof: Proof
    bound_by: str
    brokers: Sequence[str]
    bundles: Sequence[str]
    resources: Sequence[str]
    columns: _Columns

    @classmethod
    def of(cls, certified: Certified) -> PackedCertificate:
        return cls(
            certified.figures,
            certified.proof,
            name_binding_bounds(certified),
            certified.brokers,
            certified.bundles,
            certified.resources,
            _columns_of(certified),
        )


def encode(plan: KeptPlan, packed: PackedCertificate) -> bytes:
    """Encode the plan file of a plan with this certificate."""
    head = _head_of(plan, packed).model_dump_json(by_alias=True).encode()
    texts = {"plan": head, "bundles": "\n".join(packed.bundles).encode()}
    written = BytesIO()
    columns = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    np.savez_compressed(written, allow_pickle=False, **columns, **packed.columns)
    return written.getvalue()


def _head_of(plan: KeptPlan, packed: PackedCertificate) -> _Head:
    figures, proof = packed.figures, packed.proof
    return _Head(
        format="loadmanager plan",
        format_version=FORMAT_VERSION,
        cluster=plan.cluster,
        kind=plan.kind,
        hash=plan.hash,
        at=plan.at_ms,
        epoch=plan.epoch,
        resources=list(packed.resources),
        brokers=list(packed.brokers),
        steps=[_Step.model_validate({**step.depends_on, "reason": step.reason.value}) for step in plan.steps],
        figures=_Figures(**asdict(figures)),
        bound_by=packed.bound_by,
        gap=figures.gap,
        load_gap=figures.load_gap,
        proof=_Proof(
            bounds=[_bound_as_json(bound) for bound in proof.bounds],
            budget_peak=proof.budget.peak,
            load_peak=proof.load.peak,
            moves_peak=proof.moves.peak,
        ),
    )


def _bound_as_json(bound: Bound) -> _Bound:
    kind = BOUND_NAMES[type(bound).__name__]
    match bound:
        case Volume(resource, brokers):
            more = {"resource": resource, "brokers": np.flatnonzero(brokers).tolist()}
        case Pigeonhole(resource, brokers, each):
            more = {"resource": resource, "brokers": np.flatnonzero(brokers).tolist(), "each": each}
        case Heaviest(bundle):
            more = {"bundle": bundle}
        case _:
            more = {}
    return _Bound.model_validate({"kind": kind, **more})


def _columns_of(certified: Certified) -> dict[str, npt.NDArray[Any]]:
    instance, proof = certified.problem, certified.proof
    columns: dict[str, npt.NDArray[Any]] = {
        "need": instance.need.astype(np.float32),
        "perNeed": instance.per_need.astype(np.float32),
        "owner": instance.owner.astype(np.int32),
        "classes": instance.classes.astype(np.int32),
        "mayOwn": instance.may_own,
        "cost": instance.cost.astype(np.float32),
        "sigma": certified.sigma.astype(np.float32),
    }
    for bound in proof.bounds:
        if isinstance(bound, Prices):
            columns["prices"] = bound.per_need
    for name, relief in zip(_RELIEFS, (proof.budget, proof.load, proof.moves), strict=True):
        columns[f"{name}Resource"] = relief.resource.astype(np.int8)
        columns[f"{name}Price"] = relief.price
    return columns


def decode(data: bytes) -> tuple[Certified, Claims]:
    """Decode a plan file, with `after` computed from its steps. Raises `InvalidRecordError`, which names the field and
    the fix.
    """
    columns = _unpack(data)
    head = parse_model(_Head, bytes(_column(columns, "plan", "u1", (-1,))), "plan")
    bundles = _names(columns)
    instance = _instance(columns, len(bundles), len(head.brokers), len(head.resources))
    sigma = _amounts(columns, "sigma", "f4", (len(bundles),))
    steps = [PlannedStep(each.bundle, each.version, each.source, each.destination) for each in head.steps]
    proof = _proof(columns, head.proof, instance)
    figures = CertificateFigures(**head.figures.model_dump())
    _unique("brokers", head.brokers)
    _unique("bundles", bundles)
    known = set(bundles)
    certified = Certified(instance, instance.owner, sigma, proof, figures, head.brokers, bundles, head.resources)
    after = owners_after(certified, [step for step in steps if step.bundle in known])
    claims = Claims(head.cluster, head.kind, head.hash, steps, head.bound_by, head.gap, head.load_gap)
    return Certified(instance, after, sigma, proof, figures, head.brokers, bundles, head.resources), claims


def _unpack(data: bytes) -> _Columns:
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            size = sum(each.file_size for each in archive.infolist())
        if size > _LARGEST_BYTES:
            raise InvalidRecordError(f"the file unpacks to {size} bytes, more than {_LARGEST_BYTES}: it is no plan")
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, ValueError, OSError, EOFError, KeyError, NotImplementedError) as error:
        raise InvalidRecordError(f"the file is no plan, or is cut off ({error}): {_RESAVE}") from None


def _column(columns: _Columns, name: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the column of this type and shape; -1 stands for any length."""
    found = columns.get(name)
    if not isinstance(found, np.ndarray):
        raise InvalidRecordError(f"{name}: the column is missing: {_RESAVE}")
    fits = len(found.shape) == len(shape) and all(m in (-1, n) for m, n in zip(shape, found.shape, strict=True))
    if found.dtype != np.dtype(kind) or not fits:
        wanted = f"{np.dtype(kind)} of shape {shape}"
        raise InvalidRecordError(f"{name}: it is {found.dtype} of shape {found.shape}, not {wanted}: {_RESAVE}")
    return found


def _amounts(columns: _Columns, name: str, kind: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    found = _column(columns, name, kind, shape).astype(np.float64)
    if not ((found >= 0) & (found <= _MOST)).all():
        raise InvalidRecordError(f"{name}: it has numbers that are negative, above {_MOST:g}, or none: {_RESAVE}")
    return found


def _rows(columns: _Columns, name: str, kind: str, length: int, first: int, end: int) -> npt.NDArray[np.int64]:
    """Return (length,) numbers from `first` on, below `end`."""
    found = _column(columns, name, kind, (length,)).astype(np.int64)
    if ((found < first) | (found >= end)).any():
        raise InvalidRecordError(f"{name}: it has rows below {first}, or beyond {end - 1}: {_RESAVE}")
    return found


def _names(columns: _Columns) -> list[str]:
    try:
        text = bytes(_column(columns, "bundles", "u1", (-1,))).decode()
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"bundles: {error}: {_RESAVE}") from None
    return text.split("\n") if text else []


def _unique(name: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidRecordError(f"{name}: a name is there twice: {_RESAVE}")


def _instance(columns: _Columns, bundles: int, brokers: int, resources: int) -> BalancingProblem:
    may_own = _column(columns, "mayOwn", "?", (-1, brokers))
    if not may_own.any(axis=1).all():
        raise InvalidRecordError(f"mayOwn: it has a class that no broker may own: {_RESAVE}")
    return BalancingProblem(
        _amounts(columns, "need", "f4", (bundles, resources)),
        _amounts(columns, "perNeed", "f4", (brokers, resources)),
        _rows(columns, "owner", "i4", bundles, -1, brokers),
        _rows(columns, "classes", "i4", bundles, 0, len(may_own)),
        may_own,
        _amounts(columns, "cost", "f4", (bundles,)),
    )


def _proof(columns: _Columns, written: _Proof, instance: BalancingProblem) -> Proof:
    bounds = (_bound(columns, each, f"proof.bounds[{k}]", instance) for k, each in enumerate(written.bounds))
    peaks = (written.budget_peak, written.load_peak, written.moves_peak)
    reliefs = (_relief(columns, name, peak, instance) for name, peak in zip(_RELIEFS, peaks, strict=True))
    return Proof(tuple(bounds), *reliefs)


def _relief(columns: _Columns, name: str, peak: float, instance: BalancingProblem) -> Relief:
    brokers, resources = instance.per_need.shape
    resource = _rows(columns, f"{name}Resource", "i1", brokers, 0, resources)
    return Relief(peak, resource, _amounts(columns, f"{name}Price", "f8", (brokers,)))


def _bound(columns: _Columns, written: _Bound, where: str, instance: BalancingProblem) -> Bound:
    brokers, resources = instance.per_need.shape
    ends = {"resource": resources, "bundle": max(len(instance.need), 1), "brokers": brokers}
    for name, end in ends.items():
        value = getattr(written, name)
        if any(row >= end for row in (value if isinstance(value, list) else [value])):
            raise InvalidRecordError(f"{where}.{name}: there are rows beyond {end - 1}: {_RESAVE}")
    place = np.isin(np.arange(brokers), written.brokers)
    match written.kind:
        case "volume":
            return Volume(written.resource, place)
        case "heaviest":
            return Heaviest(written.bundle)
        case "pigeonhole":
            return Pigeonhole(written.resource, place, written.each)
        case _:
            return Prices(_amounts(columns, "prices", "f8", (brokers, resources)))
