"""Which figures of a report decisions are made on: those that the history can keep exactly.

A report is brought into this form where it is taken in, before anything is decided on it. So what is read back from the
history later is the same, bit for bit, and so are the decisions that are taken on it again.

Source: none, our own. Differs from Pulsar: it decides on all digits of a double.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, BrokerReport, FloatArray

RATE_STEPS_PER_UNIT = 1000
"""A message rate of a bundle is a whole number of thousandths."""

MAX_RATE = 1e12
"""More messages/s than this in one bundle are a mistake, and are taken for as many."""

_RATES = (MSG_RATE_IN, MSG_RATE_OUT)


def recordable(report: BrokerReport) -> BrokerReport:
    """The report with its bundles in the order of their names, their message rates rounded to thousandths and their
    throughputs to whole bytes/s.

    What it says of the broker itself is kept as it is. Doing it twice changes nothing.
    """
    names = report.bundle_names
    order = sorted(range(len(names)), key=names.__getitem__)
    return replace(
        report,
        bundle_names=tuple([names[row] for row in order]),
        bundle_load=_rounded(report.bundle_load[order]),
        bundle_topics=report.bundle_topics[order],
        bundle_sessions=report.bundle_sessions[order],
        bundle_cache_bytes=report.bundle_cache_bytes[order],
    )


def _rounded(load: FloatArray) -> FloatArray:
    """Loads (k, 4), rounded; adding zero leaves no negative zero, which an integer has no room for."""
    rounded = np.rint(load) + 0.0
    rates = np.minimum(load[:, _RATES], MAX_RATE)
    rounded[:, _RATES] = np.rint(rates * RATE_STEPS_PER_UNIT) / RATE_STEPS_PER_UNIT + 0.0
    return rounded
