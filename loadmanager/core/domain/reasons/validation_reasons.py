"""Reasons about faults of a broker's report."""

from __future__ import annotations

from loadmanager.core.domain.reasons.reason import Reason, entry


class ValidationReason(Reason):
    REPORT_DISTRUSTED = entry(
        "report_distrusted",
        "Neither gives nor gets because its report is not to be believed: {doubt}; its last good load counts",
        remedy="mend what its agent reports, or restart the broker",
    )
    LIMIT_UNKNOWN = entry(
        "limit_unknown",
        "The limits of {recalled} are not known any more; those that were count",
        "The limits of {unknown} are not known, and what it uses of them counts for nothing: they have to be declared",
    )
    SICK_WITH_OTHERS = entry(
        "sick_with_others",
        (
            "Given bundles only where no less sick broker may have them: its {figure} is {value}, that of well brokers"
            " {peers}; {off} of {brokers} brokers are sick, so the cause is probably common"
        ),
        remedy="look for what these brokers share",
    )
