"""HTTP bodies about the bundles of a namespace."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, RootModel
from pydantic.alias_generators import to_camel

from loadmanager.core.domain.bundles import MAX_BUNDLES
from loadmanager.core.domain.names import HASH_SPACE_END
from loadmanager.wire.validation import WireModel

LARGEST = "LARGEST"
"""Alias of a range: the bundle of the namespace with the most topics."""
HOT = "HOT"
"""Alias of a range: the bundle of the namespace with the highest long-term throughput."""

Hash = Annotated[int, Field(ge=0, le=HASH_SPACE_END, strict=True)]


class SplitPositions(RootModel[Annotated[list[Hash], Field(max_length=MAX_BUNDLES)]]):
    """Split positions, as decimal hashes: Pulsar's body of a split."""


class MergeRequest(WireModel):
    """Neighbour to merge with; by default the bundle above."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, extra="forbid", strict=True)

    with_: str | None = Field(None, alias="with")


class MergedBundle(WireModel):
    """The merged bundle."""

    bundle: str


class TopicHashPositions(WireModel):
    """Hashes of a bundle's topics, by topic: Pulsar's answer."""

    namespace: str
    bundle: str
    topic_hash_positions: dict[str, int]
