"""Catalogue of reasons by subject; reasons of a single strategy are in its file."""

from __future__ import annotations

from loadmanager.core.domain.reasons.diagnosis_reasons import (
    CertificateReason,
    ComparisonReason,
    ExplanationReason,
    OwnershipReason,
    ReportReason,
    ValidationReason,
)
from loadmanager.core.domain.reasons.limit_reasons import ChurnReason, FilterReason, GuardrailReason
from loadmanager.core.domain.reasons.reason import Reason, entry
from loadmanager.core.domain.reasons.strategy_reasons import MergeReason, PlacementReason, SheddingReason, SplitReason

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
