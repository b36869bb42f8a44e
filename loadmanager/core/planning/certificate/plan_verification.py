"""Verification of a plan and its claims, from its columns, steps and proof alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from loadmanager.core.domain.plan import DependsOn, hash_plan
from loadmanager.core.planning.certificate.balancing_problem import Rows
from loadmanager.core.planning.certificate.plan_certificate import (
    CertificateFigures,
    Certified,
    compute_figures,
    name_binding_bounds,
)

_EQUAL = 1e-9
"""Relative tolerance of figures: another machine sums in another order."""


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """Claims of a plan: its hash and the hashed content, the binding bound, and both gaps."""

    cluster: str
    kind: str
    hash: str
    steps: Sequence[PlannedStep]
    bound_by: str
    gap: float
    load_gap: float | None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step by names, with the brokers' incarnations."""

    bundle: str
    version: int
    source: tuple[str, int]
    destination: tuple[str, int]

    @property
    def depends_on(self) -> DependsOn:
        return {
            "bundle": self.bundle,
            "version": self.version,
            "source": list(self.source),
            "destination": list(self.destination),
        }


def find_faults(certified: Certified, claims: Claims) -> list[str]:
    """Return one sentence per false claim; empty for a correct plan. `certified.after` and its figures are recomputed,
    not trusted.
    """
    faults = list(_faults_of_steps(certified, claims))
    if claims.hash != hash_plan(claims.cluster, claims.kind, [step.depends_on for step in claims.steps]):
        faults.append(f"hash: {claims.hash[:12]}... is not that of these steps: one of them, or the hash, was changed")
    if faults:
        return faults
    found = compute_figures(certified.problem, owners_after(certified, claims.steps), certified.sigma, certified.proof)
    return [*_faults_of_figures(certified.figures, found), *_faults_of_gaps(certified, claims, found)]


def owners_after(certified: Certified, steps: Sequence[PlannedStep]) -> Rows:
    """Return the owners (N,) after the steps; -1 for a broker without columns."""
    bundles, brokers = _rows(certified.bundles), _rows(certified.brokers)
    after = certified.problem.owner.copy()
    for step in steps:
        after[bundles[step.bundle]] = brokers.get(step.destination[0], -1)
    return after


def _faults_of_steps(certified: Certified, claims: Claims) -> Iterator[str]:
    bundles, brokers, problem = _rows(certified.bundles), _rows(certified.brokers), certified.problem
    moved = set()
    for number, step in enumerate(claims.steps):
        row, source = bundles.get(step.bundle), brokers.get(step.source[0], -1)
        destination = brokers.get(step.destination[0], -1)
        if row is None or step.bundle in moved:
            wrong = "not in the columns" if row is None else "moved twice"
            yield f"steps[{number}]: bundle {step.bundle} is {wrong}"
        elif problem.owner[row] != source:
            yield f"steps[{number}]: {step.source[0]} does not own {step.bundle} by the column owner"
        elif destination < 0:
            yield f"steps[{number}]: {step.destination[0]} has no columns, so nothing follows of what goes there"
        elif not problem.may_own[problem.classes[row], destination]:
            yield f"steps[{number}]: {step.destination[0]} may not own {step.bundle} by the columns classes and mayOwn"
        moved.add(step.bundle)


def _faults_of_figures(claimed: CertificateFigures, found: CertificateFigures) -> Iterator[str]:
    for each in fields(CertificateFigures):
        said, is_so = getattr(claimed, each.name), getattr(found, each.name)
        if not _is_equal(said, is_so):
            yield f"figures.{_in_file(each.name)}: {said:.9g} is said, {is_so:.9g} follows"


def _faults_of_gaps(certified: Certified, claims: Claims, found: CertificateFigures) -> Iterator[str]:
    if not _is_equal(claims.gap, found.gap):
        yield f"gap: {claims.gap:.9g} is said, {found.gap:.9g} follows"
    if not _is_equal(claims.load_gap, found.load_gap):
        yield f"loadGap: {_said(claims.load_gap)} is said, {_said(found.load_gap)} follows"
    binding = _binding(certified)
    if claims.bound_by not in binding:
        yield f"boundBy: {claims.bound_by!r} is said, {' or '.join(binding) or 'nothing'} makes the bound"


def _binding(certified: Certified) -> list[str]:
    """Return the names of the bounds with the highest value."""
    peaks = [bound.peak(certified.problem) for bound in certified.proof.bounds]
    if not peaks:
        return [""]
    alone = (replace(certified.proof, bounds=(bound,)) for bound in certified.proof.bounds)
    names = [name_binding_bounds(replace(certified, proof=proof)) for proof in alone]
    return [name for name, peak in zip(names, peaks, strict=True) if _is_equal(peak, max(peaks))]


def _is_equal(said: float | None, is_so: float | None) -> bool:
    if said is None or is_so is None:
        return said is is_so
    return math.isclose(said, is_so, rel_tol=_EQUAL, abs_tol=1e-12)


def _in_file(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _said(figure: float | None) -> str:
    return "none" if figure is None else f"{figure:.9g}"


def _rows(names: Sequence[str]) -> dict[str, int]:
    return {name: row for row, name in enumerate(names)}
