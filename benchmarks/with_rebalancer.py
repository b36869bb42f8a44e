"""Level one instance with Meta's Rebalancer: `with_rebalancer.py FILE SECONDS`; see bench_solvers.py for the files.

It is a local search with single moves and swaps. The first goal is that no resource is above the target, the second is
the least moved load.
"""

from __future__ import annotations

import sys

import numpy as np
from rebalancer import ProblemSolver

_MOVED = 1e-3
"""Weight of the moved load. It decides only between equally balanced assignments."""
_RELATIVE_TO_USAGE = 3
"""`BalanceSpecBoundType.RELATIVE_UTIL`: the bindings accept only numbers, although their types are names."""


def main(file: str, seconds: str) -> None:
    with np.load(file) as given:
        need, capacity, owner = given["need"], given["capacity"], given["owner"]
        share, target = given["share"], float(given["target"])
    bundles = [f"b{row}" for row in range(len(need))]
    brokers = [f"m{row}" for row in range(len(capacity))]
    solver = ProblemSolver(service_name="rebalancer", service_scope="bench")
    solver.disable_solution_summary()
    solver.set_object_name("bundle").set_container_name("broker")
    owned = [np.flatnonzero(owner == row).tolist() for row in range(len(brokers))]
    solver.set_assignment({name: [bundles[row] for row in rows] for name, rows in zip(brokers, owned, strict=True)})
    for resource in range(need.shape[1]):
        name = f"r{resource}"
        solver.add_object_dimension(name, dict(zip(bundles, need[:, resource].tolist(), strict=True)))
        solver.add_container_dimension(name, dict(zip(brokers, capacity[:, resource].tolist(), strict=True)))
        limits = {"boundType": _RELATIVE_TO_USAGE, "upperBound": target}
        even = {"name": f"even {name}", "scope": "broker", "dimension": name, **limits}
        solver.add_goal({"balanceSpec": even}, weight=1.0, tuple_pos=0)
    solver.add_object_dimension("share", dict(zip(bundles, share.tolist(), strict=True)))
    moved = {"name": "moved", "scope": "broker", "dimension": "share"}
    solver.add_goal({"minimizeMovementSpec": moved}, weight=_MOVED, tuple_pos=1)
    kinds: list[dict[str, object]] = [{"singleMoveTypeSpec": {}}, {"swapMoveTypeSpec": {}}]
    solver.add_solver({"localSearchSolverSpec": {"solveTime": int(float(seconds)), "moveTypeList": kinds}})
    found = solver.solve()["assignment"]
    np.savez(f"{file}.out.npz", owner=np.array([int(found[name][1:]) for name in bundles]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
