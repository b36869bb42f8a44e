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

SAFE = 1 - 1e-9

Array = npt.NDArray[Any]


class Plan:
    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            self.columns: dict[str, Any] = {name: file[name] for name in file.files}
        self.says: dict[str, Any] = json.loads(bytes(self.columns["plan"]))
        self.need, self.per_need, self.cost, self.sigma = (
            self.columns[name].astype(float) for name in ("need", "perNeed", "cost", "sigma")
        )
        self.owner, self.classes, self.may_own = (self.columns[name] for name in ("owner", "classes", "mayOwn"))
        with np.errstate(divide="ignore"):
            self.capacity = 1 / self.per_need
        self.counts = self.owner >= 0
        self.stays = self.counts & self.may_own[self.classes, self.owner]
        self.after = self.owner.copy()
        bundles = {name: row for row, name in enumerate(bytes(self.columns["bundles"]).decode().split("\n"))}
        brokers = {name: row for row, name in enumerate(self.says["brokers"])}
        for step in self.says["steps"]:
            row, to = bundles[step["bundle"]], brokers.get(step["destination"][0], -1)
            assert self.after[row] == brokers.get(step["source"][0], -1), f"{step['bundle']} is not its source's"
            assert to < 0 or self.may_own[self.classes[row], to], f"{step['bundle']} may not go there"
            self.after[row] = to

    def hash(self) -> str:
        keys = ("bundle", "version", "source", "destination")
        content = {"kind": self.says["kind"], "steps": [{key: s[key] for key in keys} for s in self.says["steps"]]}
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def load(self, owner: Array) -> Array:
        brokers = len(self.per_need)
        return np.stack([np.bincount(owner + 1, each, brokers + 1)[1:] for each in self.need.T], axis=1)

    def peak(self, owner: Array) -> float:
        return float((self.load(owner) * self.per_need).max())

    def bound(self, proof: dict[str, Any]) -> float:
        kind, r, place = proof["kind"], proof["resource"], np.zeros(len(self.per_need), bool)
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

    def figures(self) -> dict[str, float]:
        """All that the file says, but for the noise floor, which proves nothing."""
        proof, level = self.says["proof"], max(0.02, (self.need[self.counts].sum(0) / self.capacity.sum(0)).max())
        bound, peak = max(self.bound(each) for each in proof["bounds"]), self.peak(self.after)
        moved = self.counts & (self.after != self.owner)
        load, ones = float(self.cost[moved].sum()), np.ones(len(self.cost))
        in_budget = self.least("budget", proof["budgetPeak"], self.cost, whole=False) > load
        return {
            "level": level,
            "heatBefore": self.peak(self.owner) / level,
            "heatAfter": peak / level,
            "bound": bound / level,
            "boundInBudget": max(bound, proof["budgetPeak"] * in_budget) / level,
            "loadMoved": load,
            "leastLoad": self.least("load", max(proof["loadPeak"], peak), self.cost, whole=False),
            "bundlesMoved": int(moved.sum()),
            "leastBundles": self.least("moves", max(proof["movesPeak"], peak), ones, whole=True),
        }


def main(path: str) -> int:
    plan = Plan(path)
    assert plan.hash() == plan.says["hash"], "the hash is another one"
    wrong = [
        f"{name}: {plan.says['figures'][name]} is said, {is_so} follows"
        for name, is_so in plan.figures().items()
        if not math.isclose(plan.says["figures"][name], is_so, rel_tol=1e-9, abs_tol=1e-12)
    ]
    print("\n".join(wrong) or "it is what it says")
    return len(wrong) and 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
