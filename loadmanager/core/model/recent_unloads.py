"""Grace period after unloads: the last unload time of each bundle and of each source broker."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from loadmanager.core.domain.names import BrokerId


class UnloadTimes:
    """Unload times in seconds since 1970, of bundles and of source brokers."""

    def __init__(self) -> None:
        self.of_bundles: dict[str, float] = {}
        self.from_brokers: dict[BrokerId, float] = {}

    def mark(self, bundle: str, at_s: float, source: BrokerId | None) -> None:
        self.of_bundles[bundle] = at_s
        if source is not None:
            self.from_brokers[source] = at_s

    def add(self, bundles: Mapping[str, float], sources: Mapping[BrokerId, float]) -> None:
        """Add a former leader's times, where nothing later is known."""
        for name, at_s in bundles.items():
            self.of_bundles[name] = max(at_s, self.of_bundles.get(name, at_s))
        for source, at_s in sources.items():
            self.from_brokers[source] = max(at_s, self.from_brokers.get(source, at_s))

    def forget_before(self, oldest_s: float, registered: Container[BrokerId]) -> None:
        """Drop older entries, except of registered brokers."""
        self.of_bundles = {name: at_s for name, at_s in self.of_bundles.items() if at_s >= oldest_s}
        self.from_brokers = {
            broker: at_s for broker, at_s in self.from_brokers.items() if at_s >= oldest_s or broker in registered
        }

    def inherit(self, pairs: Iterable[tuple[str, str]], former: Iterable[str]) -> None:
        """Pass times on in each pair (new bundle, one of the `former` bundles), and drop those of the former."""
        for heir, name in pairs:
            at_s = self.of_bundles.get(name)
            if at_s is not None:
                self.of_bundles[heir] = max(at_s, self.of_bundles.get(heir, at_s))
        for name in former:
            self.of_bundles.pop(name, None)
