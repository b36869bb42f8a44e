"""Message account of a client: numbers published, acknowledged and delivered of each topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loadmanager.dev.demo.number_ranges import NumberRanges


@dataclass(slots=True)
class TopicAccount:
    """Messages `0 .. published - 1` were sent at least once. `acknowledged` is by the broker process that took them."""

    topic: str
    published: int = 0
    acknowledged: dict[str, NumberRanges] = field(default_factory=dict)
    delivered: NumberRanges = field(default_factory=NumberRanges)
    duplicates: int = 0

    def acknowledge(self, instance: str, first: int, messages: int) -> None:
        self.acknowledged.setdefault(instance, NumberRanges()).add(first, first + messages)

    def deliver(self, first: int, messages: int) -> None:
        self.duplicates += messages - self.delivered.add(first, first + messages)

    def undelivered(self, instance: str) -> NumberRanges:
        """Return the numbers that this broker process took and nobody received."""
        return self.acknowledged.get(instance, NumberRanges()).difference(self.delivered)

    def to_record(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "published": self.published,
            "acknowledged": {instance: ranges.as_lists() for instance, ranges in self.acknowledged.items()},
            "delivered": self.delivered.as_lists(),
            "duplicates": self.duplicates,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> TopicAccount:
        acknowledged = {instance: NumberRanges(ranges) for instance, ranges in record["acknowledged"].items()}
        delivered = NumberRanges(record["delivered"])
        return cls(record["topic"], record["published"], acknowledged, delivered, record["duplicates"])
