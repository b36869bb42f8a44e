"""Checks the file of a plan with numpy alone, by docs/plan-file.md: `python verify_plan.py FILE`. It uses nothing of
loadmanager, so that whoever does not trust that can trust this, or write another.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

SAFE, MOST = 1 - 1e-9, 1e100
RELIEFS = ("budget", "load", "moves")
TYPES = {
    "need": "f4 bundles resources", "perNeed": "f4 brokers resources", "owner": "i4 bundles", "classes": "i4 bundles",
    "mayOwn": "? classes brokers", "cost": "f4 bundles", "sigma": "f4 bundles", "prices": "f8 brokers resources",
    "budgetResource": "i1 brokers", "loadResource": "i1 brokers", "movesResource": "i1 brokers",
    "budgetPrice": "f8 brokers", "loadPrice": "f8 brokers", "movesPrice": "f8 brokers",
}  # fmt: skip
"""The columns that are numbers."""

Array = npt.NDArray[Any]


class Plan:
    """Whatever is wrong with the form of the file raises an exception."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.columns: dict[str, Any] = {name: file[name] for name in file.files}
        self.says: dict[str, Any] = json.loads(bytes(self.columns["plan"]))
        assert (self.says["format"], self.says["formatVersion"]) == ("loadmanager plan", 1), "of another format"
        self.bundles = rows_of(bytes(self.columns["bundles"]).decode().split("\n"))
        self.brokers = rows_of(self.says["brokers"])
        self.check_columns()
        self.need, self.per_need, self.cost, self.sigma = (
            self.columns[name].astype(float) for name in ("need", "perNeed", "cost", "sigma")
        )
        self.owner, self.classes, self.may_own = (self.columns[name] for name in ("owner", "classes", "mayOwn"))
        with np.errstate(divide="ignore"):
            self.capacity = 1 / self.per_need
        self.counts = self.owner >= 0
        self.stays = self.counts & self.may_own[self.classes, self.owner]
        self.after = self.owner.copy()
        self.take_steps()

    def check_columns(self) -> None:
        lengths = {"bundles": len(self.bundles), "brokers": len(self.brokers), "resources": len(self.says["resources"])}
        lengths["classes"] = len(self.columns["mayOwn"])
        ends = {"owner": "brokers", "classes": "classes"} | {f"{name}Resource": "resources" for name in RELIEFS}
        for name, column in self.columns.items():
            if name in TYPES:
                kind, *shape = TYPES[name].split()
                assert column.dtype == np.dtype(kind), f"{name}: it is not {kind}"
                assert column.shape == tuple(lengths[each] for each in shape), f"{name}: it has another shape"
            if name in ends:
                assert ((column >= -(name == "owner")) & (column < lengths[ends[name]])).all(), f"{name}: no such row"
            elif name in TYPES:
                assert ((column >= 0) & (column.astype(float) <= MOST)).all(), (
                    f"{name}: it has numbers that it must not have"
                )
        assert self.columns["mayOwn"].any(axis=1).all(), "mayOwn: a class that nobody may own"

    def take_steps(self) -> None:
        moved = set()
        for step in self.says["steps"]:
            name, row, to = step["bundle"], self.bundles[step["bundle"]], self.brokers[step["destination"][0]]
            assert name not in moved, f"{name} is moved twice"
            assert self.after[row] == self.brokers.get(step["source"][0], -1), f"{name} is not its source's"
            assert self.may_own[self.classes[row], to], f"{name} may not go there"
            self.after[row] = to
            moved.add(name)

    def hash(self) -> str:
        keys = ("bundle", "version", "source", "destination")
        content = {name: self.says[name] for name in ("cluster", "kind") if self.says[name]}
        content["steps"] = [{key: s[key] for key in keys} for s in self.says["steps"]]
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def load(self, owner: Array) -> Array:
        brokers = len(self.per_need)
        return np.stack([np.bincount(owner + 1, each, brokers + 1)[1:] for each in self.need.T], axis=1)

    def peak(self, owner: Array) -> float:
        return float((self.load(owner) * self.per_need).max())

    def bound(self, proof: dict[str, Any]) -> float:
        kind, r, place = proof["kind"], proof["resource"], np.zeros(len(self.per_need), bool)
        assert 0 <= r < self.need.shape[1], "no such resource"
        assert 0 <= proof["bundle"] < len(self.need), "no such bundle"
        assert all(0 <= row < len(place) for row in proof["brokers"]), "no such broker"
        place[proof["brokers"]] = True
        confined = self.counts & ~(self.may_own & ~place).any(axis=1)[self.classes]
        if kind == "volume":
            return SAFE * float(self.need[confined, r].sum() / self.capacity[place, r].sum())
        if kind == "pigeonhole":
            sizes = np.sort(self.need[confined, r])[::-1][: proof["each"] * place.sum() + 1]
            assert len(sizes) == proof["each"] * place.sum() + 1, "too few bundles"
            return SAFE * float(sizes[-proof["each"] - 1 :].sum() * self.per_need[place, r].min())
        if kind == "heaviest":
            allowed = self.per_need[self.may_own[self.classes[proof["bundle"]]]]
            return SAFE * float((self.need[proof["bundle"]] * allowed).max(axis=1).min() * self.counts[proof["bundle"]])
        prices, total = self.columns["prices"], 0.0
        for row, allowed in enumerate(self.may_own):
            need, offers = self.need[self.counts & (self.classes == row)], np.unique(prices[allowed], axis=0)
            total += sum((part @ offers.T).min(axis=1).sum() for part in np.array_split(need, len(need) // 1000 + 1))
        return SAFE * float(total / (prices * np.where(prices > 0, self.capacity, 0)).sum())

    def least(self, name: str, peak: float, cost: Array, *, whole: bool) -> float:
        r, price = self.columns[f"{name}Resource"], self.columns[f"{name}Price"]
        excess = self.load(np.where(self.stays, self.owner, -1)) - peak * (2 - SAFE) * self.capacity
        rows = np.flatnonzero(self.stays & (self.may_own.sum(axis=1)[self.classes] > 1))
        at = self.owner[rows]
        worth, asked = price[at] * self.need[rows, r[at]], price * np.maximum(excess[np.arange(len(price)), r], 0)
        pays = worth > cost[rows]
        saved, of_those = (np.bincount(at, each * pays, len(price)) for each in (worth - cost[rows], worth))
        costs = np.maximum(asked - saved - 1e-10 * (asked + of_those), 0)
        forced = cost[self.counts & ~self.stays].sum()
        return float(np.ceil(costs * SAFE - 1e-9).sum() + forced if whole else SAFE * (costs.sum() + forced))

    def noise_floor(self, level: float) -> float:
        """The highest, over resources, of the heat of the hottest broker in the mean."""
        need, found = self.need[self.counts], [0.0]
        varying, having = np.square(need * self.sigma[self.counts, None]).sum(0), self.capacity.sum(0)
        for r, total in enumerate(need.sum(0)):
            if 0 < having[r] < np.inf and total > 0:
                deviation = np.sqrt(varying[r] / (self.capacity[:, r] / having[r])) / total
                found.append(total / having[r] / level * (1 + highest_of(deviation)))
        return max(found)

    def figures(self) -> dict[str, Any]:
        """All that the file says of the plan."""
        proof, level = self.says["proof"], max(0.02, (self.need[self.counts].sum(0) / self.capacity.sum(0)).max())
        bound, peak = self.highest_bound(), self.peak(self.after)
        moved = self.counts & (self.after != self.owner)
        load, ones = float(self.cost[moved].sum()), np.ones(len(self.cost))
        in_budget = self.least("budget", proof["budgetPeak"], self.cost, whole=False) > load
        least = self.least("load", max(proof["loadPeak"], peak), self.cost, whole=False)
        return {
            "level": level,
            "heatBefore": self.peak(self.owner) / level,
            "heatAfter": peak / level,
            "bound": bound / level,
            "boundInBudget": max(bound, proof["budgetPeak"] * in_budget) / level,
            "noiseFloor": self.noise_floor(level),
            "loadMoved": load,
            "leastLoad": least,
            "bundlesMoved": int(moved.sum()),
            "leastBundles": self.least("moves", max(proof["movesPeak"], peak), ones, whole=True),
            "gap": peak / bound if bound > 0 else 1.0,
            "loadGap": load / least if least > 0 else None if load else 1.0,
        }

    def faults(self) -> list[str]:
        says, figures = {**self.says, **self.says["figures"]}, self.figures()
        wrong = [
            f"{name}: {says[name]} is said, {follows} follows"
            for name, follows in figures.items()
            if not is_equal(says[name], follows)
        ]
        highest = [each["kind"] for each in says["proof"]["bounds"] if is_equal(self.bound(each), self.highest_bound())]
        if says["boundBy"] not in highest:
            wrong.append(f"boundBy: {says['boundBy']} is said, {' or '.join(highest)} makes the bound")
        return wrong if says["hash"] == self.hash() else [*wrong, "hash: it is not that of the steps"]

    def highest_bound(self) -> float:
        return max((self.bound(each) for each in self.says["proof"]["bounds"]), default=0.0)


def rows_of(names: list[str]) -> dict[str, int]:
    assert len(set(names)) == len(names), "a name is there twice"
    return {name: row for row, name in enumerate(names)}


def is_equal(said: float | None, follows: float | None) -> bool:
    if said is None or follows is None:
        return said is follows
    return abs(said) <= MOST and math.isclose(said, follows, rel_tol=1e-9, abs_tol=1e-12)


def highest_of(deviation: Array) -> float:
    """The mean of the highest of independent normal numbers with these standard deviations, of two digits each."""
    largest = deviation.max()
    if largest < 1 - SAFE:
        return 0.0
    deviation = np.maximum(deviation, largest * 1e-6)
    scale = 10.0 ** (np.floor(np.log10(deviation)) - 1)
    distinct, times = np.unique(np.round(deviation / scale) * scale, return_counts=True)
    at = np.linspace(-8 * largest, 8 * largest, 512)
    below = np.exp((times * np.log(normal(at[:, None] / distinct))).sum(axis=1))
    return max(0.0, float(np.trapezoid(np.where(at >= 0, 1 - below, -below), at)))


def normal(at: Array) -> Array:
    """How much of the normal distribution is below these points (Abramowitz and Stegun, 26.2.17)."""
    t = 1 / (1 + 0.2316419 * np.abs(at))
    powers = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    above = np.exp(-at * at / 2) / np.sqrt(2 * np.pi) * powers
    return np.asarray(np.clip(np.where(at >= 0, 1 - above, above), 1e-300, 1.0))


def main(path: str) -> int:
    faults = Plan(path).faults()
    print("\n".join(faults) or "it is what it says")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
