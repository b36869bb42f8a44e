"""Rule for when a broker publishes its load again.

Source: Pulsar's ModularLoadManagerImpl.needUpdate. Load reports are compared by four figures; topic, consumer and
producer counts do not make a report due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadmanager.core.domain.reasons import Reason, ReportReason
from loadmanager.core.domain.resources import ResourceWeights, UsedResources


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """Figures that make a report due: messages/s and bytes/s (both ways together), the number of bundles, and the
    weighted maximum usage as a fraction; `at_s` is any monotonic clock in seconds.
    """

    at_s: float
    msg_rate_per_s: float
    throughput_bytes_per_s: float
    bundles: int
    max_usage: float

    @classmethod
    def of(
        cls,
        load: Iterable[float],
        usage: Iterable[Iterable[float]],
        bundles: int,
        weights: ResourceWeights,
        at_s: float,
    ) -> ReportFigures:
        """Compute from messages/s in and out, bytes/s in and out, and used and limit of each resource."""
        rate_in, rate_out, bytes_in, bytes_out = map(float, load)
        max_usage = UsedResources.of(usage).most_weighted(weights)
        return cls(at_s, rate_in + rate_out, bytes_in + bytes_out, bundles, max_usage)


@dataclass(frozen=True, slots=True)
class ReportDue:
    """Reason why a report is due; `figure` changed most, by `change` percent (usage: percentage points).

    For a report that is too old, `figure` is its age and `change` the seconds.
    """

    reason: Reason
    figure: str
    change: float


def report_due(
    last: ReportFigures | None, now: ReportFigures, threshold_percent: float, max_interval_s: float
) -> ReportDue | None:
    """Return the reason to publish `now` after `last` (None: nothing yet), None if no report is due.

    Due when a figure changed by more than the threshold, or the last report is older than `max_interval_s`.
    """
    if last is None:
        return ReportDue(ReportReason.FIRST_REPORT, "", 0.0)
    age_s = now.at_s - last.at_s
    if age_s > max_interval_s:
        return ReportDue(ReportReason.REPORT_TOO_OLD, "age_s", age_s)
    changes = {
        "msg_rate_per_s": _change_percent(last.msg_rate_per_s, now.msg_rate_per_s),
        "throughput_bytes_per_s": _change_percent(last.throughput_bytes_per_s, now.throughput_bytes_per_s),
        "bundles": _change_percent(last.bundles, now.bundles),
        "max_usage": 100 * abs(last.max_usage - now.max_usage),
    }
    figure = max(changes, key=changes.__getitem__)
    return (
        ReportDue(ReportReason.LOAD_CHANGED, figure, changes[figure]) if changes[figure] > threshold_percent else None
    )


def _change_percent(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else float("inf")
    return 100 * abs(old - new) / abs(old)
