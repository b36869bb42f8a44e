"""Catalogue of reasons by subject; reasons of a single strategy are in its file."""

from __future__ import annotations

from loadmanager.core.domain.reasons.decision_reasons import (
    ChurnReason,
    FilterReason,
    MergeReason,
    PlacementReason,
    SheddingReason,
    SplitReason,
)
from loadmanager.core.domain.reasons.diagnosis_reasons import (
    CertificateReason,
    ComparisonReason,
    ExplanationReason,
    GuardrailReason,
    OwnershipReason,
    ReportReason,
    ValidationReason,
)
from loadmanager.core.domain.reasons.reason import Reason, entry

__all__ = [
    "CertificateReason",
    "ChurnReason",
    "ComparisonReason",
    "ExplanationReason",
    "FilterReason",
    "GuardrailReason",
    "MergeReason",
    "OwnershipReason",
    "PlacementReason",
    "Reason",
    "ReportReason",
    "SheddingReason",
    "SplitReason",
    "ValidationReason",
    "entry",
]
