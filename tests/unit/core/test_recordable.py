from __future__ import annotations

import numpy as np
from support.builders import report

from loadmanager.core.model.report_validation import MAX_RATE, recordable

NAMES = ["t/ns/0x80000000_0xffffffff", "t/ns/0x00000000_0x80000000"]


def test_rates_are_rounded_to_thousandths_and_throughputs_to_bytes() -> None:
    rounded = recordable(report({NAMES[0]: (1.23449, 0.0004, 1234.5678, 0.4)}))
    assert rounded.bundle_load.tolist() == [[1.234, 0.0, 1235.0, 0.0]]


def test_bundles_are_sorted_by_name_with_their_figures() -> None:
    ordered = recordable(report({NAMES[0]: (1.0, 2.0, 3.0, 4.0), NAMES[1]: (5.0, 6.0, 7.0, 8.0)}))
    assert ordered.bundle_names == (NAMES[1], NAMES[0])
    assert ordered.bundle_load[0].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_figures_of_the_broker_are_not_rounded() -> None:
    given = report(cpu=(12.3456789, 100.0), load=(1.23456, 0.1, 0.2, 0.3))
    kept = recordable(given)
    assert np.array_equal(kept.usage, given.usage)
    assert np.array_equal(kept.load, given.load)


def test_excessive_rates_are_cut_and_zeros_are_positive() -> None:
    rounded = recordable(report({NAMES[0]: (1e18, -0.0, -0.0, 1e18)}))
    assert rounded.bundle_load.tolist() == [[MAX_RATE, 0.0, 0.0, 1e18]]
    assert not np.signbit(rounded.bundle_load).any()
