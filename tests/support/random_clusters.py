"""Random clusters for property tests: described as values, to be renamed, scaled and applied in any order.

What is drawn is written once, in `some_cluster`. Where the choices come from is another matter: Hypothesis varies and
shrinks them, but makes many clusters from few by changing a bit of each, so how often something holds among them says
little. A seeded generator draws each cluster independently, and the same ones in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from hypothesis import strategies as st
from support.builders import Load, averages, broker, bundle, owned, releasing, report

from loadmanager.core.domain.ownership import FREE, Ownership, Registration
from loadmanager.core.model.cluster_model import ClusterModel
from loadmanager.core.model.snapshot import Snapshot

T = TypeVar("T")
Name = Callable[[int], str]


@dataclass(frozen=True)
class SomeBroker:
    cpu: int
    topics: int
    persistent_enabled: bool
    incarnation: int


@dataclass(frozen=True)
class SomeBundle:
    """`owner` and `destination` are brokers' positions; `state` is what the record says; `dead`: of a former life."""

    namespace: int
    state: str
    owner: int
    destination: int | None
    dead: bool
    reported: bool
    recent: bool
    load: Load


@dataclass(frozen=True)
class SomeCluster:
    brokers: tuple[SomeBroker, ...]
    bundles: tuple[SomeBundle, ...]


class Chance(Protocol):
    """Source of random numbers. Ranges include both ends; the smallest number is the simplest."""

    def between(self, least: int, most: int) -> int: ...


@dataclass(frozen=True)
class Drawn:
    """By Hypothesis."""

    draw: st.DrawFn

    def between(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))


@dataclass(frozen=True)
class Seeded:
    """By a generator: nothing but its seed decides."""

    rng: np.random.Generator

    def between(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most, endpoint=True))


MOST_BROKERS, MOST_BUNDLES = 6, 25
CPU = (0, 0, 20, 50, 75, 85, 86, 99, 120)
FIGURES = (0.0, 0.0, 1.0, 3.0, 100.0, 5e5, 1e6, 1e7, 2e7, 7e7)
MOST = 10**8
STATES = ("Owned",) * 11 + ("Free", "Releasing")


def among(chance: Chance, options: Sequence[T]) -> T:
    """Choose one of these; the first is the simplest."""
    return options[chance.between(0, len(options) - 1)]


def seldom(chance: Chance, once_in: int) -> bool:
    return chance.between(1, once_in) == once_in


def some_broker(chance: Chance) -> SomeBroker:
    """Few serve no persistent topics: such a one is idle, and no bundle of these clusters may go there."""
    return SomeBroker(
        cpu=among(chance, CPU) if among(chance, [True, False]) else chance.between(0, 130),
        topics=among(chance, [0, 10, 50_000, 50_001]),
        persistent_enabled=not seldom(chance, 20),
        incarnation=chance.between(1, 3),
    )


def some_figure(chance: Chance) -> float:
    return among(chance, FIGURES) if among(chance, [True, False]) else float(chance.between(0, MOST))


def some_bundle(chance: Chance, brokers: int, *, settled: bool) -> SomeBundle:
    """Few are under way or waited for: a broker that has to do with one of those is let be."""
    return SomeBundle(
        namespace=chance.between(0, 2),
        state="Owned" if settled else among(chance, STATES),
        owner=chance.between(0, brokers - 1),
        destination=None if settled else among(chance, [None, chance.between(0, brokers - 1)]),
        dead=not settled and seldom(chance, 20),
        reported=settled or not seldom(chance, 15),
        recent=seldom(chance, 5),
        load=(some_figure(chance), some_figure(chance), some_figure(chance), some_figure(chance)),
    )


