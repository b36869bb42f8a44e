from __future__ import annotations

import pytest

from loadmanager.core.model.broker_versions import UNREADABLE, rank_versions

ASCENDING = [
    "0.9.9",
    "1.2.0-1",
    "1.2.0-2",
    "1.2.0-10",
    "1.2.0-SNAPSHOT",
    "1.2.0-SNAPSHOT.1",
    "1.2.0-rc.1",
    "1.2.0-rc.1.1",
    "1.2.0",
    "1.2.0+1",
    "1.2.0+b",
    "1.2.0+b.1",
    "1.2.1-0a",
    "1.10.0",
    "10.0.0",
]


def test_versions_are_ordered_by_pre_release_and_build_metadata() -> None:
    assert rank_versions(ASCENDING).tolist() == list(range(len(ASCENDING)))
    assert rank_versions(ASCENDING[::-1]).tolist() == list(range(len(ASCENDING)))[::-1]


def test_equal_versions_have_equal_ranks() -> None:
    assert rank_versions(["1.0.0", "2.0.0", "1.0.0"]).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", "1.2", "1.2.3.4", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3-a..b", "1.2.3 "),
        f"1.{'9' * 5000}.0",
        f"1.2.3+{'9' * 5000}",
    ],
)
def test_invalid_semantic_version_is_unreadable(text: str) -> None:
    assert rank_versions([text, "1.0.0"]).tolist() == [UNREADABLE, 0]
