"""What tasks have, and what they are given."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.history.files import HOUR_MS
from loadmanager.pipeline.file_bytes import OwnFiles
from loadmanager.pipeline.making import runs, together
from loadmanager.pipeline.units import Grain, Unit, unit_at


@given(st.lists(st.integers(0, 10)), st.integers(1, 20))
def test_as_many_are_together_as_are_not_too_much_or_one(sizes: list[int], most: int) -> None:
    groups = list(together(sizes, float, most))
    assert [each for group in groups for each in group] == sizes
    assert all(sum(group) <= most or len(group) == 1 for group in groups)
    for group, following in pairwise(groups):
        assert sum(group) + following[0] > most


@pytest.mark.parametrize(
    ("grain", "hours", "expected"),
    [
        ("hour", [], []),
        ("hour", [3], [[3]]),
        ("hour", [3, 4, 7], [[3, 4], [7]]),
        ("day", [3, 7, 25], [[3, 7, 25]]),
        ("day", [3, 7, 49], [[3, 7], [49]]),
    ],
)
def test_hours_go_together_between_which_is_none_of_another_unit(
    grain: Grain, hours: list[int], expected: list[list[int]]
) -> None:
    units = {unit_at(hour * HOUR_MS, grain) for hour in hours}
    assert list(runs(hours, units, grain)) == expected


def test_an_hour_without_anything_of_a_unit_that_is_made_does_not_part_them() -> None:
    units = {Unit(number, "hour") for number in range(3, 8)}
    assert list(runs([3, 7], units, "hour")) == [[3, 7]]


def written(folder: Path, names: Iterable[str]) -> list[str]:
    paths = [folder / "table" / "write" / "part=a" / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    return list(map(str, paths))


def test_files_of_this_machine_are_opened_when_they_are_asked_for(tmp_path: Path) -> None:
    here, gone, closed = written(tmp_path, ["here", "gone", "closed"])
    files = OwnFiles([here, gone, closed])
    Path(gone).unlink()
    Path(closed).unlink()
    Path(closed).mkdir()
    assert list(files) == [f"table/write/part=a/{name}" for name in ("here", "gone", "closed")]
    assert len(files) == 3
    assert files["table/write/part=a/here"] == b"here"
    with pytest.raises(KeyError):
        files["table/write/part=a/gone"]
    with pytest.raises(OSError, match="closed"):
        files["table/write/part=a/closed"]
