"""Every change that the page can ask for: it says first what will happen, and does what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from playwright.async_api import expect
from support.page import BROKERS, Shown, on_one_loop
from support.waiting import eventually

from loadmanager.core.domain.controls import Controls
from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.ownership import OwnershipState

pytestmark = on_one_loop

_Holds = Callable[[Controls], object]
_REASON = "it burns"
_BUNDLE = "t/ns/0xa0000000_0xb0000000"
_OWN = "t/ns/0xc0000000_0xd0000000"


@dataclass(frozen=True, slots=True)
class Switch:
    """Two buttons of a view that put something in force and take it back, with the words that they agree to."""

    view: str
    on: tuple[str, str]
    off: tuple[str, str]
    holds: _Holds
    reason: str = ""


_B3, _CARD = "broker/b3:8080", f"bundle/{_BUNDLE}"
_SWITCHES = {
    "freeze": Switch("fleet", ("Freeze…", "Freeze"), ("Lift…", "Lift it"), lambda c: c.frozen == _REASON, _REASON),
    "dry run": Switch("fleet", ("Dry run…", "Begin"), ("End…", "End it"), lambda c: c.dry_run),
    "exclusion": Switch(_B3, ("Exclude…", "Exclude"), ("Include again…", "Include"), lambda c: "b3:8080" in c.excluded),
    "hold-off": Switch(
        _B3, ("Hold off…", "Hold off"), ("Hold off no more…", "Let go"), lambda c: "b3:8080" in c.held_off
    ),
    "pin": Switch(_CARD, ("Pin…", "Pin"), ("Unpin…", "Remove"), lambda c: _BUNDLE in c.pinned),
    "freeze of a bundle": Switch(
        _CARD,
        ("Freeze…", "Freeze"),
        ("Lift its freeze…", "Lift it"),
        lambda c: c.frozen_bundles.get(_BUNDLE) == _REASON,
        _REASON,
    ),
}


@pytest.mark.parametrize("name", _SWITCHES)
async def test_what_an_operator_lays_down_is_put_in_force_and_taken_back(shown: Shown, name: str) -> None:
    switch = _SWITCHES[name]

    def is_in_force() -> bool:
        return bool(switch.holds(shown.node.node.mirror.operator_config.controls))

    await shown.open(switch.view)
    for (button, verb), wanted in ((switch.on, True), (switch.off, False)):
        await shown.press(button)
        assert is_in_force() is not wanted, "it was done without asking"
        await expect(shown.dialog().locator(".consequences li").first).not_to_be_empty()
        await expect(shown.dialog().locator(".sent")).to_contain_text("/loadbalance/v1/")
        if wanted and switch.reason:
            await shown.dialog().get_by_label("Reason").fill(switch.reason)
        await shown.agree(verb)
        await eventually(is_in_force if wanted else lambda: not is_in_force())


async def test_who_cancels_has_changed_nothing(shown: Shown) -> None:
    asked: list[str] = []
    shown.page.on("request", lambda request: asked.append(request.method))
    await shown.open("broker/b3:8080")
    for end in ("Cancel", "Escape"):
        await shown.press("Drain…")
        await expect(shown.dialog()).to_be_visible()
        if end == "Escape":
            await shown.page.keyboard.press(end)
        else:
            await shown.dialog().get_by_role("button", name=end).click()
        await expect(shown.dialog()).to_have_count(0)
    assert set(asked) == {"GET"}
    assert shown.node.node.mirror.operator_config.controls.draining == {}


async def test_a_bundle_is_transferred_where_the_operator_says(shown: Shown) -> None:
    owner = shown.node.ownership(_OWN).owner
    assert owner is not None
    target = next(broker for broker in BROKERS if broker != owner.broker)
    await shown.open(f"bundle/{_OWN}")
    await expect(shown.page.get_by_label("Why it is here")).to_contain_text(owner.broker)
    await shown.press("Transfer…")
    await expect(shown.dialog().locator(f"option[value='{owner.broker}']")).to_have_count(0)
    await shown.dialog().get_by_label("To").select_option(target)
    await expect(shown.dialog().locator(".sent")).to_contain_text(f"destinationBroker={target.replace(':', '%3A')}")
    await shown.agree("Transfer")
    now = shown.node.ownership(_OWN).owner
    assert now is not None
    assert now.broker == target
    await expect(shown.page.get_by_label("Why it is here")).to_contain_text(f"On {target} for")


async def test_a_bundle_is_unloaded(shown: Shown) -> None:
    await shown.open(f"bundle/{_OWN}")
    await shown.press("Unload…")
    await shown.agree("Unload")
    assert shown.node.ownership(_OWN).state is OwnershipState.FREE
    await expect(shown.page.get_by_label("Why it is here")).to_contain_text("Without an owner")


async def test_an_unload_in_progress_is_cancelled(shown: Shown) -> None:
    owner = shown.node.ownership(_BUNDLE).owner
    assert owner is not None
    agent = shown.cluster.brokers[owner.broker]
    agent.may_answer.clear()
    try:
        await shown.open(f"bundle/{_BUNDLE}")
        await shown.press("Unload…")
        await shown.dialog().get_by_role("button", name="Unload", exact=True).click()
        await eventually(lambda: shown.node.ownership(_BUNDLE).state is OwnershipState.RELEASING)
        await expect(shown.dialog()).to_contain_text("Asked, waiting…")
        await shown.page.keyboard.press("Escape")
        await shown.press("Cancel the unload…")
        await shown.agree("Cancel it")
        assert shown.node.ownership(_BUNDLE).state is OwnershipState.OWNED
    finally:
        agent.may_answer.set()


async def test_a_bundle_is_split(shown: Shown) -> None:
    bundle = shown.bundles[-1]
    owner = shown.node.ownership(bundle).owner
    assert owner is not None
    agent = shown.cluster.brokers[owner.broker]
    names = (f"persistent://t/ns/split-{n}" for n in range(10_000))
    inside = [name for name in names if shown.node.bundle_of(name) == bundle][:4]
    agent.topics = dict.fromkeys(inside, (1.0, 1.0, 1.0, 1.0))
    await shown.open(f"bundle/{bundle}")
    await shown.press("Split…")
    await shown.agree("Split")
    assert len(shown.node.node.mirror.namespaces["t/ns"].state.bundle_names()) == len(shown.bundles) + 1


async def test_a_broker_is_drained_and_the_drain_is_stopped(shown: Shown) -> None:
    draining = shown.node.node.mirror.operator_config.controls
    assert draining.draining == {}
    await shown.open("drains?broker=b2:8080")
    await shown.press("Drain…")
    await expect(shown.dialog()).to_contain_text("Every bundle of b2:8080 is given to another broker")
    await shown.agree("Drain")
    progress = shown.page.get_by_label("Drain of b2:8080")
    await expect(progress).to_contain_text("It owns nothing")
    assert BrokerId("b2:8080") in shown.node.node.mirror.operator_config.controls.draining
    await progress.get_by_role("button", name="Stop the drain…").click()
    await shown.agree("Stop it")
    await expect(shown.page.get_by_text("No broker is being drained.")).to_be_visible()


async def test_a_drain_that_is_held_up_says_what_stays_and_why(shown: Shown) -> None:
    node, (bundle, broker) = shown.node, _owned(shown)
    others = [f"/loadbalance/v1/brokers/{each}/exclusion" for each in BROKERS if each != broker]
    drain = f"/loadbalance/v1/brokers/{broker}/drain"
    for path in (*others, drain):
        assert (await node.put(path)).status < 300
    try:
        await shown.open(f"broker/{broker}")
        progress = shown.page.get_by_label(f"Drain of {broker}")
        await expect(progress).to_contain_text("What stays, and why")
        await expect(progress.get_by_role("listitem").filter(has_text=bundle)).to_contain_text("may own it")
    finally:
        for path in (drain, *others):
            await node.ask("DELETE", path)


async def test_a_plan_is_executed_as_it_was_shown(shown: Shown) -> None:
    moved, source = _owned(shown)
    target = next(broker for broker in BROKERS if broker != source)
    request = {"kind": "moves", "moves": [{"bundle": moved, "destination": target}]}
    plan = (await shown.node.ask("POST", "/loadbalance/v1/plans", json=request)).json()
    await shown.open(f"plans/{plan['hash']}")
    await shown.press("Execute…")
    await expect(shown.dialog()).to_contain_text("Exactly these 1 moves are carried out")
    await shown.agree("Execute")
    owner = shown.node.ownership(moved).owner
    assert owner is not None
    assert owner.broker == target
    await expect(shown.page.get_by_role("heading", name="executed")).to_be_visible()
    await expect(shown.page.get_by_role("table", name="Moves")).to_contain_text("done")


async def test_a_plan_in_progress_is_stopped_by_a_freeze(shown: Shown) -> None:
    moved, source = _owned(shown)
    target = next(broker for broker in BROKERS if broker != source)
    request = {"kind": "moves", "moves": [{"bundle": moved, "destination": target}]}
    plan = (await shown.node.ask("POST", "/loadbalance/v1/plans", json=request)).json()
    agent = shown.cluster.brokers[source]
    agent.may_answer.clear()
    try:
        await shown.open(f"plans/{plan['hash']}")
        await shown.press("Execute…")
        await shown.dialog().get_by_role("button", name="Execute", exact=True).click()
        await eventually(lambda: shown.node.ownership(moved).state is OwnershipState.RELEASING)
        await shown.page.keyboard.press("Escape")
        await shown.press("Stop…")
        await expect(shown.dialog()).to_contain_text("The balancer is frozen, so the plan stops before its next step")
        await shown.agree("Freeze and stop")
        assert shown.node.node.mirror.operator_config.controls.frozen.startswith("plan ")
    finally:
        agent.may_answer.set()
        await shown.node.ask("DELETE", "/loadbalance/v1/freeze")
        await eventually(lambda: shown.node.ownership(moved).state is OwnershipState.OWNED)


def _owned(shown: Shown) -> tuple[str, str]:
    """A bundle that has an owner, and its broker."""
    owners = {bundle: shown.node.ownership(bundle).owner for bundle in shown.bundles}
    return next((bundle, owner.broker) for bundle, owner in owners.items() if owner)
