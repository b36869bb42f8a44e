"""What a history taught: the load that a bundle is taken to carry until it has been reported for the first time.

Differs from Pulsar, which takes every such bundle to carry the same. So does this one where nothing was learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmanager.core.load import DEFAULT_LOAD, BundleAverages, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """`loads` are by namespace, (4,) of one bundle; `run` and `at_ms` say what it was learned by, and when."""

    loads: Mapping[str, FloatArray] = field(default_factory=dict)
    run: str = ""
    at_ms: int = 0

    def load_of(self, namespace: str) -> FloatArray:
        """What a bundle of the namespace without any history is taken to carry."""
        return self.loads.get(namespace, DEFAULT_LOAD)

    def no_history(self, namespace: str) -> BundleAverages:
        load = self.load_of(namespace)
        return BundleAverages(load, load, 0, 0, 0)


NOTHING_LEARNED = Learned()
