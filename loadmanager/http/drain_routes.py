"""Drains, cancellation of unloads, the churn limits with their breaker, and plans."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.errors import PlanDriftedError
from loadmanager.http.audit_middleware import note_change
from loadmanager.http.leader_proxy import LeaderHandlers
from loadmanager.http.messages import MAX_BODY_BYTES, json_response, parse_body, parse_broker, parse_bundle, parse_flag
from loadmanager.http.openapi import BOOLEAN, Operation, Parameter, operate, read
from loadmanager.leader.candidate import Candidate
from loadmanager.leader.planning.churn_memory import Churn
from loadmanager.wire.plan_bodies import (
    ChurnAnswer,
    DrainProgress,
    ExecutionAnswer,
    FrozenBundle,
    PlanAnswer,
    PlanRequest,
    PlansAnswer,
)

_DRAIN = "/loadbalance/v1/brokers/{broker}/drain"
_UNLOAD = "/loadbalance/v1/bundles/{tenant}/{namespace}/{range}/unload"
_CHURN = "/loadbalance/v1/churn"
_BREAKER = f"{_CHURN}/breaker"


class DrainingHandlers(LeaderHandlers[Candidate]):
    def operations(self) -> list[Operation]:
        bundle = Parameter("bundle", "only of this bundle, tenant/namespace/0x.._0x..; none: of everything")
        return [
            operate(
                "PUT",
                _DRAIN,
                self.drain,
                parameters=(Parameter("andReturn", "true: its present bundles return to it after its restart"),),
                answer=DrainProgress,
                statuses=(202, 404, 409),
            ),
            read(_DRAIN, self.progress, DrainProgress, statuses=(200, 404)),
            operate("DELETE", _DRAIN, self.stop, statuses=(204, 409)),
            operate("DELETE", _UNLOAD, self.cancel_unload, statuses=(204, 404, 409, 412)),
            read(_CHURN, self.churn, ChurnAnswer),
            operate("DELETE", _BREAKER, self.lift, parameters=(bundle,), statuses=(204, 412)),
        ]

    async def drain(self, request: web.Request) -> web.Response:
        """Drain the broker: move all its bundles away, and give it none until the drain ends or the broker is gone."""
        broker, and_return = parse_broker(request), parse_flag(request, "andReturn")

        async def act() -> web.Response:
            before = self._drained_since_s(broker)
            progress = await self._node.drains.start(broker, and_return=and_return)
            note_change(request, before, self._drained_since_s(broker))
            return json_response(progress, HTTPStatus.ACCEPTED)

        return await self._forwarder.run_on_leader(request, act)

    async def progress(self, request: web.Request) -> web.Response:
        """Return the progress of the drain."""
        broker = parse_broker(request)
        return await self._forwarder.run_on_leader(request, lambda: self._node.drains.progress(broker))

    async def stop(self, request: web.Request) -> web.Response:
        """End the drain."""
        broker = parse_broker(request)

        async def act() -> None:
            before = self._drained_since_s(broker)
            await self._node.drains.stop(broker)
            note_change(request, before, self._drained_since_s(broker))

        return await self._forwarder.run_on_leader(request, act)

    def _drained_since_s(self, broker: BrokerId) -> dict[str, float] | None:
        order = self._node.mirror.operator_config.controls.draining.get(broker)
        return None if order is None else {"drainedSince": order.since_s}

    async def cancel_unload(self, request: web.Request) -> web.Response:
        """Cancel an unload in flight: the owner keeps the bundle; 409 if there is none, or it is too late."""
        name = parse_bundle(request)
        return await self._forwarder.run_on_leader(request, lambda: self._node.executor.cancel(name))

    async def churn(self, request: web.Request) -> web.Response:
        """Return the recent moves and returns by shedding, and the shedding that the circuit breaker has stopped."""

        def act() -> ChurnAnswer:
            figures = self._node.planner.churn.figures()
            return ChurnAnswer(
                moved_within_hour_percent=100 * figures.moved_within_hour,
                moved_again_percent=100 * figures.moved_again,
                moved_back_percent=100 * figures.moved_back,
                shedding_stopped=figures.shedding_stopped_for_s > 0,
                shedding_stopped_seconds_left=round(figures.shedding_stopped_for_s),
                frozen_bundles=[
                    FrozenBundle(bundle=bundle, seconds_left=round(left_s))
                    for bundle, left_s in figures.frozen_for_s.items()
                ],
            )

        return await self._forwarder.run_on_leader(request, act)

    async def lift(self, request: web.Request) -> web.Response:
        """Resume shedding that the circuit breaker has stopped."""
        wanted = request.query.get("bundle")
        bundle = None if wanted is None else str(BundleName.parse(wanted))

        def act() -> None:
            before = _breaker_state(self._node.planner.churn)
            self._node.planner.churn.lift(bundle)
            note_change(request, before, _breaker_state(self._node.planner.churn))

        return await self._forwarder.run_on_leader(request, act)


def _breaker_state(breaker: Churn) -> dict[str, object]:
    figures = breaker.figures()
    return {"sheddingStopped": figures.shedding_stopped_for_s > 0, "frozenBundles": sorted(figures.frozen_for_s)}


_PLANS = "/loadbalance/v1/plans"
_PLANNING_TIMEOUT_S = 60.0
_EXECUTION_TIMEOUT_S = 3_600.0
"""Timeout for the leader's execution of a plan. It covers all unloads of the plan."""


