"""Operator config as one readable document, for export, version control and import.

Temporary state is not part of it: owners, averages, the memory of strategies, drains, and brokers that are held off. An
import leaves absent kinds unchanged, and replaces kinds that are present. Namespaces are only created.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from pydantic import Field, TypeAdapter

from loadmanager.core.domain.bundles import MAX_BUNDLES, HashFunction, NamespaceBundles, equal_boundaries
from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import InvalidNameError
from loadmanager.core.domain.policies import InvalidPolicyError
from loadmanager.errors import InvalidRecordError
from loadmanager.wire.control_records import ControlsData, StandingControls, controls_of, standing_data_of
from loadmanager.wire.learned_records import LearnedData
from loadmanager.wire.policy_records import FailureDomain, IsolationData, Name, policies_of
from loadmanager.wire.store_records import parse_boundaries
from loadmanager.wire.validation import Namespace, WireModel, parse_json, parse_model

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

    def value(self) -> NamespaceBundles:
        """Return the bundles; raises `InvalidNameError`."""
        if (self.bundles is None) == (self.boundaries is None):
            raise InvalidNameError("expected either bundles or boundaries")
        cut = equal_boundaries(self.bundles or 1) if self.boundaries is None else parse_boundaries(self.boundaries)
        return NamespaceBundles(cut, self.hash_function)


class OperatorConfigDocument(WireModel, extra="forbid"):
    """The document. Times are text, for people."""

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


class _Versioned(WireModel):
    format: str
    version: int


@dataclass(frozen=True, slots=True)
class StoredOperatorConfig:
    """Operator config; None for a kind that is absent from the document. Without temporary controls."""

    namespaces: Mapping[str, NamespaceBundles] | None = None
    isolation: Mapping[str, IsolationData] | None = None
    failure_domains: Mapping[str, FailureDomain] | None = None
    anti_affinity: Mapping[str, str] | None = None
    controls: Controls | None = None
    configuration: Mapping[str, str] | None = None
    learned: LearnedData | None = None


class Change(WireModel):
    """Change by an import, made or planned; `differs`: an existing namespace has other bundles, and keeps them."""

    kind: str
    name: str
    change: Literal["create", "change", "remove", "differs"]


class Changes(WireModel):
    """Answer to an import: its changes, made or planned."""

    changes: list[Change]


def standing(controls: Controls) -> Controls:
    """Return the controls without temporary ones."""
    return replace(controls, draining={}, returning={}, held_off={})


def document_of(operator_config: StoredOperatorConfig, exported_at: str, exported_from: str) -> OperatorConfigDocument:
    shapes = operator_config.namespaces
    return OperatorConfigDocument(
        exported_at=exported_at,
        exported_from=exported_from,
        namespaces=None if shapes is None else {name: NamespaceShape.of(cut) for name, cut in sorted(shapes.items())},
        isolation_policies=_sort(operator_config.isolation),
        failure_domains=_sort(operator_config.failure_domains),
        anti_affinity_groups=_sort(operator_config.anti_affinity),
        controls=None if operator_config.controls is None else standing_data_of(operator_config.controls),
        configuration=_sort(operator_config.configuration),
        learned=operator_config.learned,
    )


def decode_operator_config(data: bytes, where: str) -> StoredOperatorConfig:
    """Decode and check a document; raises `InvalidRecordError`, which names `where`, the field and the fault."""
    about = parse_model(_Versioned, data, where)
    if about.format != FORMAT:
        raise InvalidRecordError(f"{where}: format {about.format[:40]!r}: expected {FORMAT!r}")
    if about.version != VERSION:
        raise InvalidRecordError(f"{where}: version {about.version}: this loadmanager reads version {VERSION}")
    document = parse_json(_DOCUMENT, data, where)
    namespaces = None if document.namespaces is None else dict(_cuts(document.namespaces, where))
    isolation, domains = document.isolation_policies, document.failure_domains
    try:
        policies_of(isolation or {}, domains or {}, {})
    except InvalidPolicyError as error:
        raise InvalidRecordError(f"{where}: {error}") from None
    return StoredOperatorConfig(
        namespaces,
        isolation,
        domains,
        document.anti_affinity_groups,
        None if document.controls is None else controls_of(cast("ControlsData", document.controls)),
        document.configuration,
        document.learned,
    )


def find_changes(current: StoredOperatorConfig, wanted: StoredOperatorConfig) -> list[Change]:
    """Return the changes from the `current` config to the `wanted` one, kind by kind; empty if they are equal."""
    return [
        *_find_new_namespaces(current.namespaces or {}, wanted.namespaces or {}),
        *_find("isolation policy", current.isolation, wanted.isolation),
        *_find("failure domain", current.failure_domains, wanted.failure_domains),
        *_find("anti-affinity group", current.anti_affinity, wanted.anti_affinity),
        *_find(
            "control", _by_subject(current.controls), None if wanted.controls is None else _by_subject(wanted.controls)
        ),
        *_find("setting", current.configuration, wanted.configuration),
        *_find("learned", *({"all": each} if each else None for each in (current.learned, wanted.learned))),
    ]


def _find_new_namespaces(
    current: Mapping[str, NamespaceBundles], wanted: Mapping[str, NamespaceBundles]
) -> Iterator[Change]:
    for name, cut in sorted(wanted.items()):
        if name not in current:
            yield Change(kind="namespace", name=name, change="create")
        elif current[name] != cut:
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


def _by_subject(controls: Controls | None) -> dict[str, object]:
    """Return each control by its subject, without temporary ones."""
    if controls is None:
        return {}
    return {
        **{f"excluded {broker}": True for broker in controls.excluded},
        **{f"pinned {bundle}": broker for bundle, broker in controls.pinned.items()},
        **{f"frozen {bundle}": why for bundle, why in controls.frozen_bundles.items()},
        **({"frozen": controls.frozen} if controls.frozen else {}),
        **({"dryRun": True} if controls.dry_run else {}),
    }


def _cuts(shapes: Mapping[str, NamespaceShape], where: str) -> Iterator[tuple[str, NamespaceBundles]]:
    for name, shape in shapes.items():
        try:
            yield name, shape.value()
        except InvalidNameError as error:
            raise InvalidRecordError(f"{where}: namespaces.{name}: {error}") from None


def _sort(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else dict(sorted(values.items()))


_DOCUMENT = TypeAdapter(OperatorConfigDocument)
