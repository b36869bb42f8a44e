from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.util.atomic_write import whole


def test_file_is_replaced_once_written(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    with whole(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")

    def write_half() -> None:
        with whole(path) as partial:
            partial.write_text("half")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        write_half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
