"""Certificates in words: the gap of a plan to the best possible one, and the reason for the bound."""

from __future__ import annotations

from dataclasses import dataclass

from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import CertificateReason
from loadmanager.core.planning.certificate.bounds import Bound, Heaviest, Pigeonhole, Volume
from loadmanager.core.planning.certificate.plan_certificate import CertificateFigures, Certified

BOUND_NAMES = {"Volume": "volume", "Heaviest": "heaviest", "Pigeonhole": "pigeonhole", "Prices": "prices"}
"""Names of the bounds in JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class CertificateSummary:
    """Certificate without its proof: its figures, the binding bound, and a sentence."""

    figures: CertificateFigures
    bound_by: str
    verdict: Verdict

    @classmethod
    def of(cls, certified: Certified) -> CertificateSummary:
        return cls(certified.figures, name_binding_bounds(certified), build_certificate_verdict(certified))


def name_binding_bounds(certified: Certified) -> str:
    """Return the names of the binding bounds; empty without owned bundles."""
    bounds = certified.proof.bounds
    return BOUND_NAMES[type(bounds[0]).__name__] if bounds else ""


def build_certificate_verdict(certified: Certified) -> Verdict:
    """Return the certificate as a verdict on the cluster."""
    figures, bounds = certified.figures, certified.proof.bounds
    why: dict[str, Figure] = {
        "heat_before": figures.heat_before,
        "heat_after": figures.heat_after,
        "bound": figures.bound,
        "bound_by": describe(certified, bounds[0]) if bounds else "nobody owns anything",
        "bound_in_budget": figures.bound_in_budget,
        "load_moved_percent": 100 * figures.load_moved,
        "least_load_percent": 100 * figures.least_load,
        "noise_floor": figures.noise_floor,
    }
    moves = figures.bundles_moved > 0
    reason = CertificateReason.PLAN_CERTIFIED if moves else CertificateReason.NOTHING_MOVES
    return Verdict("cluster", reason, acted=moves, why=why)


def describe(certified: Certified, bound: Bound) -> str:
    """Describe a bound in a sentence."""
    match bound:
        case Heaviest(bundle):
            return f"bundle {certified.bundles[bundle]} alone, where it uses least"
        case Volume(resource, brokers):
            whose = "all bundles" if brokers.all() else "bundles that only these may own"
            return f"{certified.resources[resource]} of {whose}, over {int(brokers.sum())} brokers"
        case Pigeonhole(resource, brokers, each):
            most = each * int(brokers.sum()) + 1
            return f"{certified.resources[resource]}: of the {most} largest bundles {each + 1} share a broker"
        case _:
            return "prices of resources, as brokers are not alike"
