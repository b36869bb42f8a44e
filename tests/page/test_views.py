from __future__ import annotations

import re
import time

import pytest
from playwright.async_api import Locator, expect
from support.page import BROKERS, NAMESPACE, Shown, on_one_loop, report
from support.waiting import eventually

from loadmanager.core.domain.names import BrokerId
from loadmanager.core.domain.plan import Figure, Verdict
from loadmanager.core.domain.reasons import ChurnReason, SheddingReason
from loadmanager.core.planning.blocking_limits import BlockingLimit
from loadmanager.core.planning.churn import OPERATOR_REASONS
from loadmanager.core.strategies.shedding.level_shedder import LevelReason
from loadmanager.core.strategies.shedding.transfer_shedder import TransferReason

pytestmark = on_one_loop


async def test_the_fleet_shows_each_broker_with_its_highest_resource_and_who_leads(shown: Shown) -> None:
    await shown.open("fleet")
    rows = shown.page.get_by_role("table", name="Brokers").locator("[data-row]")
    await expect(rows).to_have_count(len(BROKERS))
    await expect(rows.first).to_contain_text("b1:8080")  # the most used one is first
    await expect(rows.first).to_contain_text("92 %")
    await expect(rows.first).to_contain_text("CPU")
    summary = shown.page.get_by_label("At a glance")
    await expect(summary).to_contain_text(shown.node.node.node_id)
    await expect(summary).to_contain_text(f"epoch {shown.node.node.get_term().epoch}")
    await expect(summary).to_contain_text(f"Bundles{len(shown.bundles)}")


async def test_brokers_are_sorted_and_filtered_and_the_address_says_how(shown: Shown) -> None:
    await shown.open("fleet")
    rows = shown.page.get_by_role("table", name="Brokers").locator("[data-row]")
    await shown.page.get_by_role("columnheader", name="Broker").get_by_role("button").click()
    await expect(rows.first).to_contain_text("b1:8080")
    await shown.page.get_by_placeholder("name or state").fill("b3")
    await expect(rows).to_have_count(1)
    assert "sort=id" in shown.page.url
    assert "filter=b3" in shown.page.url
    await shown.page.reload()
    await expect(rows).to_have_count(1)


async def test_a_row_leads_to_the_card_of_its_broker(shown: Shown) -> None:
    await shown.node.put(f"{_unload(shown.bundles[0])}?destinationBroker=b1:8080")
    await report(shown.cluster)
    await shown.open("fleet")
    await shown.page.get_by_role("link", name="b1:8080").click()
    await expect(shown.page.get_by_role("heading", name="b1:8080")).to_be_visible()
    await expect(shown.page.get_by_label("The next round")).to_contain_text("bundles")
    owned = shown.page.get_by_role("table", name="Bundles").locator("[data-row]")
    await expect(owned.first).to_contain_text("t/ns/0x")
    await expect(owned.first.locator(".meter")).to_contain_text(re.compile(r"\d\s%"))
    await expect(owned.first).to_contain_text("/s")
    await expect(shown.page.get_by_label("Usage", exact=True)).to_contain_text("unknown")
    await expect(shown.page.get_by_label("Usage", exact=True)).to_contain_text("92 %")


async def test_a_card_of_a_bundle_says_why_it_is_there_who_comes_next_and_why_it_is_not_elsewhere(shown: Shown) -> None:
    bundle = shown.bundles[0]
    owner = shown.node.ownership(bundle).owner
    assert owner is not None
    other = next(broker for broker in BROKERS if broker != owner.broker)
    await shown.open(f"bundle/{bundle}")
    why = shown.page.get_by_label("Why it is here")
    await expect(why).to_contain_text(f"On {owner.broker} for")
    await expect(why).to_contain_text("A round of shedding now would")
    await expect(shown.page.get_by_label("Placement")).to_contain_text("runner-up")
    await shown.page.get_by_label("Why not elsewhere").get_by_label("Broker").select_option(other)
    answer = shown.page.get_by_label("Why not elsewhere").locator(".lead")
    explained = (await shown.node.get(f"/loadbalance/v1/explain/why-not?bundle={bundle}&broker={other}")).json()
    await expect(answer).to_have_text(explained["answer"]["sentence"])
    await expect(_list(shown)).to_contain_text("Placed because")


