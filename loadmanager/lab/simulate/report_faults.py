"""Injection of faults into reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmanager.core.model.load import BANDWIDTH_IN, BANDWIDTH_OUT, BrokerReport
from loadmanager.lab.simulate.fleet_events import BadReports, ReportFault

_ALMOST_NOTHING = 1e-20
"""What rates that decay without ever being reset have come down to."""


def corrupted(report: BrokerReport, fault: BadReports, last: BrokerReport | None) -> BrokerReport:
    """The report with the fault; `last` is what the broker reported last."""
    match fault.fault:
        case ReportFault.STALE:
            return report if last is None else replace(last, last_update_ms=report.last_update_ms)
        case ReportFault.DECAYED:
            return replace(
                report,
                load=np.full_like(report.load, _ALMOST_NOTHING),
                bundle_load=np.full_like(report.bundle_load, _ALMOST_NOTHING),
            )
        case ReportFault.UNKNOWN_NIC:
            return replace(report, usage=_with_limits(report, 0.0, (BANDWIDTH_IN, BANDWIDTH_OUT)))
        case ReportFault.WRONG_CAPACITY:
            return replace(report, usage=_with_limits(report, fault.factor, tuple(range(len(report.usage)))))
        case ReportFault.SUM_DIFFERS:
            return replace(report, load=report.load * fault.factor)
        case ReportFault.SILENT:
            return report


def _with_limits(report: BrokerReport, factor: float, resources: tuple[int, ...]) -> np.typing.NDArray[np.float64]:
    usage = report.usage.copy()
    usage[list(resources), 1] *= factor
    return usage
