"""Minimize the highest usage of one instance, as a mixed-integer program: `with_highs.py FILE SECONDS`
(bench_solvers.py).

Moves are free. The output has the owners, and the bound that was proven within that time.
"""

from __future__ import annotations

import sys

import highspy
import numpy as np


def main(file: str, seconds: str) -> None:
    with np.load(file) as given:
        need, capacity = given["need"], given["capacity"]
    program = highspy.Highs()
    for option, value in (("output_flag", False), ("time_limit", float(seconds)), ("threads", 1)):
        program.setOptionValue(option, value)
    highest = program.addVariable(lb=0.0)
    at = [[program.addBinary() for _ in range(len(capacity))] for _ in range(len(need))]
    for places in at:
        program.addConstr(sum(places) == 1)
    for broker, limits in enumerate(capacity.tolist()):
        for resource, limit in enumerate(limits):
            used = sum(each * places[broker] for each, places in zip(need[:, resource].tolist(), at, strict=True))
            program.addConstr(used <= limit * highest)
    program.minimize(highest)
    values = np.array(program.getSolution().col_value)[1:].reshape(len(need), len(capacity))
    bound = program.getInfo().mip_dual_bound
    np.savez(f"{file}.out.npz", owner=values.argmax(axis=1), bound=np.array(bound))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