def some_cluster(
    chance: Chance, *, settled: bool = False, fewest_brokers: int = 1, fewest_bundles: int = 0
) -> SomeCluster:
    """With `settled` every bundle is owned and reported by its owner."""
    brokers = chance.between(fewest_brokers, MOST_BROKERS)
    return SomeCluster(
        tuple(some_broker(chance) for _ in range(brokers)),
        tuple(
            some_bundle(chance, brokers, settled=settled) for _ in range(chance.between(fewest_bundles, MOST_BUNDLES))
        ),
    )


@st.composite
def drawn(draw: st.DrawFn, make: Callable[[Chance], T]) -> T:
    """Result of `make` with choices that Hypothesis draws."""
    return make(Drawn(draw))


def clusters(
    *, settled: bool = False, fewest_brokers: int = 1, fewest_bundles: int = 0
) -> st.SearchStrategy[SomeCluster]:
    """See `some_cluster`."""
    return drawn(partial(some_cluster, settled=settled, fewest_brokers=fewest_brokers, fewest_bundles=fewest_bundles))


def broker_name(position: int) -> str:
    return f"broker-{position:03d}:8080"


def namespace_name(position: int) -> str:
    return f"tenant/ns-{position}"


@dataclass(frozen=True)
class Build:
    """Construction of a model from a description: names, a factor on all loads, and the order of input."""

    broker_name: Name = broker_name
    namespace_name: Name = namespace_name
    first_bundle: int = 0
    factor: float = 1.0
    backwards: bool = False

    def bundle_name(self, cluster: SomeCluster, position: int) -> str:
        return bundle(self.first_bundle + position, self.namespace_name(cluster.bundles[position].namespace))

    def registration(self, cluster: SomeCluster, position: int, *, dead: bool = False) -> Registration:
        return broker(self.broker_name(position), cluster.brokers[position].incarnation + 100 * dead)

    def ownership(self, cluster: SomeCluster, some: SomeBundle) -> Ownership:
        owner = self.registration(cluster, some.owner, dead=some.dead)
        if some.state == "Owned":
            return owned(owner)
        if some.state == "Free":
            return FREE
        elsewhere = (
            None if some.destination in (None, some.owner) else self.registration(cluster, some.destination or 0)
        )
        return releasing(owner, elsewhere)

    def snapshot(self, cluster: SomeCluster) -> Snapshot:
        model = ClusterModel()
        namespaces = sorted({some.namespace for some in cluster.bundles})
        for namespace in self.ordered(namespaces):
            positions = [i for i, some in enumerate(cluster.bundles) if some.namespace == namespace]
            names = [self.bundle_name(cluster, i) for i in self.ordered(positions)]
            entries = [self.ownership(cluster, cluster.bundles[i]) for i in self.ordered(positions)]
            model.set_namespace(self.namespace_name(namespace), names, entries)
        for i in self.ordered(range(len(cluster.bundles))):
            name = self.bundle_name(cluster, i)
            model.seed_bundle(name, averages(self.scaled(cluster.bundles[i].load), samples=3))
            if cluster.bundles[i].recent:
                model.mark_unloaded(name, 0.0)
        for position in self.ordered(range(len(cluster.brokers))):
            self._apply_report(model, cluster, position)
        return model.snapshot(0.0, 0.0)

    def _apply_report(self, model: ClusterModel, cluster: SomeCluster, position: int) -> None:
        some = cluster.brokers[position]
        reported = [i for i, each in enumerate(cluster.bundles) if each.reported and each.owner == position]
        loads = {self.bundle_name(cluster, i): self.scaled(cluster.bundles[i].load) for i in self.ordered(reported)}
        given = report(loads, cpu=some.cpu, topics=some.topics, persistent_enabled=some.persistent_enabled)
        model.apply_report(self.registration(cluster, position), given)

    def scaled(self, load: Load) -> Load:
        a, b, c, d = load
        return a * self.factor, b * self.factor, c * self.factor, d * self.factor

    def ordered(self, things: Sequence[int]) -> list[int]:
        return list(reversed(things)) if self.backwards else list(things)
