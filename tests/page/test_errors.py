from __future__ import annotations

import json

import pytest
from playwright.async_api import expect
from support.page import Shown, on_one_loop

pytestmark = on_one_loop

_EXCLUSION = "/loadbalance/v1/brokers/b4:8080/exclusion"

KINDS = {
    400: "The request cannot be used",
    403: "Your role does not allow this",
    404: "There is no such thing",
    409: "It does not fit what is there",
    412: "The name is not one that exists",
    413: "Too large",
    500: "A mistake in the service",
    503: "Not possible at the moment",
    504: "Not done in time",
    418: "Refused (418)",
}


@pytest.mark.parametrize("status", KINDS)
async def test_refused_command_shows_the_reason_and_can_be_retried(shown: Shown, status: int) -> None:
    reason = json.dumps({"reason": "b4 <b>is</b> not to be had"})
    headers = {"Retry-After": "7"} if status == 503 else {}
    await shown.answer_with(
        "PUT", _EXCLUSION, status=status, body=reason, content_type="application/json", headers=headers
    )
    await shown.open("broker/b4:8080")
    await shown.press("Exclude…")
    await shown.dialog().get_by_role("button", name="Exclude").click()
    problem = shown.dialog().locator(".problem")
    await expect(problem).to_contain_text(KINDS[status])
    await expect(problem).to_contain_text("b4 <b>is</b> not to be had")
    await expect(problem).to_have_attribute("data-status", str(status))
    if status == 503:
        await expect(problem).to_contain_text("ask again in 7 s")
    await expect(shown.dialog().get_by_role("button", name="Try again")).to_be_enabled()


async def test_a_command_that_is_not_answered_says_that_it_may_have_been_done(shown: Shown) -> None:
    await shown.answer_with("PUT", _EXCLUSION, abort=True)
    await shown.open("broker/b4:8080")
    await shown.press("Exclude…")
    await shown.dialog().get_by_role("button", name="Exclude").click()
    await expect(shown.dialog()).to_contain_text("No answer from this node")
    await expect(shown.dialog()).to_contain_text("may have been done")
    await shown.page.unroute_all()
    await shown.dialog().get_by_role("button", name="Try again").click()
    await expect(shown.dialog().locator(".done")).to_be_visible()
    await shown.node.ask("DELETE", _EXCLUSION)


async def test_an_answer_that_is_not_json_is_shown_as_text(shown: Shown) -> None:
    await shown.answer_with("PUT", _EXCLUSION, status=502, body="<h1>proxy</h1>", content_type="text/html")
    await shown.open("broker/b4:8080")
    await shown.press("Exclude…")
    await shown.dialog().get_by_role("button", name="Exclude").click()
    await expect(shown.dialog().locator(".problem")).to_contain_text("<h1>proxy</h1>")


async def test_a_real_refusal_of_the_node_is_shown_as_it_said_it(shown: Shown) -> None:
    await shown.open("plans")
    await shown.page.get_by_label("Moves of your own").check()
    moves = shown.page.locator("main textarea")
    await moves.fill("t/ns/0x00000000_0x00000001 b1:8080")
    await shown.press("Compute")
    await expect(shown.page.locator(".problem")).to_have_attribute("data-status", "412")
    await moves.fill("t/ns/0x00000000_0x10000000")
    await shown.press("Compute")
    await expect(shown.page.locator(".problem")).to_contain_text("a line is a bundle, a space, and a broker")


@pytest.mark.parametrize("view", ["broker/nobody:1", "bundle/t/ns/0x00000000_0x00000001", f"plans/{'0' * 64}"])
async def test_a_card_of_what_there_is_not_says_so(shown: Shown, view: str) -> None:
    await shown.open(view)
    await expect(shown.page.locator(".problem").first).to_be_visible()


async def test_token_is_asked_for_sent_and_forgotten(shown: Shown) -> None:
    sent: list[str | None] = []
    shown.page.on("request", lambda request: sent.append(request.headers.get("authorization")))
    refused = json.dumps({"reason": "a token is needed: Authorization: Bearer"})
    await shown.answer_with("GET", "/loadbalance/v1/live", status=401, body=refused, content_type="application/json")
    await shown.page.goto(f"{shown.node.node.service_url}/#/fleet")
    await expect(shown.dialog()).to_contain_text("a token is needed")
    await expect(shown.page.get_by_role("alert").first).to_contain_text("A token is needed")
    assert not any(sent)
    await shown.page.unroute_all()
    await shown.dialog().get_by_label("Token").fill("secret-token")
    await shown.dialog().get_by_role("button", name="Sign in").click()
    await expect(shown.page.get_by_role("table", name="Brokers")).to_be_visible()
    assert sent[-1] == "Bearer secret-token"
    assert await shown.page.evaluate("Object.values(sessionStorage)") == ["secret-token"]
    assert await shown.page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert "secret-token" not in await shown.page.content()
    await shown.page.get_by_role("button", name="Sign out").click()
    assert await shown.page.evaluate("sessionStorage.length") == 0


async def test_a_stream_that_a_role_may_not_read_says_so(shown: Shown) -> None:
    refused = json.dumps({"reason": "bob has no role that may READ"})
    await shown.answer_with("GET", "/loadbalance/v1/live", status=403, body=refused, content_type="application/json")
    await shown.page.goto(f"{shown.node.node.service_url}/#/fleet")
    await expect(shown.page.get_by_role("alert")).to_contain_text("Your role does not allow this")
    await expect(shown.page.get_by_role("alert")).to_contain_text("bob has no role that may READ")
