"""Specifications of simulated brokers and namespaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmanager.core.domain.bundles import equal_boundaries, validate_boundaries
from loadmanager.core.domain.names import BrokerId, BundleRange, NamespaceName

_EIGHT_CORES = (800.0, 16_384.0, 8_192.0, 10_000_000.0, 10_000_000.0)
"""Eight cores, 16 GiB of heap, 8 GiB of direct memory, and 10 Gbit/s each way."""


@dataclass(frozen=True, slots=True)
class BrokerSpec:
    """Broker: its capacity per resource, in the units of `lab.simulate.broker_cost`, and the speed of its CPU."""

    id: BrokerId
    capacity: tuple[float, ...] = _EIGHT_CORES
    speed: float = 1.0
    version: str = "1.0.0"
    load_manager_class: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceSpec:
    """Namespace: the boundaries of its bundles, and the owner of each; None: chosen by placement.

    Without `owners` the planner places all bundles. Raises `InvalidNameError` or `ValueError`.
    """

    name: str
    boundaries: tuple[int, ...]
    owners: tuple[BrokerId | None, ...] | None = None

    def __post_init__(self) -> None:
        NamespaceName.parse_any(self.name)
        validate_boundaries(self.boundaries)
        if self.owners is not None and len(self.owners) != len(self):
            raise ValueError(f"owners of {self.name}: expected one for each of {len(self)} bundles")

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    @classmethod
    def of(cls, name: str, bundles: int, owners: Sequence[BrokerId | None] | None = None) -> NamespaceSpec:
        """Build a namespace with this number of equal bundles."""
        return cls(name, equal_boundaries(bundles), None if owners is None else tuple(owners))

    def ranges(self) -> list[BundleRange]:
        return [BundleRange(*ends) for ends in zip(self.boundaries, self.boundaries[1:], strict=False)]

    def bundle_names(self) -> list[str]:
        return [f"{self.name}/{each}" for each in self.ranges()]
