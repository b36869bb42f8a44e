"""Run benchmarks one after the other, each in its own process: `run.py [name ...]`, as in `run.py lookup`.

Their output goes to the terminal and, after each benchmark, into `RESULTS.md` beside this file. A missed target is
shown as missed and is no failure. A benchmark that cannot run is a failure, and the others still run.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from measure import describe_machine

_FOLDER = Path(__file__).parent
_PREFIX = "bench_"
_RESULTS = _FOLDER / "RESULTS.md"
_UNFINISHED = "could not be measured to the end"


def benchmarks() -> dict[str, Path]:
    """Return the modules `bench_<name>.py` of this folder by name."""
    return {path.stem.removeprefix(_PREFIX): path for path in sorted(_FOLDER.glob(f"{_PREFIX}*.py"))}


def main(names: list[str]) -> int:
    known = benchmarks()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    head = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {_commit()}\n{describe_machine()}"
    print(head, flush=True)
    results = ["# Results of `make bench`", _fenced(head)]
    failed = []
    for name in names or known:
        print(f"\n=== {name} ===", flush=True)
        output, status = _run(known[name])
        results += [f"## {name}", _fenced(output)]
        if status:
            failed.append(name)
            results.append(f"**{name} {_UNFINISHED}.**")
        _RESULTS.write_text("\n\n".join(results) + "\n", encoding="utf-8")
    if failed:
        print(f"\n{_UNFINISHED}: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(script: Path) -> tuple[str, int]:
    """Run a benchmark and show its output line by line; return the output and the exit status."""
    lines = []
    with subprocess.Popen([sys.executable, "-u", str(script)], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return "\n".join(lines), process.returncode


def _commit() -> str:
    """Return the short commit of the checkout, with `-dirty` after a change, or `unknown`."""
    command = ["git", "-C", str(_FOLDER), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _fenced(text: str) -> str:
    return f"```\n{text.strip()}\n```"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