async def test_decisions_show_sentence_and_numbers_and_are_filtered(shown: Shown) -> None:
    await shown.open("decisions")
    entries = _entries(shown)
    await expect(entries.first).to_be_visible()
    await shown.page.get_by_label("Kind").select_option("assign")
    await shown.page.get_by_placeholder("in subject or sentence").fill(shown.bundles[3])
    await expect(entries).to_have_count(1)
    await entries.first.locator("summary").click()
    await expect(entries.first.locator(".numbers")).to_contain_text("candidates")
    await shown.page.get_by_label("Which").select_option("no")
    await expect(entries).to_have_count(0)
    await expect(shown.page.get_by_text("None fits.")).to_be_visible()


async def test_a_decision_comes_by_itself(shown: Shown) -> None:
    await shown.open("decisions")
    bundle = shown.bundles[1]
    target = next(broker for broker in BROKERS if broker != _owner(shown, bundle))
    await shown.page.get_by_placeholder("in subject or sentence").fill(bundle)
    await shown.node.put(f"{_unload(bundle)}?destinationBroker={target}")
    await expect(_list(shown)).to_contain_text(f"→ {target}")
    await expect(_list(shown)).not_to_contain_text("unloaded")
    await shown.page.get_by_label("Which").select_option("all")
    await expect(_list(shown)).to_contain_text("unloaded")
    await shown.open(f"bundle/{bundle}")
    lead = shown.page.get_by_label("Why it is here").locator(".lead")
    await expect(lead).to_contain_text(re.compile(rf"On {target} for \d+ s; moved from b\d:8080 by an operator\."))


async def test_a_round_is_shown_instead_of_its_moves(shown: Shown) -> None:
    log, bundle = shown.node.node.decision_log, shown.bundles[5]
    source, destination = (shown.node.node.mirror.registrations[BrokerId(each)] for each in ("b1:8080", "b3:8080"))
    epoch = shown.node.node.get_term().epoch
    why: dict[str, Figure] = {"round": 7, "bundles": 1, "share_percent": 2.0, "routes": "b1:8080 -> b3:8080 (1)"}
    log.judged("round", Verdict("cluster", SheddingReason.ROUND_MOVES, acted=True, why=why), epoch=epoch)
    log.moved("unload", bundle, TransferReason.OVERLOADED, epoch=epoch, source=source, destination=destination)
    await shown.open(f"decisions?text={bundle}")
    await expect(_entries(shown).filter(has_text="overloaded")).to_have_count(0)
    await shown.open("decisions?text=Round 7")
    await _entries(shown).locator("summary").click()
    await expect(_entries(shown).locator(".numbers li")).to_have_text(f"b1:8080 → b3:8080 {bundle}")
    await shown.open(f"decisions?acted=all&text={bundle}")
    await expect(_entries(shown).filter(has_text="overloaded")).to_have_count(1)


async def test_moves_that_somebody_asked_for_are_shown_beside_rounds(shown: Shown) -> None:
    log, epoch = shown.node.node.decision_log, shown.node.node.get_term().epoch
    source, destination = (shown.node.node.mirror.registrations[BrokerId(each)] for each in ("b1:8080", "b3:8080"))
    for bundle, reason in zip(shown.bundles[: len(OPERATOR_REASONS)], OPERATOR_REASONS, strict=True):
        log.moved("unload", bundle, reason, epoch=epoch, source=source, destination=destination)
    await shown.open("decisions?text=b1:8080 → b3:8080")
    for bundle in shown.bundles[: len(OPERATOR_REASONS)]:
        await expect(_entries(shown).filter(has_text=bundle)).to_have_count(1)


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("b2", ["b2:8080"]), ("t", ["t/"]), ("t/n", ["t/ns/"]), ("t/ns/0x1000", [f"{NAMESPACE}/0x10000000_0x20000000"])],
)
async def test_search_suggests_names(shown: Shown, typed: str, suggested: list[str]) -> None:
    await shown.open("fleet")
    await shown.page.get_by_role("combobox", name="Find a broker").fill(typed)
    for name in suggested:
        await expect(shown.page.locator(f'#names option[value="{name}"]')).to_be_attached()


async def test_node_that_asks_nobody_for_a_token_says_so(shown: Shown) -> None:
    await shown.open("fleet")
    await expect(shown.page.locator(".notice").first).to_contain_text("may change anything")


