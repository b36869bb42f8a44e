from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import patience

SAID = """
import subprocess, sys
from loadmanager.pipeline.noise import without_noise

NOISE = [
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties",
    'Setting default log level to "WARN".',
    "26/11/23 01:58:05 WARN NativeCodeLoader: Unable to load native-hadoop library",
]
TALK = "import sys; [print(line, file=sys.stderr, flush=True) for line in sys.argv[1:]]; sys.stdin.read()"
fails = len(sys.argv) > 1
try:
    with without_noise():
        command = [sys.executable, "-c", TALK, *NOISE, "Error: Could not create the Java Virtual Machine."]
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
        if fails:
            child.communicate(b"")
            raise RuntimeError
    print("between", file=sys.stderr, flush=True)
    child.communicate(b"")
except RuntimeError:
    print("failed", file=sys.stderr)
else:
    while "Virtual" not in open(sys.argv[0] + ".err").read():
        pass
"""


@pytest.mark.parametrize(("arguments", "last"), [([], "between"), (["fails"], "failed")])
def test_noise_is_left_out_and_what_matters_is_not(tmp_path: Path, arguments: list[str], last: str) -> None:
    script, errors = tmp_path / "said.py", tmp_path / "said.py.err"
    script.write_text(SAID)
    with errors.open("w") as error:
        subprocess.run(
            [sys.executable, str(script), *arguments],
            stderr=error,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            check=True,
            timeout=patience(),
        )
    said = errors.read_text().splitlines()
    assert sorted(said) == sorted(["Error: Could not create the Java Virtual Machine.", last])
