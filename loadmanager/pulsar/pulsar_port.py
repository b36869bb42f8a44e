"""Port through which `http` sees a process beside a Pulsar; `leader.node_port` has what it shares with a node."""

from __future__ import annotations

from typing import Any, Protocol

from loadmanager.config import PulsarServiceSettings
from loadmanager.leader.node_port import BalancingPort, DrainPort, PlanPort, UnloadPort
from loadmanager.wire.pulsar_records import PulsarServiceStatus


class DiaryPort(Protocol):
    """Diary of Pulsar's moves and ours, the newest entries."""

    def text(self, rounds: int) -> str:
        """The entries of so many rounds, for people; the newest come last."""

    def records(self, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` entries as JSON objects, the newest first."""


class ScoresPort(Protocol):
    """Scores of Pulsar, and of strategies by the simulator's model, for hours and days."""

    def records(self) -> list[dict[str, Any]]:
        """The scores as JSON objects, the newest first."""

    def text(self) -> str:
        """The newest scores as a table, under what they mean."""


class PulsarServicePort(BalancingPort, Protocol):
    """A process beside a Pulsar: what operators may order goes through `drains_to_order` and `plans_to_order`."""

    @property
    def settings(self) -> PulsarServiceSettings: ...
    @property
    def unloads(self) -> UnloadPort: ...
    @property
    def drains_to_order(self) -> DrainPort: ...
    @property
    def plans_to_order(self) -> PlanPort: ...
    @property
    def diary(self) -> DiaryPort: ...
    @property
    def scores(self) -> ScoresPort: ...

    def status(self) -> PulsarServiceStatus:
        """Return the state, and the obstacles to acting."""

    async def go_on(self) -> None:
        """Act again after moves that failed in succession; `NotLeaderError` or a `StoreError`."""
