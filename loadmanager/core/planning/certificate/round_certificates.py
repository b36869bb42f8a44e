"""What a round has come to, worked out for whoever asks first: decisions do not wait for it.

A round is kept for long, and with it the columns that it was decided on. No others are: of what is worked out only the
figures stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.certificate_text import CertificateSummary
from loadmanager.core.planning.certificate.plan_certificate import certify
from loadmanager.core.planning.headroom import Reserve, reserve_of
from loadmanager.core.planning.movable_bundles import restrain


@dataclass(frozen=True, slots=True, eq=False)
class DecidedRound:
    """A round of shedding: what it was decided on, and its steps. Two threads that ask at once may both work it out."""

    snapshot: Snapshot
    settings: PlannerSettings
    steps: Sequence[Assign | Unload]
    _certified: list[CertificateSummary] = field(default_factory=list)
    _reserve: list[Reserve] = field(default_factory=list)

    def certified(self) -> CertificateSummary:
        """How near its steps come to what no plan can beat, of the brokers that shedding looks at."""
        if not self._certified:
            seen = restrain(self.snapshot.afresh())
            self._certified.append(CertificateSummary.of(certify(seen, self.settings, self.steps)))
        return self._certified[0]

    def reserve(self) -> Reserve:
        """Whether the others could carry what a broker had before it, or a failure domain."""
        if not self._reserve:
            self._reserve.append(reserve_of(restrain(self.snapshot.afresh()), self.settings))
        return self._reserve[0]
