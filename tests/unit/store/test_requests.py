"""Reading a transaction's outcome."""

from __future__ import annotations

import pytest

from loadmanager.store._kazoo_requests import first_failure


@pytest.mark.parametrize(
    ("codes", "index"),
    [
        ([], None),
        ([0, 0], None),
        ([0, -103, -2], 1),
        ([-101, -2, -2], 0),
        ([-2, -2, -110], 2),
        ([0, -2], 1),
    ],
)
def test_the_first_operation_that_failed_by_itself_is_the_culprit(codes: list[int], index: int | None) -> None:
    assert first_failure(codes) == index
