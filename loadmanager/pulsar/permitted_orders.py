"""Operator orders by mode: a process that observes plans everything and executes nothing."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.errors import ConflictError
from loadmanager.leader.execution.executor import Executor
from loadmanager.leader.node_port import DrainPort, PlanPort
from loadmanager.wire.plan_bodies import DrainProgress, ExecutionAnswer, PlanAnswer, PlanRequest, PlansAnswer

_OBSERVES = "mode is observe, in which nothing is moved: start this process with mode: act to have it done"


class ObservedDrains:
    """`drains`, but none begins."""

    def __init__(self, drains: DrainPort) -> None:
        self._drains = drains

    async def start(self, broker: BrokerId, *, and_return: bool = False) -> DrainProgress:
        del and_return
        raise ConflictError(f"{broker} cannot be drained: {_OBSERVES}; a plan of kind drain shows what it would take")

    async def stop(self, broker: BrokerId) -> None:
        await self._drains.stop(broker)

    def progress(self, broker: BrokerId) -> DrainProgress:
        return self._drains.progress(broker)


class ObservedPlans:
    """`plans`, but none is executed."""

    def __init__(self, plans: PlanPort) -> None:
        self._plans = plans

    async def compute(self, request: PlanRequest) -> PlanAnswer:
        return await self._plans.compute(request)

    def all(self) -> PlansAnswer:
        return self._plans.all()

    def get(self, plan_hash: str) -> PlanAnswer:
        return self._plans.get(plan_hash)

    async def execute(self, plan_hash: str, *, even_if_frozen: bool) -> ExecutionAnswer:
        del even_if_frozen
        self._plans.get(plan_hash)
        raise ConflictError(f"plan {plan_hash} cannot be executed: {_OBSERVES}")


class UnloadCanceller:
    """Unloads under way, for whoever wants one cancelled."""

    def __init__(self, executor: Executor, must_lead: Callable[[], None]) -> None:
        self._executor = executor
        self._must_lead = must_lead

    async def cancel_unload(self, name: BundleName) -> None:
        """Raises as `Executor.cancel` does."""
        self._must_lead()
        await self._executor.cancel(name)