async def test_the_heat_map_is_drawn_and_a_brush_selects_the_decisions_of_a_window(shown: Shown) -> None:
    await shown.open("heat?range=900")
    surface = shown.page.locator(".map canvas")
    await expect(surface).to_be_visible()
    box = await surface.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    await shown.page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    await shown.page.mouse.down()
    await shown.page.mouse.move(box["x"] + box["width"] * 0.4, middle, steps=4)
    await shown.page.mouse.up()
    await expect(shown.page.get_by_role("heading", name="Decisions from")).to_be_visible()
    assert "since=" in shown.page.url
    await shown.press("Clear the selection")
    await expect(_entries(shown).first).to_be_visible()
    now_ms = int(1000 * time.time())
    await shown.open(f"heat?range=900&since={now_ms - 86_400_000}&until={now_ms - 86_000_000}")
    await expect(shown.page.get_by_text("There is none")).to_be_visible()
    await shown.open(f"heat?range=900&since={now_ms - 900_000}&until={now_ms + 60_000}")
    await expect(_entries(shown).first).to_be_visible()


async def test_the_heat_map_of_bundles_has_them_in_the_order_of_their_hashes(shown: Shown) -> None:
    await shown.open("heat?range=900")
    await shown.press("Bundles by hash")
    await expect(shown.page.locator(".map canvas")).to_have_attribute("aria-label", re.compile(r"1\d bundles from"))
    await expect(shown.page.locator(".labels div").first).to_have_text("t/ns/0x00000000")
    assert "of=bundles" in shown.page.url


async def test_a_plan_is_shown_before_and_after_with_its_moves_as_table_and_matrix(shown: Shown) -> None:
    moved = next(bundle for bundle in shown.bundles if _owner(shown, bundle) != "b4:8080")
    await shown.open("plans")
    await shown.page.get_by_label("Moves of your own").check()
    await shown.page.get_by_role("textbox", name=re.compile("Moves, one a line")).fill(f"{moved} b4:8080")
    await shown.press("Compute")
    await expect(shown.page.get_by_role("heading", name=re.compile("Plan [0-9a-f]{12}"))).to_be_visible()
    await expect(shown.page.get_by_label("Effect")).to_contain_text("Clients disturbed")
    await expect(shown.page.get_by_label("Effect")).to_contain_text("best possible")
    await expect(shown.page.get_by_role("table", name="Moves").locator("[data-row]")).to_have_count(1)
    loads = shown.page.get_by_role("table", name="Load of brokers").locator("[data-row]")
    await expect(loads).to_have_count(len(BROKERS))
    await expect(loads.nth(1)).to_contain_text("b4:8080")  # the two that change come first
    matrix = shown.page.locator("table.matrix")
    await expect(matrix.locator("td.some")).to_have_text("1")
    await expect(matrix.locator("thead")).to_contain_text("b4:8080")
    await shown.open("plans")
    await shown.page.get_by_label("Empty a broker").check()
    await shown.page.locator("main").get_by_role("combobox", name="Broker").select_option("b3:8080")
    await shown.press("Compute")
    await expect(shown.page.get_by_role("heading", name=re.compile("Plan [0-9a-f]{12}"))).to_be_visible()


async def test_a_drain_is_estimated_before_it_begins(shown: Shown) -> None:
    await shown.open("drains")
    await shown.page.locator("main").get_by_role("combobox", name="Broker").select_option("b1:8080")
    await shown.press("Estimate")
    await expect(shown.page.get_by_text("clients would connect again")).to_be_visible()


@pytest.mark.parametrize(
    ("typed", "heading"),
    [("b2:8080", "b2:8080"), ("t/ns/0x00000000_0x10000000", "0x00000000_0x10000000"), ("t/ns/any-topic", "0x")],
)
async def test_what_is_searched_is_found(shown: Shown, typed: str, heading: str) -> None:
    await shown.open("fleet")
    await shown.page.get_by_role("combobox", name="Find a broker").fill(typed)
    await shown.page.keyboard.press("Enter")
    await expect(shown.page.get_by_role("heading", name=heading).first).to_be_visible()


async def test_what_is_not_found_is_said(shown: Shown) -> None:
    await shown.open("fleet")
    find = shown.page.get_by_role("combobox", name="Find a broker")
    await find.fill("nonsense")
    await find.press("Enter")
    await expect(shown.dialog()).to_contain_text("A broker is host:port")
    await shown.page.keyboard.press("Escape")
    await expect(shown.dialog()).to_have_count(0)
    await find.fill("no/such/topic")
    await find.press("Enter")
    await expect(shown.dialog()).to_contain_text("namespace no/such not found")


