"""Inputs of split and merge rounds as JSON for the history, exact to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.strategies.merging import MergeCandidate
from loadmanager.core.strategies.splitting.split_finder import SplitCandidate
from loadmanager.core.strategies.splitting.split_round import SplitQuestion


def question_as_json(question: SplitQuestion) -> dict[str, Any]:
    return {
        "lookedAt": [[astuple(broker), [*map(_split_as_json, own)]] for broker, own in question.looked_at],
        "counts": question.counts,
        "topics": {bundle: [topic[:4] for topic in topics] for bundle, topics in question.topics.items()},
        "inProgress": sorted([namespace, str(own)] for namespace, own in question.in_progress),
        "before": question.before,
    }


def question_of(content: Mapping[str, Any]) -> SplitQuestion:
    return SplitQuestion(
        tuple((Registration(*broker), tuple(map(_split_of, own))) for broker, own in content["lookedAt"]),
        content["counts"],
        {bundle: [TopicLoad(*topic) for topic in topics] for bundle, topics in content["topics"].items()},
        frozenset((namespace, BundleRange.parse(own)) for namespace, own in content["inProgress"]),
        content["before"],
    )


def _split_as_json(candidate: SplitCandidate) -> list[Any]:
    own = candidate.range
    return [candidate.name, None if own is None else str(own), *astuple(candidate)[2:]]


def _split_of(content: Sequence[Any]) -> SplitCandidate:
    name, own, *rest = content
    return SplitCandidate(name, None if own is None else BundleRange.parse(own), *rest)


def merging_as_json(namespaces: Mapping[str, Sequence[MergeCandidate]]) -> dict[str, Any]:
    return {name: [*map(astuple, own)] for name, own in namespaces.items()}


def merging_of(content: Mapping[str, Any]) -> dict[str, list[MergeCandidate]]:
    return {name: [*map(_merge_of, own)] for name, own in content.items()}


def _merge_of(content: Sequence[Any]) -> MergeCandidate:
    name, owner, *rest = content
    return MergeCandidate(name, None if owner is None else Registration(*owner), *rest)
