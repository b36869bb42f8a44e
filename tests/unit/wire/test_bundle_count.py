from __future__ import annotations

import pytest

from loadmanager.wire.broker_columns import report_of
from loadmanager.wire.broker_data import LocalBrokerData

STATS = {"t/n/0x00000000_0xffffffff": {"msgRateIn": 1.0}}


@pytest.mark.parametrize(
    ("record", "bundles"),
    [
        ({"bundles": ["a", "b"], "numBundles": 5}, 2),
        ({"bundles": ["a", "b"]}, 2),
        ({"bundles": [], "numBundles": 5}, 5),
        ({"bundles": None, "lastStats": STATS}, 1),
        ({"lastStats": STATS, "numBundles": 0}, 0),
        ({}, 0),
    ],
)
def test_bundle_count_is_the_number_of_named_bundles(record: LocalBrokerData, bundles: int) -> None:
    assert report_of(record, "broker").num_bundles == bundles
