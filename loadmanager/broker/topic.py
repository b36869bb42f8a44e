"""Types for a broker's author: an open topic, its closing, and its refusal."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from loadmanager.broker.contract import CloseReason, Refusal


@dataclass(frozen=True, slots=True)
class Closing:
    """Reason for closing a topic. An unload also has the bundle, the number of the call (shared by all its topics), and
    the destination broker (`host:port`) for the clients, if known.
    """

    reason: CloseReason
    bundle: str | None = None
    destination: str | None = None
    call: int | None = None


@dataclass(eq=False, slots=True)
class Topic:
    """An open topic of this broker. The broker's author updates the counters, which start at 0 when it is opened."""

    name: str
    incarnation: int
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    producers: int = 0
    consumers: int = 0
    closing: Closing | None = None
    """Set while the topic is being closed."""

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self.name,
            "messagesIn": self.messages_in,
            "messagesOut": self.messages_out,
            "bytesIn": self.bytes_in,
            "bytesOut": self.bytes_out,
            "producers": self.producers,
            "consumers": self.consumers,
        }


@dataclass(frozen=True, slots=True)
class Health:
    """Health figures of the broker: latency (such as the 99th percentile), error rate, queue length."""

    latency_ms: float | None = None
    error_share: float | None = None
    queue: float | None = None

    def as_json(self) -> dict[str, float]:
        names = {"latency_ms": "latencyMs", "error_share": "errorShare", "queue": "queue"}
        return {names[name]: value for name, value in asdict(self).items() if value is not None}


class RefusedError(Exception):
    """The topic cannot be served here now; the client must look it up again. `owner` is a hint, if known."""

    def __init__(self, topic: str, refusal: Refusal, owner: str | None = None, why: str = "") -> None:
        message = f"{topic}: {refusal}"
        message += f": {why}" if why else f": {owner} is" if owner else ""
        super().__init__(message)
        self.topic = topic
        self.refusal = refusal
        self.owner = owner
