from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from support.fake_pulsar import FakePulsar
from support.servers import LoopbackServer, closed_port

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.errors import ConfigurationError
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError

BUNDLE = BundleName.parse("lm/bench/0x00000000_0x40000000")


def an_admin(urls: Sequence[str], token_file: Path | None = None, timeout_s: float = 30.0) -> PulsarAdmin:
    return PulsarAdmin(urls, token_file=token_file, timeout_s=timeout_s)


@pytest.fixture
async def admin(pulsar: FakePulsar) -> AsyncIterator[PulsarAdmin]:
    """It is given the third broker, a follower; all are trusted."""
    async with an_admin([pulsar.urls[2]]) as admin:
        admin.trust([each.broker_id for each in pulsar.brokers])
        yield admin


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first")
    return path


def write(path: Path, token: str) -> None:
    path.write_text(token)


async def test_unload_is_redirected_to_leader_and_owner_with_its_method(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    leader, owner, asked = pulsar.brokers
    await owner.acquire(str(BUNDLE))
    await admin.unload(BUNDLE, asked.broker_id)
    assert [(each.method, each.broker_id) for each in pulsar.asked] == [
        ("PUT", asked.broker_id),
        ("PUT", leader.broker_id),
        ("PUT", owner.broker_id),
    ]
    assert f"destinationBroker={asked.host}%3A{asked.port}" in pulsar.asked[0].path
    assert "destinationBroker" not in pulsar.asked[2].path
    assert await pulsar.owner(str(BUNDLE)) is None


async def test_token_is_sent_to_every_configured_host(pulsar: FakePulsar, token_file: Path) -> None:
    pulsar.token = "first"
    leader, owner, asked = pulsar.brokers
    await owner.acquire(str(BUNDLE))
    other_ports = [f"http://{each.host}:1" for each in (leader, owner)]
    async with an_admin([asked.url, *other_ports], token_file) as admin:
        admin.trust([each.broker_id for each in pulsar.brokers])
        await admin.unload(BUNDLE, asked.broker_id)
    assert [each.token for each in pulsar.asked] == ["first"] * 3


async def test_token_is_not_sent_to_a_merely_registered_broker(pulsar: FakePulsar, token_file: Path) -> None:
    pulsar.token = "first"
    async with an_admin([pulsar.urls[2]], token_file) as admin:
        admin.trust([each.broker_id for each in pulsar.brokers])
        said = f"^{pulsar.urls[0]}/admin.* answered 401 .*: the token goes to adminUrls and tokenHostSuffixes only: add"
        with pytest.raises(PulsarRefusedError, match=said):
            await admin.unload(BUNDLE, pulsar.brokers[2].broker_id)
        with pytest.raises(PulsarRefusedError, match=f"^{pulsar.urls[1]}/admin.* the token goes to adminUrls and"):
            await admin.settings(pulsar.urls[1])
    assert [each.token for each in pulsar.asked] == ["first", None, None]


async def test_redirect_to_a_registered_broker_is_followed_without_token(pulsar: FakePulsar, token_file: Path) -> None:
    async with an_admin([pulsar.urls[2]], token_file) as admin:
        admin.trust([each.broker_id for each in pulsar.brokers])
        await admin.unload(BUNDLE, pulsar.brokers[2].broker_id)
    assert [each.token for each in pulsar.asked] == ["first", None]


async def test_unknown_host_gets_no_request(pulsar: FakePulsar, token_file: Path) -> None:
    async with an_admin([pulsar.urls[2]], token_file) as admin:
        admin.trust([pulsar.brokers[1].broker_id, BrokerId("["), BrokerId("no port")])
        with pytest.raises(PulsarRefusedError, match=f"sends elsewhere, to '{pulsar.urls[0]}/admin.*nobody") as refused:
            await admin.unload(BUNDLE, pulsar.brokers[2].broker_id)
    assert refused.value.status == 307
    assert [each.broker_id for each in pulsar.asked] == [pulsar.brokers[2].broker_id]


class Elsewhere(LoopbackServer):
    """Sends everybody to `location`, with the status `status`."""

    location = ""
    status = 307
    asked = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        return web.Response(status=self.status, headers={"Location": self.location.replace("SAME", request.raw_path)})


@pytest.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    async with Elsewhere() as elsewhere:
        yield elsewhere


@pytest.mark.parametrize(
    "location", ["", "SAME", "http://", "http://[", "http://127.0.0.1:1SAME", "ftp://127.0.0.1SAME"]
)
async def test_invalid_redirect_is_refused(elsewhere: Elsewhere, location: str) -> None:
    elsewhere.location = location
    async with an_admin([elsewhere.url]) as admin:
        with pytest.raises(
            PulsarRefusedError, match=f"^{elsewhere.url}/.* answered 307: it sends elsewhere"
        ) as refused:
            await admin.brokers()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("status", "location", "complaint", "asked"),
    [
        pytest.param(307, "/admin/v2/brokers/shutdown", "another path", 1, id="another path"),
        pytest.param(302, "SAME", "answered 302: not an answer of a Pulsar", 1, id="another status"),
        pytest.param(307, "SAME", "3 brokers sent to the next", 4, id="in a circle"),
    ],
)
async def test_unusual_redirect_is_refused(
    elsewhere: Elsewhere, status: int, location: str, complaint: str, asked: int
) -> None:
    elsewhere.status, elsewhere.location = status, f"{elsewhere.url}{location}"
    async with an_admin([elsewhere.url]) as admin:
        with pytest.raises(PulsarRefusedError, match=complaint):
            await admin.brokers()
    assert elsewhere.asked == asked