class PlanHandlers(LeaderHandlers[Candidate]):
    def operations(self) -> list[Operation]:
        return [
            operate(
                "POST",
                _PLANS,
                self.compute,
                body=PlanRequest,
                most_body_bytes=MAX_BODY_BYTES,
                answer=PlanAnswer,
                statuses=(200, 404, 409, 412),
            ),
            read(_PLANS, self.all, PlansAnswer),
            read(f"{_PLANS}/{{hash}}", self.get, PlanAnswer, statuses=(200, 404)),
            operate(
                "POST",
                f"{_PLANS}/{{hash}}/execute",
                self.execute,
                parameters=(Parameter("evenIfFrozen", "carry it out although the balancer is frozen", BOOLEAN),),
                answer=ExecutionAnswer,
                statuses=(200, 404, 409),
            ),
        ]

    async def compute(self, request: web.Request) -> web.Response:
        """Compute a plan with its predicted effect, and keep it by its hash; nothing is executed."""
        wanted = await parse_body(request, PlanRequest)

        async def act() -> PlanAnswer:
            plan = await self._node.plans.compute(wanted)
            note_change(request, None, {"plan": plan.hash, "steps": len(plan.steps)})
            return plan

        return await self._forwarder.run_on_leader(request, act, _PLANNING_TIMEOUT_S)

    async def all(self, request: web.Request) -> web.Response:
        """Return the plans that the leader keeps, newest first."""
        return await self._forwarder.run_on_leader(request, self._node.plans.all)

    async def get(self, request: web.Request) -> web.Response:
        """Return a plan that the leader keeps."""
        plan = request.match_info["hash"]
        return await self._forwarder.run_on_leader(request, lambda: self._node.plans.get(plan), _PLANNING_TIMEOUT_S)

    async def execute(self, request: web.Request) -> web.Response:
        """Execute exactly this plan.

        409 with the outcome of each step when the cluster has drifted or is frozen.
        """
        insists = parse_flag(request, "evenIfFrozen")

        async def act() -> web.Response | ExecutionAnswer:
            try:
                report = await self._node.plans.execute(request.match_info["hash"], even_if_frozen=insists)
            except PlanDriftedError as error:
                note_change(request, None, {"executed": error.report["executed"], "reason": str(error)})
                return json_response(error.report, HTTPStatus.CONFLICT)
            note_change(request, None, {"executed": report.executed})
            return report

        return await self._forwarder.run_on_leader(request, act, _EXECUTION_TIMEOUT_S)
