"""Set-up of the processes that serve."""

from __future__ import annotations

import subprocess
import sys

READING = """
import gc
from loadmanager.cli.service_runner import reading_cluster

with reading_cluster():
    print(gc.get_threshold()[0], gc.get_freeze_count())
print(gc.get_threshold()[0], gc.get_freeze_count() > 0)
"""


def test_garbage_collector_is_relaxed_while_reading_and_freezes_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", READING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["500000", "0", "2000", "True"]