async def test_unreachable_redirect_target_is_named(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    admin.trust([BrokerId(gone.removeprefix("http://"))])
    pulsar.faults.send_away("/unload", gone)
    with pytest.raises(PulsarUnreachableError, match=f"^{gone}/admin/.* is it running") as error:
        await admin.unload(BUNDLE)
    assert error.value.was_not_heard


async def test_plain_http_is_refused_when_addresses_are_https(pulsar: FakePulsar, token_file: Path) -> None:
    async with an_admin(["https://127.0.0.1:1"], token_file) as admin:
        with pytest.raises(PulsarRefusedError, match="is not asked, as adminUrls are https and this is not"):
            await admin.settings(pulsar.urls[0])
    assert pulsar.asked == []


async def test_refused_token_is_reread_once(pulsar: FakePulsar, token_file: Path) -> None:
    async with an_admin([pulsar.urls[0]], token_file) as admin:
        pulsar.token = "first"
        await admin.brokers()
        pulsar.token = "second"
        with pytest.raises(PulsarRefusedError, match=f"'Authentication required': the token in {token_file} .*ended"):
            await admin.brokers()
        write(token_file, "two words")
        with pytest.raises(PulsarRefusedError, match=f"answered 401 .*: token file {token_file}: expected a token"):
            await admin.brokers()
        write(token_file, "second")
        await admin.brokers()
    assert [each.token for each in pulsar.asked] == ["first", "first", "first", "second"]


async def test_token_changed_during_a_request_is_tried_once(pulsar: FakePulsar, token_file: Path) -> None:
    pulsar.token = "third"
    async with an_admin([pulsar.urls[0]], token_file) as admin:
        pulsar.on_asked = lambda: write(token_file, "second")
        with pytest.raises(PulsarRefusedError, match="put a valid one into the file") as refused:
            await admin.brokers()
    assert refused.value.status == 401
    assert [each.token for each in pulsar.asked] == ["first", "second"]


async def test_missing_token_is_named(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    pulsar.token = "first"
    with pytest.raises(PulsarRefusedError, match=r"answered 401 'Authentication required': .* give a token file"):
        await admin.brokers()
    assert len(pulsar.asked) == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "is this a Pulsar of a tried version"),
        (403, "superUserRoles"),
        (404, "the namespace was deleted, Pulsar's leader is not registered"),
        (405, "this is no web service of a broker"),
        (409, "destination is not registered"),
        (412, "the bundle was split or merged, Pulsar has no leader"),
        (415, "changed the Content-Type"),
        (429, "try again later"),
        (418, "not an answer of a Pulsar"),
        (500, "try again later; see the log of that broker"),
        (503, "try again later; see the log of that broker"),
    ],
)
async def test_refusal_is_a_sentence_with_address_reason_and_remedy(
    pulsar: FakePulsar, admin: PulsarAdmin, status: int, said: str
) -> None:
    pulsar.faults.refuse("/unload", status, "java.lang.Oops\n\tat java.lang.Thread.run(Thread.java:1)\n" * 50)
    with pytest.raises(PulsarRefusedError) as refused:
        await admin.unload(BUNDLE)
    message = str(refused.value)
    url = f"{pulsar.urls[2]}/admin/v2/namespaces/{BUNDLE}/unload"
    assert message.startswith(f"{url} answered {status} 'java.lang.Oops': ")
    assert said in message
    assert message.isprintable()
    assert len(message) < 600
    assert (refused.value.status, refused.value.reason) == (status, "java.lang.Oops")


