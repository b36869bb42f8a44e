"""Random clusters for property tests: described as values, to be renamed, scaled and applied in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st
from support.builders import Load, averages, broker, bundle, owned, releasing, report

from loadmanager.core.cluster import ClusterModel
from loadmanager.core.ownership import FREE, Ownership, Registration
from loadmanager.core.snapshot import Snapshot

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


FIGURES = st.sampled_from([0.0, 0.0, 1.0, 3.0, 100.0, 5e5, 1e6, 1e7, 2e7, 7e7]) | st.integers(0, 10**8).map(float)


def seldom(chance: int = 5) -> st.SearchStrategy[bool]:
    """True once in so many times."""
    return st.sampled_from([False] * (chance - 1) + [True])


def brokers() -> st.SearchStrategy[SomeBroker]:
    return st.builds(
        SomeBroker,
        cpu=st.sampled_from([0, 0, 20, 50, 75, 85, 86, 99, 120]) | st.integers(0, 130),
        topics=st.sampled_from([0, 10, 50_000, 50_001]),
        persistent_enabled=seldom().map(lambda it_is: not it_is),
        incarnation=st.integers(1, 3),
    )


@st.composite
def clusters(
    draw: st.DrawFn,
    most_brokers: int = 6,
    *,
    settled: bool = False,
    fewest_brokers: int = 1,
    fewest_bundles: int = 0,
) -> SomeCluster:
    """With `settled` every bundle is owned and reported by its owner."""
    some_brokers = draw(st.lists(brokers(), min_size=fewest_brokers, max_size=most_brokers))
    position = st.integers(0, len(some_brokers) - 1)
    some_bundles = st.builds(
        SomeBundle,
        namespace=st.integers(0, 2),
        state=st.just("Owned") if settled else st.sampled_from(["Owned"] * 6 + ["Free", "Releasing"]),
        owner=position,
        destination=st.none() if settled else st.none() | position,
        dead=seldom(10).map(lambda it_is: it_is and not settled),
        reported=seldom().map(lambda it_is: settled or not it_is),
        recent=seldom(),
        load=st.tuples(FIGURES, FIGURES, FIGURES, FIGURES),
    )
    return SomeCluster(tuple(some_brokers), tuple(draw(st.lists(some_bundles, min_size=fewest_bundles, max_size=25))))


def broker_name(position: int) -> str:
    return f"broker-{position:03d}:8080"


def namespace_name(position: int) -> str:
    return f"tenant/ns-{position}"


@dataclass(frozen=True)
class Build:
    """How a described cluster becomes a model: its names, a factor on all loads, and the order things come in."""

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
