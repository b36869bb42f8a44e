from __future__ import annotations

import re
from dataclasses import replace

import pytest
from support.pulsar_harness import NAMESPACE, Harness
from support.waiting import eventually

from loadmanager.core.domain.names import BundleName
from loadmanager.core.domain.ownership import Registration
from loadmanager.core.domain.reasons import OwnershipReason
from loadmanager.errors import UnloadFailedError
from loadmanager.http.openapi import PATH
from loadmanager.pulsar.pulsar_service import PulsarService

BUNDLE = f"{NAMESPACE}/0x00000000_0x40000000"
OBSERVE = {"mode": "observe", "state_store_url": ""}
STATUS = "/loadbalance/v1/pulsar"


def last_broker(harness: Harness, node: PulsarService) -> Registration:
    """One that owns nothing."""
    return node.mirror.registrations[harness.pulsar.brokers[-1].broker_id]


async def fail_to_move(harness: Harness, node: PulsarService, times: int) -> None:
    """Have so many moves refused by Pulsar."""
    harness.pulsar.faults.refuse("/unload", 412, times=times)
    for _ in range(times):
        with pytest.raises(UnloadFailedError):
            await node.executor.unload(
                BundleName.parse(BUNDLE), last_broker(harness, node), OwnershipReason.ADMIN_UNLOAD
            )


async def test_status_names_the_obstacles_to_acting(harness: Harness) -> None:
    node = await harness.leader(**OBSERVE)
    status = (await harness.ask(node, "GET", STATUS)).json()
    (obstacle,) = status.pop("obstacles")
    assert obstacle.startswith("No move because mode is observe: ")
    assert obstacle.endswith("; to change it: run loadmanager pulsar act, with a stateStoreUrl")
    assert status.pop("oldestReportS") >= 0
    assert status == {
        "mode": "observe",
        "cluster": harness.pulsar.cluster,
        "leading": True,
        "acting": False,
        "stopped": False,
        "failures": 0,
        "misses": 0,
        "brokers": 3,
        "bundles": 4,
        "pulsarsLeader": harness.pulsar.brokers[0].broker_id,
        "pulsarSheds": False,
        "unserved": [],
        "faults": {},
    }


async def test_status_without_obstacles_is_acting(harness: Harness) -> None:
    node = await harness.leader()
    status = (await harness.ask(node, "GET", STATUS)).json()
    assert (status["mode"], status["acting"], status["obstacles"]) == ("act", True, [])


