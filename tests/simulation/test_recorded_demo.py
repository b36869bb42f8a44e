"""A demo that was recorded (`loadmanager demo --duration 60`), and the world of it under the settings it had.

The world cannot be equal: a decision that falls otherwise leads to others, and the demo puts its hot spots on bundles
that one broker has just then, which in the world are elsewhere. The archive holds the tables that a world is made of.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from loadmanager.cli.replay_command import find_start, settings_at
from loadmanager.history.reader import History
from loadmanager.lab.whatif.range_figures import Comparison, what_if

_RECORDED = Path(__file__).parent / "recorded-demo.tar.xz"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("demo")
    with tarfile.open(_RECORDED) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(folder)
    history = History(str(folder))
    start = find_start(history, None)
    return what_if(history, start.at_ms, None, settings_at(history, start, None), {}, "", None, lambda _: None)


def test_the_load_was_as_uneven_as_in_the_world_of_it(compared: Comparison) -> None:
    assert compared.observed.imbalance == pytest.approx(1.72, abs=0.01)
    assert compared.as_recorded.imbalance == pytest.approx(compared.observed.imbalance, rel=0.15)
    assert compared.as_recorded.worst_usage == pytest.approx(compared.observed.worst_usage, rel=0.15)


def test_as_much_load_moved_as_in_the_world_of_it(compared: Comparison) -> None:
    assert compared.observed.moves == 35
    assert compared.as_recorded.moved_mib_per_s == pytest.approx(compared.observed.moved_mib_per_s, rel=0.25)
    assert compared.as_recorded.moves >= compared.observed.moves / 2.2


def test_settings_that_are_not_changed_change_nothing(compared: Comparison) -> None:
    assert compared.changed == compared.as_recorded
    assert compared.step_s == 1.0