async def test_a_view_that_there_is_not_leads_back(shown: Shown) -> None:
    await shown.open("nonsense/%E0%A4%A")
    await expect(shown.page.get_by_role("heading", name="There is no such view")).to_be_visible()


async def test_what_keeps_every_bundle_where_it_is_is_said_with_the_key(shown: Shown) -> None:
    key, node = "loadBalancerBundleUnloadMinThroughputThreshold", shown.node
    for bundle in shown.bundles[:2]:
        await node.put(f"{_unload(bundle)}?destinationBroker=b1:8080")
    await report(shown.cluster)  # b1 is the hottest, and has something to give away
    await node.ask("POST", f"/admin/v2/brokers/configuration/{key}/1000000")
    try:
        await eventually(lambda: node.node.live.planner.bundle_unload_min_throughput_threshold == 1_000_000)
        await node.node.stuck_monitor.look()
        await shown.open("fleet")
        notice = shown.page.locator(".notice").filter(has_text="Nothing can move")
        await expect(notice.locator("code")).to_have_text(key)
        await expect(notice).to_contain_text(node.node.stuck_monitor.found[0].sentence)
    finally:
        await node.ask("DELETE", f"/admin/v2/brokers/configuration/{key}")
        node.node.stuck_monitor.found = ()


async def test_limits_and_namespaces_that_no_broker_may_own_are_told(shown: Shown) -> None:
    planner, policy = shown.node.node.planner, "/admin/v2/clusters/standalone/namespaceIsolationPolicies/nobody"
    limit = BlockingLimit(ChurnReason.NO_RETURN, "2 bundles wait: too soon", time.time() + 600)
    planner._limits = (limit, BlockingLimit(LevelReason.NO_LEVELLING_MOVE, "1 broker waits: all rest", None))
    data = {"namespaces": ["t/.*"], "primary": ["http://b1"], "unload_scope": "none"}
    assert (await shown.node.ask("POST", policy, json=data)).status == 204
    try:
        await shown.open("fleet")
        limits = shown.page.locator(".notice").filter(has_text="Limits keep bundles in place").locator("li")
        await expect(limits).to_have_count(2)
        await expect(limits.first).to_contain_text(re.compile(r"too soon, until \d\d:\d\d:\d\d \((9|10) min"))
        await expect(limits.first.locator("code")).to_have_text(limit.reason)
        stranded = shown.page.locator(".notice").filter(has_text="Namespaces without a broker")
        await expect(stranded).to_contain_text("isolation policy 'nobody' matches no registered broker")
        await expect(shown.page.get_by_label("At a glance")).to_contain_text("Balancing▲ limited")
    finally:
        planner._limits = ()
        assert (await shown.node.ask("DELETE", policy)).status == 204


async def test_plans_that_are_kept_are_listed(shown: Shown) -> None:
    plan = (await shown.node.ask("POST", "/loadbalance/v1/plans", json={"kind": "shed"})).json()
    await shown.open("plans")
    await shown.page.get_by_role("link", name=plan["hash"][:12]).click()
    await expect(shown.page.get_by_role("heading", name=f"Plan {plan['hash'][:12]}")).to_be_visible()


async def test_what_is_not_frozen_or_moving_is_not_said_and_a_reason_is_never_markup(shown: Shown) -> None:
    await shown.open("fleet")
    evil = "<img src=x onerror=\"document.title='caught'\"><b>"
    assert (await shown.node.put("/loadbalance/v1/freeze", json={"reason": evil})).status == 204
    try:
        await expect(shown.page.locator(".notice").filter(has_text="Frozen")).to_contain_text(evil)
        assert await shown.page.locator(".notice img, .notice b").count() == 0
        assert await shown.page.title() == "Fleet · loadmanager"
    finally:
        await shown.node.ask("DELETE", "/loadbalance/v1/freeze")
    await expect(shown.page.locator(".notice").filter(has_text="Frozen")).to_have_count(0)


def _owner(shown: Shown, bundle: str) -> str | None:
    owner = shown.node.ownership(bundle).owner
    return owner.broker if owner else None


def _list(shown: Shown) -> Locator:
    return shown.page.get_by_role("list", name="Decisions, newest first")


def _entries(shown: Shown) -> Locator:
    return _list(shown).get_by_role("listitem")


def _unload(bundle: str) -> str:
    return f"/admin/v2/namespaces/{bundle}/unload"
