from __future__ import annotations

import numpy as np
from support.builders import report

from loadmanager.core.model.report_validation import MAX_RATE, recordable

NAMES = ["t/ns/0x80000000_0xffffffff", "t/ns/0x00000000_0x80000000"]


def test_message_rates_are_rounded_to_thousandths_and_throughputs_to_whole_bytes() -> None:
    rounded = recordable(report({NAMES[0]: (1.23449, 0.0004, 1234.5678, 0.4)}))
    assert rounded.bundle_load.tolist() == [[1.234, 0.0, 1235.0, 0.0]]


def test_bundles_come_in_the_order_of_their_names_with_all_that_is_theirs() -> None:
    ordered = recordable(report({NAMES[0]: (1.0, 2.0, 3.0, 4.0), NAMES[1]: (5.0, 6.0, 7.0, 8.0)}))
    assert ordered.bundle_names == (NAMES[1], NAMES[0])
    assert ordered.bundle_load[0].tolist() == [5.0, 6.0, 7.0, 8.0]


def test_what_the_report_says_of_the_broker_itself_keeps_all_its_digits() -> None:
    given = report(cpu=(12.3456789, 100.0), load=(1.23456, 0.1, 0.2, 0.3))
    kept = recordable(given)
    assert np.array_equal(kept.usage, given.usage)
    assert np.array_equal(kept.load, given.load)


def test_a_rate_beyond_all_reason_is_cut_and_no_zero_is_negative() -> None:
    rounded = recordable(report({NAMES[0]: (1e18, -0.0, -0.0, 1e18)}))
    assert rounded.bundle_load.tolist() == [[MAX_RATE, 0.0, 0.0, 1e18]]
    assert not np.signbit(rounded.bundle_load).any()
