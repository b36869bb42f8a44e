"""Certificates of shedding rounds, computed lazily: decisions do not wait for them.

A decided round keeps its columns alive. The computation's own columns are dropped; only figures stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmanager.core.domain.plan import Assign, Unload
from loadmanager.core.domain.settings import PlannerSettings
from loadmanager.core.model.snapshot import Snapshot
from loadmanager.core.planning.certificate.certificate_text import CertificateSummary
from loadmanager.core.planning.certificate.plan_certificate import certify
from loadmanager.core.planning.headroom import Reserve, compute_reserve
from loadmanager.core.planning.movable_bundles import restrain


@dataclass(frozen=True, slots=True, eq=False)
class DecidedRound:
    """A decided shedding round: its input and its steps. Two concurrent callers may both compute its figures."""

    snapshot: Snapshot
    settings: PlannerSettings
    steps: Sequence[Assign | Unload]
    _certified: list[CertificateSummary] = field(default_factory=list)
    _reserve: list[Reserve] = field(default_factory=list)

    def certified(self) -> CertificateSummary:
        """Return the certificate of its steps, over the brokers that shedding considers."""
        if not self._certified:
            seen = restrain(self.snapshot.afresh())
            self._certified.append(CertificateSummary.of(certify(seen, self.settings, self.steps)))
        return self._certified[0]

    def reserve(self) -> Reserve:
        """Return the headroom for the loss of a broker or failure domain, before the round."""
        if not self._reserve:
            self._reserve.append(compute_reserve(restrain(self.snapshot.afresh()), self.settings))
        return self._reserve[0]