async def test_status_names_controls_that_stop_acting(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await harness.leader()
    excluded = frozenset(node.mirror.registrations)
    await node.operators.update_controls(
        lambda controls: replace(controls, frozen="a release", dry_run=True, excluded=excluded)
    )
    await eventually(lambda: node.mirror.operator_config.controls.dry_run)
    figures = replace(node.planner.churn.figures(), shedding_stopped_for_s=90.0)
    monkeypatch.setattr(node.planner.churn, "figures", lambda: figures)
    status = node.status()
    assert not status.acting
    undo, wait = (f"to change it: {how}loadmanager admin" for how in ("", "wait 90 s, or "))
    assert status.obstacles == [
        f"No move because the balancer is frozen: a release; {undo} balancer unfreeze",
        f"No move because dry run is on; {undo} balancer dry-run off",
        f"No move because shedding is stopped for another 90 s; {wait} balancer lift-breaker",
        f"No move because all 3 registered brokers are excluded or drained; {undo} brokers include BROKER",
    ]


async def test_acting_continues_after_resume(harness: Harness) -> None:
    node = await harness.leader()
    await fail_to_move(harness, node, times=3)
    status = (await harness.ask(node, "GET", STATUS)).json()
    assert (status["acting"], status["stopped"], status["failures"]) == (False, True, 3)
    (obstacle,) = status["obstacles"]
    assert obstacle.startswith("No move because the last 3 moves failed; to change it: ")
    assert (await harness.ask(node, "POST", f"{STATUS}/resume")).status == 204
    status = (await harness.ask(node, "GET", STATUS)).json()
    assert (status["acting"], status["stopped"], status["failures"]) == (True, False, 0)
    assert (await harness.move_history()).failures == 0


async def test_follower_forwards_status_and_go_on_to_the_leader(harness: Harness) -> None:
    leader = await harness.leader()
    follower = await harness.start()
    await eventually(lambda: follower.leader_url == leader.service_url)
    await fail_to_move(harness, leader, times=3)
    status = (await harness.ask(follower, "GET", STATUS)).json()
    assert (status["leading"], status["failures"], follower.is_leading) == (True, 3, False)
    assert (await harness.ask(follower, "POST", f"{STATUS}/resume")).status == 204
    assert leader.actuator.move_log.history.failures == 0


async def test_drain_is_refused_while_observing(harness: Harness) -> None:
    node = await harness.leader(**OBSERVE)
    broker = harness.pulsar.brokers[0].broker_id
    reply = await harness.ask(node, "PUT", f"/loadbalance/v1/brokers/{broker}/drain")
    assert reply.status == 409
    assert reply.reason.startswith(f"{broker} cannot be drained: mode is observe")
    controls = (await harness.ask(node, "GET", "/loadbalance/v1/controls")).json()
    assert controls["draining"] == {}


async def test_plan_is_computed_but_not_executed_while_observing(harness: Harness) -> None:
    node = await harness.leader(**OBSERVE)
    body = {"kind": "drain", "broker": harness.pulsar.brokers[0].broker_id}
    plan = (await harness.ask(node, "POST", "/loadbalance/v1/plans", json=body)).json()
    assert len(plan["steps"]) == 4
    reply = await harness.ask(node, "POST", f"/loadbalance/v1/plans/{plan['hash']}/execute")
    assert reply.status == 409
    assert reply.reason.startswith(f"plan {plan['hash']} cannot be executed: mode is observe")
    assert len(await harness.pulsar.brokers[0].owned()) == 4


async def test_plan_is_executed_as_shown(harness: Harness) -> None:
    node = await harness.leader()
    to = harness.pulsar.brokers[-1].broker_id
    body = {"kind": "moves", "moves": [{"bundle": BUNDLE, "destination": to}]}
    plan = (await harness.ask(node, "POST", "/loadbalance/v1/plans", json=body)).json()
    reply = await harness.ask(node, "POST", f"/loadbalance/v1/plans/{plan['hash']}/execute")
    assert reply.status == 200, reply
    assert await harness.pulsar.owner(BUNDLE) == to


async def test_drain_empties_a_broker(harness: Harness) -> None:
    node = await harness.leader()
    broker = harness.pulsar.brokers[0]
    path = f"/loadbalance/v1/brokers/{broker.broker_id}/drain"
    assert (await harness.ask(node, "PUT", path)).status == 202

    async def is_empty() -> bool:
        state: str = (await harness.ask(node, "GET", path)).json()["state"]
        return state == "done"

    await eventually(is_empty)
    assert await broker.owned() == []
    assert (await harness.ask(node, "DELETE", path)).status == 204


async def test_pin_is_effective_at_once(harness: Harness) -> None:
    node = await harness.leader()
    broker = harness.pulsar.brokers[-1].broker_id
    reply = await harness.ask(node, "PUT", f"/loadbalance/v1/bundles/{BUNDLE}/pin", json={"broker": broker})
    assert reply.status == 204, reply
    assert (await harness.ask(node, "GET", "/loadbalance/v1/controls")).json()["pinned"] == {BUNDLE: broker}
    assert node.mirror.operator_config.controls.pinned == {BUNDLE: broker}


PULSARS = [
    ("PUT", "/admin/v2/namespaces/t/ns", 404),
    ("GET", "/lookup/v2/topic/persistent/t/ns/x", 404),
    ("POST", "/admin/v2/brokers/configuration/loadBalancerSheddingEnabled/false", 404),
    ("PUT", "/loadbalance/v1/brokers/b1:8080/hold-off", 404),
    ("POST", "/admin/v2/brokers", 405),
]


@pytest.mark.parametrize(("method", "path", "status"), PULSARS)
async def test_operations_of_pulsar_brokers_are_refused(harness: Harness, method: str, path: str, status: int) -> None:
    node = await harness.start(**OBSERVE)
    reply = await harness.ask(node, method, path)
    assert reply.status == status
    assert "this is a process beside a Pulsar" in reply.reason
    assert "ask them, as pulsar-admin does" in reply.reason


async def test_document_lists_exactly_the_routes(harness: Harness) -> None:
    node = await harness.start(**OBSERVE)
    content = (await harness.ask(node, "GET", PATH)).json()
    documented = {(method.upper(), path) for path, methods in content["paths"].items() for method in methods}
    routes = {
        (route.method, re.sub(r"\{(\w+)(?=[:}])[^/]*\}", r"{\1}", route.resource.canonical.rstrip("/") or "/"))
        for route in harness.apps[0].router.routes()
        if route.resource is not None and route.method not in ("*", "HEAD")
    }
    assert documented == routes
    assert {("GET", STATUS), ("POST", f"{STATUS}/resume"), ("GET", f"{STATUS}/scores/table")} <= documented