async def test_next_address_is_asked_when_the_first_is_closed(pulsar: FakePulsar) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    async with an_admin([gone, pulsar.urls[0]]) as admin:
        assert await admin.brokers() == [each.broker_id for each in pulsar.brokers]
        await pulsar.kill(pulsar.brokers[0])
        with pytest.raises(PulsarUnreachableError, match=r"http://127\.0\.0\.") as error:
            await admin.brokers()
        assert error.value.was_not_heard


async def test_registered_broker_is_asked_when_the_configured_one_is_down(pulsar: FakePulsar) -> None:
    others = [each.broker_id for each in pulsar.brokers[:2]]
    async with an_admin([f"http://127.0.0.1:{closed_port()}"]) as admin:
        with pytest.raises(PulsarUnreachableError):
            await admin.brokers()
        admin.trust([BrokerId(f"127.0.0.1:{closed_port()}"), *others])
        assert set(others) <= set(await admin.brokers())


async def test_request_possibly_received_is_not_sent_to_another_broker(pulsar: FakePulsar) -> None:
    first, second, _ = pulsar.brokers
    await first.acquire(str(BUNDLE))
    pulsar.faults.hold("/unload", times=2, at=first.broker_id, done=True)
    async with an_admin([first.url, second.url]) as admin:
        with pytest.raises(PulsarUnreachableError, match=r"did not answer within 0.2 s: no answer") as error:
            await admin.unload(BUNDLE, timeout_s=0.2)
        assert not error.value.was_not_heard
        assert {each.broker_id for each in pulsar.asked} == {first.broker_id}
        await admin.brokers()
        assert pulsar.asked[-1].broker_id == second.broker_id


async def test_connection_timeout_counts_as_not_received() -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(full.getsockname()))
        async with an_admin([f"http://127.0.0.1:{full.getsockname()[1]}"]) as admin:
            with pytest.raises(PulsarUnreachableError) as error:
                await admin.look_up(BUNDLE, timeout_s=2.0)
    assert error.value.was_not_heard


async def test_request_that_kills_the_broker_counts_as_possibly_received(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    pulsar.faults.kill("/unload")
    with pytest.raises(PulsarUnreachableError) as error:
        await admin.unload(BUNDLE)
    assert not error.value.was_not_heard


async def test_oversized_answer_is_refused(elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmanager.net.http_client.LARGEST_ANSWER_BYTES", 3)
    elsewhere.status, elsewhere.location = 200, ""
    async with Talker() as talker, an_admin([talker.url]) as admin:
        with pytest.raises(PulsarRefusedError, match="an answer of more than 3 bytes: no answer of a Pulsar"):
            await admin.brokers()


class Talker(LoopbackServer):
    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._answer)]

    async def _answer(self, _: web.Request) -> web.Response:
        await asyncio.sleep(0)
        return web.Response(text="much more")


@pytest.mark.parametrize("urls", [[], ["b1:8080"], ["http://b1:8080/admin"], ["http://b1:8080", ""]])
async def test_invalid_address_is_rejected_at_once(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="expected the web service of"):
        an_admin(urls)
