from __future__ import annotations

import time

import pytest
from support.nodes import RunningNode, a_leader
from support.registrations import write
from support.waiting import eventually

from loadmanager.store import paths

OURS = "/loadbalance/v1"
NOTHING = {
    "draining": {},
    "returning": {},
    "excluded": [],
    "heldOff": {},
    "pinned": {},
    "frozenBundles": {},
    "frozen": "",
    "dryRun": False,
}
TOPIC = "persistent://t/ns/x"


async def controls(node: RunningNode) -> dict[str, object]:
    reply = await node.get(f"{OURS}/controls")
    assert reply.status == 200
    answer: dict[str, object] = reply.json()
    return answer


async def test_no_controls_are_set_at_first() -> None:
    async with a_leader() as (_, leader):
        assert await controls(leader) == NOTHING


async def test_setting_and_removing_a_control_is_idempotent() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        (bundle, *_) = await cluster.a_namespace()
        for path, body, key, value in (
            ("brokers/b1:8080/exclusion", None, "excluded", ["b1:8080"]),
            (f"bundles/{bundle}/pin", {"broker": "b1:8080"}, "pinned", {bundle: "b1:8080"}),
            (f"bundles/{bundle}/freeze", {"reason": "test"}, "frozenBundles", {bundle: "test"}),
            ("freeze", {"reason": "incident"}, "frozen", "incident"),
            ("dry-run", None, "dryRun", True),
        ):
            for _ in range(2):
                assert (await leader.put(f"{OURS}/{path}", json=body)).status == 204
            assert await controls(leader) == {**NOTHING, key: value}
            for _ in range(2):
                assert (await leader.ask("DELETE", f"{OURS}/{path}")).status == 204
            assert await controls(leader) == NOTHING


async def test_hold_off_lasts_from_its_last_request() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        for for_s in (1_000, 120):
            before_ms = round(time.time() * 1000) - 1
            assert (await leader.put(f"{OURS}/brokers/b1:8080/hold-off", json={"forS": for_s})).status == 204
        held = (await controls(leader))["heldOff"]
        assert isinstance(held, dict)
        assert before_ms <= held["b1:8080"] - 120_000 <= round(time.time() * 1000) + 1
        assert (await leader.ask("DELETE", f"{OURS}/brokers/b1:8080/hold-off")).status == 204
        assert await controls(leader) == NOTHING


async def test_absent_broker_with_bundles_can_be_held_off() -> None:
    async with a_leader() as (cluster, leader):
        broker = await cluster.a_broker("b1:8080")
        await cluster.a_broker("b9:8080")
        await cluster.a_namespace("t/ns", bundles={"numBundles": 2})
        assert (await leader.put(f"{OURS}/brokers/b9:8080/exclusion")).status == 204
        await leader.lookup(TOPIC)
        leader.node.reconciler.wake = lambda: None  # type: ignore[method-assign]  # a leader that has not noticed yet
        await broker.leave()
        await eventually(lambda: "b1:8080" not in leader.node.mirror.registrations)
        assert (await leader.put(f"{OURS}/brokers/b1:8080/hold-off", json={"forS": 60})).status == 204
        assert (await leader.lookup(TOPIC)).status == 503


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("brokers/b9:8080/exclusion", b"", 404, "broker 'b9:8080' is not registered; known: b1:8080"),
        ("brokers/b9:8080/hold-off", b'{"forS": 1}', 404, "b9:8080"),
        ("brokers/b1:8080/hold-off", b"", 400, "forS"),
        ("brokers/b1:8080/hold-off", b'{"forS": 0}', 400, "forS"),
        ("brokers/b1:8080/hold-off", b'{"forS": 86401}', 400, "forS"),
        ("brokers/b1:8080/hold-off", b'{"forS": 1, "why": 1}', 400, "why"),
        ("brokers/b1:8080/hold-off", b"{", 400, "body"),
        ("bundles/t/ns/0x00000000_0x40000001/pin", b'{"broker": "b1:8080"}', 412, "not a current bundle"),
        ("bundles/t/ns/all/pin", b'{"broker": "b1:8080"}', 412, "all"),
        ("bundles/t/no/0x00000000_0x40000000/pin", b'{"broker": "b1:8080"}', 404, "t/no"),
        ("bundles/t/ns/0x00000000_0x40000000/pin", b'{"broker": "b9:8080"}', 404, "b9:8080"),
        ("bundles/t/ns/0x00000000_0x40000000/pin", b'{"broker": "b9"}', 400, "broker"),
        ("bundles/t/ns/0x00000000_0x40000000/freeze", b"{}", 400, "reason"),
        ("bundles/t/ns/0x00000000_0x40000001/freeze", b'{"reason": "x"}', 412, "not a current bundle"),
        ("freeze", b'{"reason": ""}', 400, "reason"),
        ("freeze", b'{"reason": "x\\u001b[2J"}', 400, "reason: expected one line of printable characters"),
        ("freeze", b'{"reason": "x", "until": 1}', 400, "until"),
    ],
)
async def test_bad_request_changes_nothing(path: str, body: bytes, status: int, message: str) -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_namespace()
        reply = await leader.put(f"{OURS}/{path}", data=body)
        assert reply.status == status
        assert message in reply.reason
        assert await controls(leader) == NOTHING


async def test_controls_of_missing_brokers_and_bundles_can_be_removed() -> None:
    async with a_leader() as (cluster, leader):
        stored = b'{"excluded": ["gone:1"], "pinned": {"t/ns/0x00000000_0x80000000": "gone:1"}}'
        await write(cluster.store, paths.CONTROLS, stored)
        await eventually(lambda: leader.node.mirror.operator_config.controls.excluded)
        assert (await leader.ask("DELETE", f"{OURS}/brokers/gone:1/exclusion")).status == 204
        assert (await leader.ask("DELETE", f"{OURS}/bundles/t/ns/0x00000000_0x80000000/pin")).status == 204
        assert await controls(leader) == NOTHING


async def test_excluded_broker_gets_no_bundle_and_pinned_bundle_goes_to_its_broker() -> None:
    async with a_leader() as (cluster, leader):
        await cluster.a_broker("b1:8080")
        await cluster.a_broker("b2:8080")
        await cluster.a_namespace()
        assert (await leader.put(f"{OURS}/brokers/b2:8080/exclusion")).status == 204
        answers = [await leader.lookup(f"persistent://t/ns/x{number}") for number in range(10)]
        assert {answer.json()["brokerId"] for answer in answers} == {"b1:8080"}
        assert (await leader.ask("DELETE", f"{OURS}/brokers/b2:8080/exclusion")).status == 204
        bundle = leader.bundle_of(TOPIC)
        assert (await leader.put(f"{OURS}/bundles/{bundle}/pin", json={"broker": "b2:8080"})).status == 204
        assert (await leader.put(f"/admin/v2/namespaces/{bundle}/unload")).status == 204
        assert (await leader.lookup(TOPIC)).json()["brokerId"] == "b2:8080"
