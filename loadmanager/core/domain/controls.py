"""An operator's hand on the balancer: brokers drained, excluded or waited for, bundles pinned or frozen, all stopped.

Controls hold until they are taken back; they are kept in the metadata store, so that they outlive every leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loadmanager.core.domain.names import BrokerId, namespace_of


class DrainOrder(NamedTuple):
    """Order to drain one process of a broker.

    `since_s`: seconds since 1970. `process`: the `startTimestamp` of the process; 0 if unknown, then it is any process.
    """

    since_s: float
    process: int = 0


@dataclass(frozen=True, slots=True)
class Controls:
    """All controls at one moment; times in seconds since 1970.

    `draining`: brokers whose bundles are given away; they get no new ones. `excluded`: brokers that get
    no new bundles and keep those they have. `held_off`: brokers that are restarting, and until when the bundles they
    had wait for them. `pinned`: the broker on which a bundle belongs; it is never shed from there. `frozen_bundles`:
    bundles that nothing moves by itself, and why. `frozen`: why nothing at all is shed, split or merged by itself, or
    nothing. `dry_run`: shedding decides and explains, and moves nothing.
    """

    draining: Mapping[BrokerId, DrainOrder] = field(default_factory=dict)
    excluded: frozenset[BrokerId] = frozenset()
    held_off: Mapping[BrokerId, float] = field(default_factory=dict)
    pinned: Mapping[str, BrokerId] = field(default_factory=dict)
    frozen_bundles: Mapping[str, str] = field(default_factory=dict)
    frozen: str = ""
    dry_run: bool = False

    def takes_bundles(self, broker: BrokerId) -> bool:
        """Whether the broker may be given bundles."""
        return broker not in self.draining and broker not in self.excluded

    def with_drain(self, broker: BrokerId, ordered: DrainOrder) -> Controls:
        """The same with this drain, unless that process of the broker is being drained already."""
        order = self.draining.get(broker)
        if order is not None and ordered.process in (0, order.process):
            return self
        return replace(self, draining={**self.draining, broker: ordered})

    def without_drain(self, broker: BrokerId, since_s: float | None = None) -> Controls:
        """The same without the drain of the broker; with `since_s` only if that is the drain."""
        order = self.draining.get(broker)
        if order is None or since_s not in (None, order.since_s):
            return self
        return replace(self, draining={each: order for each, order in self.draining.items() if each != broker})

    def without_namespace(self, namespace: str) -> Controls:
        """Nothing about its bundles."""
        pinned = {each: broker for each, broker in self.pinned.items() if namespace_of(each) != namespace}
        frozen = {each: why for each, why in self.frozen_bundles.items() if namespace_of(each) != namespace}
        return replace(self, pinned=pinned, frozen_bundles=frozen)

    def may_be_shed(self, bundle: str) -> bool:
        return bundle not in self.pinned and bundle not in self.frozen_bundles

    def find_hand(self, bundle: str) -> str | None:
        """What an operator did that keeps a bundle as it is, in words; None when nothing does."""
        if bundle in self.pinned:
            return f"pinned it to {self.pinned[bundle]}"
        if bundle in self.frozen_bundles:
            return f"froze it: {self.frozen_bundles[bundle]}"
        return None

    def holds(self, now_s: float) -> dict[BrokerId, float]:
        """The brokers for which the bundles that they had still wait, and for how many seconds; no draining one."""
        left_s = {broker: until_s - now_s for broker, until_s in self.held_off.items() if broker not in self.draining}
        return {broker: each for broker, each in left_s.items() if each > 0}


NO_CONTROLS = Controls()
