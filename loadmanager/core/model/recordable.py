"""Rounding of report figures to values that the history stores exactly.

A report is rounded on arrival, before any decision. So the history returns it bit for bit, and replayed decisions are
the same.

Source: none, our own. Differs from Pulsar, which decides on all digits of a double.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmanager.core.model.load import MSG_RATE_IN, MSG_RATE_OUT, BrokerReport, FloatArray

RATE_STEPS_PER_UNIT = 1000
"""Resolution of a bundle's message rate: thousandths."""

MAX_RATE = 1e12
"""Upper limit of messages/s per bundle: more is a mistake, and is clamped."""

_RATES = (MSG_RATE_IN, MSG_RATE_OUT)


def recordable(report: BrokerReport) -> BrokerReport:
    """Round a report: bundles sorted by name, message rates in thousandths, throughputs in whole bytes/s.

    The broker's own figures are kept. The function is idempotent.
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
    """Round loads (k, 4); adding zero removes negative zeros, which integers cannot hold."""
    rounded = np.rint(load) + 0.0
    rates = np.minimum(load[:, _RATES], MAX_RATE)
    rounded[:, _RATES] = np.rint(rates * RATE_STEPS_PER_UNIT) / RATE_STEPS_PER_UNIT + 0.0
    return rounded
