"""The catalogue of reasons by subject; those that one strategy alone has are in its file."""

from __future__ import annotations

from loadmanager.core.reasons.base import Reason, entry
from loadmanager.core.reasons.certificate import CertificateReason
from loadmanager.core.reasons.churn import ChurnReason
from loadmanager.core.reasons.doubts import DoubtReason
from loadmanager.core.reasons.explanations import ExplanationReason
from loadmanager.core.reasons.filters import FilterReason
from loadmanager.core.reasons.judging import JudgingReason
from loadmanager.core.reasons.merging import MergeReason
from loadmanager.core.reasons.ownership import OwnershipReason
from loadmanager.core.reasons.placement import PlacementReason
from loadmanager.core.reasons.rails import RailReason
from loadmanager.core.reasons.reports import ReportReason
from loadmanager.core.reasons.shedding import SheddingReason
from loadmanager.core.reasons.splitting import SplitReason

__all__ = [
    "CertificateReason",
    "ChurnReason",
    "DoubtReason",
    "ExplanationReason",
    "FilterReason",
    "JudgingReason",
    "MergeReason",
    "OwnershipReason",
    "PlacementReason",
    "RailReason",
    "Reason",
    "ReportReason",
    "SheddingReason",
    "SplitReason",
    "entry",
]
