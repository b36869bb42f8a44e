"""Runs every benchmark, each in a process of its own, one after the other: `run.py [name ...]`, as in `run.py lookup`.

A target that is missed is shown as missed and is no failure; a benchmark that cannot run is one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from measure import describe_machine

_FOLDER = Path(__file__).parent
_PREFIX = "bench_"


def benchmarks() -> dict[str, Path]:
    """Every module `bench_<name>.py` beside this one, by name."""
    return {path.stem.removeprefix(_PREFIX): path for path in sorted(_FOLDER.glob(f"{_PREFIX}*.py"))}


def main(names: list[str]) -> int:
    known = benchmarks()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print(describe_machine(), flush=True)
    failed = []
    for name in names or known:
        print(f"\n=== {name} ===", flush=True)
        if subprocess.run([sys.executable, str(known[name])], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\ncould not be measured to the end: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
