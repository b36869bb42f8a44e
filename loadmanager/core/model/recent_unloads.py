"""When bundles were last unloaded, and brokers last gave one away: such a bundle stays where it is for a while."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from loadmanager.core.domain.names import BrokerId


class UnloadTimes:
    """In seconds since 1970, of bundles and of the brokers that they were taken from."""

    def __init__(self) -> None:
        self.of_bundles: dict[str, float] = {}
        self.from_brokers: dict[BrokerId, float] = {}

    def mark(self, bundle: str, at_s: float, source: BrokerId | None) -> None:
        self.of_bundles[bundle] = at_s
        if source is not None:
            self.from_brokers[source] = at_s

    def add(self, bundles: Mapping[str, float], sources: Mapping[BrokerId, float]) -> None:
        """Add what a former leader noted, where nothing later is known."""
        for name, at_s in bundles.items():
            self.of_bundles[name] = max(at_s, self.of_bundles.get(name, at_s))
        for source, at_s in sources.items():
            self.from_brokers[source] = max(at_s, self.from_brokers.get(source, at_s))

    def forget_before(self, oldest_s: float, registered: Container[BrokerId]) -> None:
        """Forget what is older, except of brokers that are registered."""
        self.of_bundles = {name: at_s for name, at_s in self.of_bundles.items() if at_s >= oldest_s}
        self.from_brokers = {
            broker: at_s for broker, at_s in self.from_brokers.items() if at_s >= oldest_s or broker in registered
        }

    def inherit(self, pairs: Iterable[tuple[str, str]], former: Iterable[str]) -> None:
        """Of each pair the first takes the place of the second, one of the `former` bundles, which are no more."""
        for heir, name in pairs:
            at_s = self.of_bundles.get(name)
            if at_s is not None:
                self.of_bundles[heir] = max(at_s, self.of_bundles.get(heir, at_s))
        for name in former:
            self.of_bundles.pop(name, None)
