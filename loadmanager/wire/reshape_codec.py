"""Inputs of split and merge rounds as JSON for the history, exact to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmanager.core.domain.bundles import TopicLoad
from loadmanager.core.domain.names import BundleRange
from loadmanager.core.strategies.merging import MergeCandidate
from loadmanager.core.strategies.splitting.split_round import SplitQuestion
from loadmanager.wire.machines.dataclass_codec import Conversion, DataclassCodec

_CODEC = DataclassCodec(
    (),
    {
        BundleRange: Conversion(str, BundleRange.parse),
        TopicLoad: Conversion(lambda topic: list(topic[:4]), lambda content: TopicLoad(*content)),
    },
)


def question_as_json(question: SplitQuestion) -> dict[str, Any]:
    return _CODEC.fields_as_json(question)


def question_of(content: Mapping[str, Any]) -> SplitQuestion:
    return SplitQuestion(**_CODEC.fields_of(SplitQuestion, content))


def merging_as_json(namespaces: Mapping[str, Sequence[MergeCandidate]]) -> dict[str, Any]:
    """Encode the candidates of each namespace."""
    return {name: _CODEC.as_json(own) for name, own in namespaces.items()}


def merging_of(content: Mapping[str, Any]) -> dict[str, list[MergeCandidate]]:
    return {name: _CODEC.value_of(Sequence[MergeCandidate], own) for name, own in content.items()}
