"""Where the bundles go that leave hot brokers: the largest first, to where a convex potential grows least with them.

The potential of a broker is the sum over its resources of exp(40 (heat - target)): what is nearly full becomes dear, so
a bundle goes where its needs are what others need less. Those that few brokers may own go first. The heaviest are
weighed against all brokers, one after the other. The light ones go together: the coldest brokers are dealt to them like
cards, so that each is weighed against as many of its own, from the coldest to the warmest, and no two meet. Whoever
would get none of these within the target is weighed against all.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_STEEPNESS = 40.0
_HEAVIEST = 128
"""How many go one after the other."""
_HAND = 64
"""To how many brokers a light one is weighed."""
_NOT = 1e30


def refill(draft: Draft, rows: Rows, most: int) -> Rows:
    """A broker (n,) for each of the bundles, `NOBODY` where it would be above the target with it; and for all that are
    left once that was so for `most` of them.
    """
    destinations = _Refill(draft, rows, most).run()
    while (given_away := _at_home_again(draft.at[rows], destinations)).any():
        destinations[given_away] = NOBODY
    return destinations


def _at_home_again(sources: Rows, destinations: Rows) -> BoolArray:
    """(n,): who would go to a broker that keeps some of its own after all, and has no room any more."""
    return np.asarray((destinations >= 0) & np.isin(destinations, sources[destinations < 0]))


class _Refill:
    """As a broker's last resource counts how many topics it may still be given: the target, when there are none left.

    `heat` (R + 1, M) is without the bundles that are not placed, `steep` (R + 1, M) the potential; `need` (n, R + 1).
    """

    def __init__(self, draft: Draft, rows: Rows, most: int) -> None:
        task = draft.task
        brokers = len(draft.heat)
        need = task.loads.need[rows]
        heat = draft.heat.copy()
        for column, each in enumerate(need.T):
            heat[:, column] -= np.bincount(draft.at[rows], each, brokers) * draft.per_need[:, column]
        self.target = draft.target
        self.left = most
        self.need = np.column_stack([need, task.topics[rows]])
        self.heat = np.vstack([heat.T, np.zeros(brokers)])
        self.per_need = np.vstack([draft.per_need.T, draft.target / np.maximum(draft.topics_left, 1)])
        self.steep = self._potential(self.heat)
        self.takers = task.takers & (draft.topics_left > 0)
        self.owners, self.classes = task.owners, task.classes[rows]
        self.destination: Rows = np.full(len(rows), NOBODY, dtype=np.intp)
        all_need = task.loads.need.sum(axis=0)
        self.dominant = (need / np.where(all_need > 0, all_need, 1.0)).max(axis=1, initial=0.0)

    def run(self) -> Rows:
        heaviest_first = np.argsort(-self.dominant, kind="stable")
        is_heavy = np.zeros(len(heaviest_first), dtype=bool)
        is_heavy[heaviest_first[:_HEAVIEST]] = True
        classes = np.unique(self.classes)
        for kind in classes[np.argsort(self.owners[classes].sum(axis=1), kind="stable")].tolist():
            may_own = self.takers & self.owners[kind]
            those = heaviest_first[self.classes[heaviest_first] == kind]
            for each in those[is_heavy[those]].tolist():
                self._place(each, may_own)
            for each in self._deal(those[~is_heavy[those]], np.flatnonzero(may_own)):
                self._place(each, may_own)
        return self.destination

    def _potential(self, heat: FloatArray) -> FloatArray:
        return np.asarray(np.exp(_STEEPNESS * np.minimum(heat - self.target, 1.0)))

    def _put(self, bundles: Rows, brokers: Rows, heat: FloatArray) -> None:
        self.destination[bundles] = brokers
        self.heat[:, brokers] = heat
        self.steep[:, brokers] = self._potential(heat)

    def _place(self, bundle: int, may_own: BoolArray) -> None:
        """To the best of all brokers, if one stays within the target."""
        if not self.left:
            return
        more = self.need[bundle][:, None] * self.per_need
        heat = self.heat + more
        dearer = (np.expm1(_STEEPNESS * more) * self.steep).sum(axis=0)
        dearer[~may_own | (heat.max(axis=0) > self.target)] = _NOT
        best = int(dearer.argmin())
        if dearer[best] >= _NOT:
            self.left -= 1
        else:
            self._put(np.array([bundle]), np.array([best]), heat[:, best][:, None])

    def _deal(self, bundles: Rows, brokers: Rows) -> list[int]:
        """Each to the best broker of its hand, as many at a time as there are hands; who found none there."""
        without: list[int] = []
        while len(bundles):
            hottest = self.heat[:, brokers].max(axis=0)
            room = brokers[hottest < self.target - ROUNDING]
            hands = min(len(room) // _HAND, len(bundles))
            if not hands:
                break
            room = room[np.argsort(self.heat[:, room].max(axis=0), kind="stable")]
            hand = room[: hands * _HAND].reshape(_HAND, hands).T
            now, bundles = bundles[:hands], bundles[hands:]
            more = self.need[now].T[:, :, None] * self.per_need[:, hand]
            heat = self.heat[:, hand] + more
            dearer = (np.expm1(_STEEPNESS * more) * self.steep[:, hand]).sum(axis=0)
            dearer[heat.max(axis=0) > self.target] = _NOT
            best, those = dearer.argmin(axis=1), np.arange(hands)
            found = those[dearer[those, best] < _NOT]
            without += now[dearer[those, best] >= _NOT].tolist()
            self._put(now[found], hand[found, best[found]], heat[:, found, best[found]])
        return [*without, *bundles.tolist()]
