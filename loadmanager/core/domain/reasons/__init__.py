"""Catalogue of reasons by subject; reasons of a single strategy are in its file."""

from __future__ import annotations

from loadmanager.core.domain.reasons.certificate_reasons import CertificateReason
from loadmanager.core.domain.reasons.churn_reasons import ChurnReason
from loadmanager.core.domain.reasons.comparison_reasons import ComparisonReason
from loadmanager.core.domain.reasons.explanation_reasons import ExplanationReason
from loadmanager.core.domain.reasons.filter_reasons import FilterReason
from loadmanager.core.domain.reasons.guardrail_reasons import GuardrailReason
from loadmanager.core.domain.reasons.merge_reasons import MergeReason
from loadmanager.core.domain.reasons.ownership_reasons import OwnershipReason
from loadmanager.core.domain.reasons.placement_reasons import PlacementReason
from loadmanager.core.domain.reasons.reason import Reason, entry
from loadmanager.core.domain.reasons.report_reasons import ReportReason
from loadmanager.core.domain.reasons.shedding_reasons import SheddingReason
from loadmanager.core.domain.reasons.split_reasons import SplitReason
from loadmanager.core.domain.reasons.validation_reasons import ValidationReason

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
