"""Operator config as one readable document, for export, version control and import.

Temporary state is not part of it: owners, averages, the memory of strategies, drains, and brokers that are held off. An
import leaves absent kinds unchanged, and replaces kinds that are present. Namespaces are only created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from loadmanager.core.domain.bundles import MAX_BUNDLES, HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.names import InvalidNameError
from loadmanager.core.domain.policies import InvalidPolicyError
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.control_records import StandingControls
from loadmanager.wire.learned_records import LearnedData
from loadmanager.wire.policy_records import FailureDomain, IsolationData, Name, policies_of
from loadmanager.wire.store_records import parse_boundaries
from loadmanager.wire.validation import Namespace, WireModel, parse_model

FORMAT = "loadmanager export"
VERSION = 1


class NamespaceShape(WireModel, extra="forbid"):
    """Bundles of a namespace: a number of equal `bundles`, or `boundaries`."""

    bundles: Annotated[int, Field(ge=1, le=MAX_BUNDLES)] | None = None
    boundaries: Annotated[list[str], Field(min_length=2, max_length=MAX_BUNDLES + 1)] | None = None
    hash_function: HashFunction = HashFunction.MURMUR3_32

    @classmethod
    def of(cls, cut: NamespaceBundles) -> NamespaceShape:
        if cut.boundaries == equal_boundaries(len(cut)):
            return cls(bundles=len(cut), hash_function=cut.hash_function)
        return cls(boundaries=[f"0x{each:08x}" for each in cut.boundaries], hash_function=cut.hash_function)

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        self.value()
        return self

    def value(self) -> NamespaceBundles:
        """Return the bundles; raises `InvalidNameError`."""
        if (self.bundles is None) == (self.boundaries is None):
            raise InvalidNameError("expected either bundles or boundaries")
        cut = equal_boundaries(self.bundles or 1) if self.boundaries is None else parse_boundaries(self.boundaries)
        return NamespaceBundles(cut, self.hash_function)


class OperatorConfigDocument(WireModel, extra="forbid"):
    """Operator config; None for a kind that is absent. Times are text, for people."""

    format: Literal["loadmanager export"] = "loadmanager export"
    version: Literal[1] = 1
    exported_at: str = ""
    exported_from: str = ""
    namespaces: dict[Namespace, NamespaceShape] | None = None
    isolation_policies: dict[Name, IsolationData] | None = None
    failure_domains: dict[Name, FailureDomain] | None = None
    anti_affinity_groups: dict[Namespace, Name] | None = None
    controls: StandingControls | None = None
    configuration: dict[Name, str] | None = None
    learned: LearnedData | None = None

    @field_validator("namespaces", "isolation_policies", "failure_domains", "anti_affinity_groups", "configuration")
    @classmethod
    def _sort(cls, values: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if values is None else dict(sorted(values.items()))


class _Versioned(WireModel):
    format: str
    version: int


class Change(WireModel):
    """Change by an import, made or planned; `differs`: an existing namespace has other bundles, and keeps them."""

    kind: str
    name: str
    change: Literal["create", "change", "remove", "differs"]


class Changes(WireModel):
    """Answer to an import: its changes, made or planned."""

    changes: list[Change]


def decode_operator_config(data: bytes, where: str) -> OperatorConfigDocument:
    """Decode and check a document; raises `InvalidRecordError`, which names `where`, the field and the fault."""
    about = parse_model(_Versioned, data, where)
    if about.format != FORMAT:
        raise InvalidRecordError(f"{where}: format {about.format[:40]!r}: expected {FORMAT!r}")
    if about.version != VERSION:
        raise InvalidRecordError(f"{where}: version {about.version}: this loadmanager reads version {VERSION}")
    document = parse_model(OperatorConfigDocument, data, where)
    try:
        policies_of(document.isolation_policies or {}, document.failure_domains or {}, {})
    except InvalidPolicyError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    return document


def find_changes(current: OperatorConfigDocument, wanted: OperatorConfigDocument) -> list[Change]:
    """Return the changes from the `current` config to the `wanted` one, kind by kind; empty if they are equal."""
    return [
        *_find_new_namespaces(current.namespaces or {}, wanted.namespaces or {}),
        *_find("isolation policy", current.isolation_policies, wanted.isolation_policies),
        *_find("failure domain", current.failure_domains, wanted.failure_domains),
        *_find("anti-affinity group", current.anti_affinity_groups, wanted.anti_affinity_groups),
        *_find(
            "control", *(None if each is None else _by_subject(each) for each in (current.controls, wanted.controls))
        ),
        *_find("setting", current.configuration, wanted.configuration),
        *_find("learned", *({"all": each} if each else None for each in (current.learned, wanted.learned))),
    ]


def _find_new_namespaces(
    current: Mapping[str, NamespaceShape], wanted: Mapping[str, NamespaceShape]
) -> Iterator[Change]:
    for name, shape in wanted.items():
        if name not in current:
            yield Change(kind="namespace", name=name, change="create")
        elif current[name].value() != shape.value():
            yield Change(kind="namespace", name=name, change="differs")


def _find(kind: str, current: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None) -> Iterator[Change]:
    if wanted is None:
        return
    current = current or {}
    for name in sorted(current.keys() | wanted.keys()):
        if name not in wanted:
            yield Change(kind=kind, name=name, change="remove")
        elif name not in current:
            yield Change(kind=kind, name=name, change="create")
        elif current[name] != wanted[name]:
            yield Change(kind=kind, name=name, change="change")


def _by_subject(controls: StandingControls) -> dict[str, object]:
    """Return each active control by its subject."""
    return {
        **{f"excluded {broker}": True for broker in controls.get("excluded", ())},
        **{f"pinned {bundle}": broker for bundle, broker in controls.get("pinned", {}).items()},
        **{f"frozen {bundle}": why for bundle, why in controls.get("frozenBundles", {}).items()},
        **({"frozen": controls["frozen"]} if controls.get("frozen") else {}),
        **({"dryRun": True} if controls.get("dryRun") else {}),
    }
