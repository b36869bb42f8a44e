"""Destinations of the selected bundles: largest first, to the broker whose potential increases least.

The potential of a broker is the sum over its resources of exp(40 (heat - target)). It grows steeply near the target, so
bundles go to brokers with room for the resources that they need. Bundles with few eligible brokers come first. The
heaviest ones are compared with all brokers, one by one. Light ones are placed in parallel: the brokers with room, by
heat, are divided into disjoint sets of 64, a set per bundle. If none of its set fits, a bundle is compared with all.
"""

from __future__ import annotations

import numpy as np

from loadmanager.core.model.load import BoolArray, FloatArray
from loadmanager.core.model.snapshot import NOBODY
from loadmanager.core.strategies.level.search_task import ROUNDING, Draft, Rows

_STEEPNESS = 40.0
_HEAVY_BUNDLES = 128
"""Number of bundles placed one by one."""
_CHOICES = 64
"""Number of brokers compared per light bundle."""
_IMPOSSIBLE = 1e30


def choose_destinations(draft: Draft, rows: Rows, most: int) -> Rows:
    """Return the destination (n,) of each bundle, `NOBODY` if all would exceed the target. After `most` such bundles
    the others get `NOBODY` too.
    """
    destinations = _Destinations(draft, rows, most).run()
    while (given_away := _on_full_givers(draft.at[rows], destinations)).any():
        destinations[given_away] = NOBODY
    return destinations


def _on_full_givers(sources: Rows, destinations: Rows) -> BoolArray:
    """Return a mask (n,) of the bundles placed on a giver some of whose own bundles found no destination."""
    return np.asarray((destinations >= 0) & np.isin(destinations, sources[destinations < 0]))


class _Destinations:
    """State of the choice. The topic limit is the last resource of a broker, at the target when no topic may be added.

    `heat` (R + 1, M) excludes bundles that are not placed yet, `steep` (R + 1, M) is its potential; `need` (n, R + 1).
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
        self.receivers = task.receivers & (draft.topics_left > 0)
        self.owners, self.classes = task.owners, task.classes[rows]
        self.destination: Rows = np.full(len(rows), NOBODY, dtype=np.intp)
        all_need = task.loads.need.sum(axis=0)
        self.dominant = (need / np.where(all_need > 0, all_need, 1.0)).max(axis=1, initial=0.0)

    def run(self) -> Rows:
        heaviest_first = np.argsort(-self.dominant, kind="stable")
        is_heavy = np.zeros(len(heaviest_first), dtype=bool)
        is_heavy[heaviest_first[:_HEAVY_BUNDLES]] = True
        classes = np.unique(self.classes)
        for kind in classes[np.argsort(self.owners[classes].sum(axis=1), kind="stable")].tolist():
            may_own = self.receivers & self.owners[kind]
            those = heaviest_first[self.classes[heaviest_first] == kind]
            for each in those[is_heavy[those]].tolist():
                self._place(each, may_own)
            for each in self._place_in_parallel(those[~is_heavy[those]], np.flatnonzero(may_own)):
                self._place(each, may_own)
        return self.destination

    def _potential(self, heat: FloatArray) -> FloatArray:
        return np.asarray(np.exp(_STEEPNESS * np.minimum(heat - self.target, 1.0)))

    def _put(self, bundles: Rows, brokers: Rows, heat: FloatArray) -> None:
        self.destination[bundles] = brokers
        self.heat[:, brokers] = heat
        self.steep[:, brokers] = self._potential(heat)

    def _place(self, bundle: int, may_own: BoolArray) -> None:
        """Place the bundle on the best broker, if one stays within the target."""
        if not self.left:
            return
        more = self.need[bundle][:, None] * self.per_need
        heat = self.heat + more
        increase = (np.expm1(_STEEPNESS * more) * self.steep).sum(axis=0)
        increase[~may_own | (heat.max(axis=0) > self.target)] = _IMPOSSIBLE
        best = int(increase.argmin())
        if increase[best] >= _IMPOSSIBLE:
            self.left -= 1
        else:
            self._put(np.array([bundle]), np.array([best]), heat[:, best][:, None])

    def _place_in_parallel(self, bundles: Rows, brokers: Rows) -> list[int]:
        """Place each bundle on the best broker of its own set, in parallel; return the bundles not placed."""
        without: list[int] = []
        while len(bundles):
            hottest = self.heat[:, brokers].max(axis=0)
            by_heat = np.argsort(hottest, kind="stable")
            room = brokers[by_heat[hottest[by_heat] < self.target - ROUNDING]]
            sets = min(len(room) // _CHOICES, len(bundles))
            if not sets:
                break
            choices = room[: sets * _CHOICES].reshape(_CHOICES, sets).T
            now, bundles = bundles[:sets], bundles[sets:]
            more = self.need[now].T[:, :, None] * self.per_need[:, choices]
            heat = self.heat[:, choices] + more
            increase = (np.expm1(_STEEPNESS * more) * self.steep[:, choices]).sum(axis=0)
            increase[heat.max(axis=0) > self.target] = _IMPOSSIBLE
            best, those = increase.argmin(axis=1), np.arange(sets)
            found = those[increase[those, best] < _IMPOSSIBLE]
            without += now[increase[those, best] >= _IMPOSSIBLE].tolist()
            self._put(now[found], choices[found, best[found]], heat[:, found, best[found]])
        return [*without, *bundles.tolist()]
