"""Placement of peeled bundles: largest first, to the broker where a convex potential grows least.

The potential of a broker is the sum over its resources of exp(40 (heat - target)): nearly full resources become
expensive, so bundles go where their needs complement others'. Bundles with few eligible brokers go first. The heaviest
are tried against all brokers, one by one. Light ones are placed in parallel: the coldest brokers are dealt out like
cards, so that each bundle is tried against its own hand, from coldest to warmest, without collisions. A bundle that
finds none within the target is tried against all.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_STEEPNESS = 40.0
_HEAVIEST = 128
"""Number of bundles placed one by one."""
_HAND = 64
"""Hand size: brokers tried per light bundle."""
_NOT = 1e30


def refill(draft: Draft, rows: Rows, most: int) -> Rows:
    """Return a broker (n,) for each bundle, `NOBODY` if it would be above the target with it, and for all remaining
    ones once `most` have failed.
    """
    destinations = _Refill(draft, rows, most).run()
    while (given_away := _at_home_again(draft.at[rows], destinations)).any():
        destinations[given_away] = NOBODY
    return destinations


def _at_home_again(sources: Rows, destinations: Rows) -> BoolArray:
    """Return a mask (n,) of bundles placed on a giver that has no room as some of its own stay."""
    return np.asarray((destinations >= 0) & np.isin(destinations, sources[destinations < 0]))


class _Refill:
    """State of the placement. The topic limit counts as a broker's last resource: at the target when no topic may be
    added.

    `heat` (R + 1, M) is without unplaced bundles, `steep` (R + 1, M) the potential; `need` (n, R + 1).
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
        """Place on the best of all brokers, if one stays within the target."""
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
        """Place each on the best broker of its hand, as many in parallel as there are hands; return the unplaced."""
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
