"""Operator controls: brokers drained, excluded or held off, bundles pinned or frozen, the balancer frozen.

Controls apply until they are removed. They are kept in the metadata store, so they survive a change of the leader.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from loadmanager.core.domain.names import BrokerId, namespace_of


class DrainOrder(NamedTuple):
    """Order to drain one process of a broker.

    `since_s`: seconds since 1970. `process`: the `startTimestamp` of the process; 0, if unknown, matches any.
    """

    since_s: float
    process: int = 0


class ReturnOrder(NamedTuple):
    """Order to return `bundles` to a broker once its drain of `since_s` has ended."""

    since_s: float
    bundles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Controls:
    """All controls at one moment; times in seconds since 1970.

    `draining`: brokers that hand over all their bundles and receive none. `returning`: the bundles that brokers get
    back after their drains. `excluded`: brokers that receive no bundles and keep their own. `held_off`: restarting
    brokers, with the time until which their bundles wait for them. `pinned`: the home broker of a bundle; it is never
    shed from there. `frozen_bundles`: bundles that are never moved automatically, with the reason. `frozen`: the reason
    why nothing is shed, split or merged automatically; empty if not frozen. `dry_run`: shedding decides and explains,
    but moves nothing.
    """

    draining: Mapping[BrokerId, DrainOrder] = field(default_factory=dict)
    returning: Mapping[BrokerId, ReturnOrder] = field(default_factory=dict)
    excluded: frozenset[BrokerId] = frozenset()
    held_off: Mapping[BrokerId, float] = field(default_factory=dict)
    pinned: Mapping[str, BrokerId] = field(default_factory=dict)
    frozen_bundles: Mapping[str, str] = field(default_factory=dict)
    frozen: str = ""
    dry_run: bool = False

    def takes_bundles(self, broker: BrokerId) -> bool:
        """Return True if the broker may receive bundles."""
        return broker not in self.draining and broker not in self.excluded

    @property
    def homes(self) -> Mapping[str, BrokerId]:
        """The broker of each bundle that is pinned, or that returns after a drain that has ended."""
        if not self.returning:
            return self.pinned
        ended = {broker: order for broker, order in self.returning.items() if broker not in self.draining}
        return {bundle: broker for broker, order in ended.items() for bundle in order.bundles} | dict(self.pinned)

    def with_drain(self, broker: BrokerId, ordered: DrainOrder, bundles: Iterable[str] = ()) -> Controls:
        """Add a drain, unless that process of the broker is being drained already.

        `bundles` return after it, as do those that have not returned from an earlier drain.
        """
        order, earlier = self.draining.get(broker), self.returning.get(broker)
        bundles = sorted({*bundles, *(earlier.bundles if earlier else ())})
        returning = {**self.returning, broker: ReturnOrder(ordered.since_s, (*bundles,))} if bundles else self.returning
        if order is not None and ordered.process in (0, order.process):
            return replace(self, returning=returning)
        return replace(self, draining={**self.draining, broker: ordered}, returning=returning)

    def without_drain(self, broker: BrokerId, since_s: float | None = None) -> Controls:
        """Remove the drain of the broker and its return order; with `since_s` only if it is that drain."""
        order = self.draining.get(broker)
        kept = self if since_s is not None else self.without_returned(broker)
        if order is None or since_s not in (None, order.since_s):
            return kept
        return replace(kept, draining={each: order for each, order in self.draining.items() if each != broker})

    def without_returned(self, broker: BrokerId, bundles: Container[str] | None = None) -> Controls:
        """Remove these bundles from the broker's return order; all of them if `bundles` is None."""
        order = self.returning.get(broker)
        left = () if order is None or bundles is None else (*(b for b in order.bundles if b not in bundles),)
        returning = {each: order for each, order in self.returning.items() if each != broker}
        if order is not None and left:
            returning[broker] = order._replace(bundles=left)
        return replace(self, returning=returning)

    def without_namespace(self, namespace: str) -> Controls:
        """Remove all controls of the namespace's bundles."""
        pinned = {each: broker for each, broker in self.pinned.items() if namespace_of(each) != namespace}
        frozen = {each: why for each, why in self.frozen_bundles.items() if namespace_of(each) != namespace}
        return replace(self, pinned=pinned, frozen_bundles=frozen)

    def may_be_shed(self, bundle: str) -> bool:
        return bundle not in self.pinned and bundle not in self.frozen_bundles

    def find_control(self, bundle: str) -> str | None:
        """Find the operator control that keeps a bundle in place, as text; None if there is none."""
        if bundle in self.pinned:
            return f"pinned it to {self.pinned[bundle]}"
        if bundle in self.frozen_bundles:
            return f"froze it: {self.frozen_bundles[bundle]}"
        return None

    def holds(self, now_s: float) -> dict[BrokerId, float]:
        """Return the held brokers, except draining ones, with the seconds until their bundles stop waiting."""
        left_s = {broker: until_s - now_s for broker, until_s in self.held_off.items() if broker not in self.draining}
        return {broker: each for broker, each in left_s.items() if each > 0}


NO_CONTROLS = Controls()
