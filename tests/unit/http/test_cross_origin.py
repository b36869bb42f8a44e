from __future__ import annotations

import pytest
from support.nodes import RunningNode, a_leader
from support.tokens import CLOSED, bearer, token_of

from loadmanager.net.auth import gate

OVERRIDE = "/admin/v2/brokers/configuration/loadBalancerBrokerOverloadedThresholdPercentage/80"
SIMPLE = {"Content-Type": "text/plain"}
"""A browser sends it for any page without asking the node first."""

ELSEWHERE = "http://elsewhere.example"


@pytest.mark.parametrize(
    "said",
    [
        {"Origin": ELSEWHERE},
        {"Origin": "null"},
        {"Origin": "http://[no-host"},
        {"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": ELSEWHERE, "Authorization": "Basic b3BlcmF0b3I6cGFzc3dvcmQ="},
    ],
)
async def test_cross_origin_request_changes_nothing(node: RunningNode, said: dict[str, str]) -> None:
    reply = await node.ask("POST", OVERRIDE, headers={**SIMPLE, **said})
    assert (reply.status, reply.reason[:7]) == (403, "Origin:"), reply
    assert (await node.get("/admin/v2/brokers/configuration/values")).json() == {}


async def test_cross_origin_request_with_a_client_certificate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "principal_of", lambda _: "root")
    async with a_leader(**CLOSED) as (_, node):
        assert (await node.ask("POST", OVERRIDE, headers={"Origin": ELSEWHERE})).status == 403
        assert (await node.ask("POST", OVERRIDE)).status == 200


async def test_own_page_other_clients_and_token_holders_are_allowed(node: RunningNode) -> None:
    own = {"Origin": node.node.service_url}
    behind_a_proxy = {"Origin": "https://lm.example", "Sec-Fetch-Site": "same-origin"}
    for headers in (own, behind_a_proxy, {}, {"Origin": ELSEWHERE, **bearer(token_of("root"))}):
        assert (await node.ask("POST", OVERRIDE, headers=headers)).status == 200, headers
