"""Inputs of split and merge rounds as JSON for the history, exact to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BrokerId, BundleRange
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.strategies.merging import MergeCandidate
from loadmanager.core.strategies.splitting.split_finder import SplitCandidate
from loadmanager.core.strategies.splitting.split_round import SplitQuestion


def question_as_json(question: SplitQuestion) -> dict[str, Any]:
    return {
        "lookedAt": [
            [each.broker, each.incarnation, [_split_candidate(candidate) for candidate in own]]
            for each, own in question.looked_at
        ],
        "counts": dict(question.counts),
        "topics": {
            name: [[each.hash, each.msg_rate, each.throughput, each.name] for each in topics]
            for name, topics in question.topics.items()
        },
        "underWay": sorted([namespace, str(own)] for namespace, own in question.under_way),
        "before": question.before,
    }


def question_of(content: Mapping[str, Any]) -> SplitQuestion:
    return SplitQuestion(
        looked_at=tuple(
            (Registration(BrokerId(broker), life), tuple(_split_candidate_of(each) for each in own))
            for broker, life, own in content["lookedAt"]
        ),
        counts=content["counts"],
        topics={name: [TopicLoad(*each) for each in topics] for name, topics in content["topics"].items()},
        under_way=frozenset((namespace, BundleRange.parse(own)) for namespace, own in content["underWay"]),
        before=content["before"],
    )


def merging_as_json(namespaces: Mapping[str, Sequence[MergeCandidate]]) -> dict[str, Any]:
    """Encode the candidates of each namespace, column by column."""
    return {
        name: [[_merge_value(getattr(each, column.name)) for each in own] for column in fields(MergeCandidate)]
        for name, own in namespaces.items()
    }


def merging_of(content: Mapping[str, Any]) -> dict[str, list[MergeCandidate]]:
    found = {}
    for namespace, columns in content.items():
        found[namespace] = [
            MergeCandidate(name, None if owner is None else Registration(BrokerId(owner[0]), owner[1]), *rest)
            for name, owner, *rest in zip(*columns, strict=True)
        ]
    return found


def _merge_value(value: Any) -> Any:  # noqa: ANN401 - any field of a candidate
    return [value.broker, value.incarnation] if isinstance(value, Registration) else value


def _split_candidate(candidate: SplitCandidate) -> list[Any]:
    values = [getattr(candidate, column.name) for column in fields(candidate)]
    return [str(value) if isinstance(value, BundleRange) else value for value in values]


def _split_candidate_of(content: Sequence[Any]) -> SplitCandidate:
    name, own, *rest = content
    return SplitCandidate(name, None if own is None else BundleRange.parse(own), *rest)
