"""The fake of a Pulsar against what is known of Pulsar: other tests stand on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import quote

import orjson
import pytest
from support.fake_pulsar import FakePulsar
from support.stores import MemoryWorld
from support.waiting import eventually

from loadmanager.net.http_client import HttpAnswer, HttpClient, PeerUnavailableError
from loadmanager.store.metadata_store import Delete
from loadmanager.wire.broker_data import decode_local_broker_data

BUNDLE = "lm/bench/0x00000000_0x40000000"
UNLOAD = f"/admin/v2/namespaces/{BUNDLE}/unload"
TOPIC = "/lookup/v2/topic/persistent/lm/bench/my-topic-2"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as http:
        yield http


def where(answer: HttpAnswer) -> str:
    return answer.headers["Location"]


async def put(http: HttpClient, url: str, destination: str = "") -> HttpAnswer:
    query = f"?destinationBroker={quote(destination, safe='')}" if destination else ""
    return await http.call("PUT", url + query, 30.0, headers=JSON)


async def test_unload_is_redirected_to_leader_and_owner_and_lookup_to_the_destination(
    pulsar: FakePulsar, http: HttpClient
) -> None:
    leader, owner, to = pulsar.brokers
    await owner.acquire(BUNDLE)
    first = await put(http, f"{to.url}{UNLOAD}", to.broker_id)
    assert first.status == 307
    assert where(first) == (
        f"{leader.url}{UNLOAD}?destinationBroker={to.broker_id.replace(':', '%3A')}&authoritative=false"
    )
    second = await http.call("PUT", where(first), 30.0, headers=JSON)
    assert (second.status, where(second)) == (307, f"{owner.url}{UNLOAD}?authoritative=false")
    third = await http.call("PUT", where(second), 30.0, headers=JSON)
    assert (third.status, third.body) == (204, b"")
    assert await pulsar.owner(BUNDLE) is None
    asked = await http.call("GET", f"{owner.url}{TOPIC}", 30.0)
    assert (asked.status, where(asked)) == (307, f"{leader.url}{TOPIC}?authoritative=false")
    decided = await http.call("GET", where(asked), 30.0)
    assert (decided.status, where(decided)) == (307, f"{to.url}{TOPIC}?authoritative=true")
    taken = await http.call("GET", where(decided), 30.0)
    assert taken.status == 200
    assert orjson.loads(taken.body)["httpUrl"] == to.url
    assert await pulsar.owner(BUNDLE) == to.broker_id
    assert leader.affinity == {}


async def test_affinity_of_a_leader_is_lost_with_it(pulsar: FakePulsar, http: HttpClient) -> None:
    leader, second, third = pulsar.brokers
    await second.acquire(BUNDLE)
    await put(http, f"{leader.url}{UNLOAD}", third.broker_id)
    assert leader.affinity == {BUNDLE: third.broker_id}
    await pulsar.kill(leader)
    assert await pulsar.leader() == second.broker_id
    assert second.affinity == {}


@pytest.mark.parametrize(
    ("bundle", "destination", "status", "reason"),
    [
        (
            "bench/0x00000000_0x40000000",
            "127.0.0.9:1",
            409,
            "Not allowed unload namespace bundle to inactive destination broker",
        ),
        ("bench/0x00000000_0x80000000", "", 412, "Invalid upper boundary for bundle"),
        ("none/0x00000000_0x80000000", "", 404, "Namespace not found"),
    ],
)
async def test_invalid_unload_is_refused_with_a_reason(
    pulsar: FakePulsar, http: HttpClient, bundle: str, destination: str, status: int, reason: str
) -> None:
    answer = await put(http, f"{pulsar.urls[0]}/admin/v2/namespaces/lm/{bundle}/unload", destination)
    assert (answer.status, orjson.loads(answer.body)) == (status, {"reason": reason})


async def test_unload_without_a_registered_leader_is_refused(pulsar: FakePulsar, http: HttpClient) -> None:
    leader, second, _ = pulsar.brokers
    await pulsar.operator.commit([Delete(leader.path)])
    assert (await put(http, f"{second.url}{UNLOAD}", second.broker_id)).status == 404
    pulsar.elects = False
    await pulsar.kill(leader)
    assert (await put(http, f"{second.url}{UNLOAD}", second.broker_id)).status == 412


async def test_unload_without_an_owner_succeeds_and_needs_json(pulsar: FakePulsar, http: HttpClient) -> None:
    assert (await put(http, f"{pulsar.urls[0]}{UNLOAD}")).status == 204
    octets = await http.call("PUT", f"{pulsar.urls[0]}{UNLOAD}", 30.0)
    assert octets.status == 415


async def test_lookup_returns_the_owner_and_the_bundle(pulsar: FakePulsar, http: HttpClient) -> None:
    await pulsar.brokers[2].acquire(BUNDLE)
    for url in pulsar.urls:
        answer = await http.call("GET", f"{url}{TOPIC}", 30.0)
        assert (answer.status, orjson.loads(answer.body)["httpUrl"]) == (200, pulsar.urls[2])
    answer = await http.call("GET", f"{pulsar.urls[0]}{TOPIC}/bundle", 30.0)
    assert answer.body == b"0x00000000_0x40000000"


async def test_only_non_persistent_topics_are_found_without_auto_creation(pulsar: FakePulsar, http: HttpClient) -> None:
    pulsar.auto_topic_creation = False
    url = pulsar.urls[0]
    assert (await http.call("GET", f"{url}{TOPIC}", 30.0)).status == 404
    assert (await http.call("GET", f"{url}{TOPIC.replace('persistent', 'non-persistent')}", 30.0)).status != 404


async def test_reports_have_the_format_of_a_broker(pulsar: FakePulsar) -> None:
    first, second, _ = pulsar.brokers
    await first.acquire(BUNDLE)
    pulsar.load(BUNDLE, rate=200.0)
    second.reporting = False
    before = await pulsar.operator.get(second.path)
    await pulsar.report()
    assert await pulsar.operator.get(second.path) == before
    znode = await pulsar.operator.get(first.path)
    assert znode is not None
    record = decode_local_broker_data(znode.data, first.path)
    assert (record["msgRateIn"], record["msgThroughputOut"], record["numTopics"]) == (200.0, 204_800.0, 2)
    assert record["bundles"] == record["lastBundleGains"] == [BUNDLE]
    assert record["cpu"] == {"usage": 20.0, "limit": 100.0}
    await first.release(BUNDLE)
    await pulsar.report()
    assert (await pulsar.content(first.path))["lastBundleLosses"] == [BUNDLE]


async def test_dynamic_configuration_overrides_the_file_of_each_broker(pulsar: FakePulsar, http: HttpClient) -> None:
    url = f"{pulsar.urls[0]}/admin/v2/brokers/configuration"
    key = "loadBalancerSheddingEnabled"
    pulsar.brokers[1].settings[key] = "false"

    async def effective() -> list[str]:
        answers = [await http.call("GET", f"{url}/admin/v2/brokers/configuration/runtime", 30.0) for url in pulsar.urls]
        return [orjson.loads(answer.body)[key] for answer in answers]

    assert await effective() == ["true", "false", "true"]
    assert (await http.call("POST", f"{url}/{key}/true", 30.0)).status == 200
    assert await effective() == ["true", "true", "true"]
    assert orjson.loads((await http.call("GET", f"{url}/values", 30.0)).body) == {key: "true"}
    assert (await http.call("DELETE", f"{url}/{key}", 30.0)).status == 200
    assert await effective() == ["true", "false", "true"]
    assert (await http.call("POST", f"{url}/loadBalancerEnabled/false", 30.0)).status == 412


@pytest.mark.parametrize(("unload", "owner"), [("false", 1), ("true", None)])
async def test_split_halves_the_bundle_and_the_owner_keeps_the_parts_by_default(
    pulsar: FakePulsar, http: HttpClient, unload: str, owner: int | None
) -> None:
    await pulsar.brokers[1].acquire(BUNDLE)
    path = f"/admin/v2/namespaces/{BUNDLE}/split?unload={unload}"
    first = await put(http, pulsar.urls[0] + path)
    assert where(first).startswith(pulsar.urls[1] + path)
    assert (await http.call("PUT", where(first), 30.0, headers=JSON)).status == 204
    ranges = (await pulsar.bundles("lm/bench")).range_texts()[:2]
    assert ranges == ("0x00000000_0x20000000", "0x20000000_0x40000000")
    kept = None if owner is None else pulsar.brokers[owner].broker_id
    assert [await pulsar.owner(f"lm/bench/{each}") for each in ranges] == [kept, kept]


async def test_killed_broker_disappears_with_its_znodes(pulsar: FakePulsar, http: HttpClient) -> None:
    leader, owner, _ = pulsar.brokers
    await owner.acquire(BUNDLE)
    pulsar.faults.kill("/unload", at=owner.broker_id)
    with pytest.raises(PeerUnavailableError):
        await put(http, f"{owner.url}{UNLOAD}")
    await eventually(lambda: not pulsar.dying)
    assert await pulsar.operator.children("/loadbalance/brokers") == [leader.broker_id, pulsar.brokers[1].broker_id]
    assert await pulsar.owner(BUNDLE) is None
    with pytest.raises(PeerUnavailableError):
        await put(http, f"{owner.url}{UNLOAD}")


async def test_answers_can_be_refused_redirected_and_held(pulsar: FakePulsar, http: HttpClient) -> None:
    url = f"{pulsar.urls[1]}{UNLOAD}"
    await pulsar.brokers[1].acquire(BUNDLE)
    pulsar.faults.refuse("/unload", 500, "no")
    pulsar.faults.send_away("/unload", "http://127.0.0.1:1")
    pulsar.faults.hold("/unload", done=True)
    answer = await put(http, url)
    assert (answer.status, answer.body) == (500, b'{"reason":"no"}')
    assert where(await put(http, url)) == f"http://127.0.0.1:1{UNLOAD}"
    call = asyncio.ensure_future(put(http, url))
    await eventually(lambda: _is_nobodys(pulsar))
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert (await put(http, url)).status == 204
    assert [each.broker_id for each in pulsar.asked] == [pulsar.brokers[1].broker_id] * 4


async def _is_nobodys(pulsar: FakePulsar) -> bool:
    return await pulsar.owner(BUNDLE) is None


async def test_bundle_can_land_elsewhere_or_nowhere(pulsar: FakePulsar, http: HttpClient) -> None:
    leader, second, third = pulsar.brokers
    await put(http, f"{leader.url}{UNLOAD}", second.broker_id)
    pulsar.lands[BUNDLE] = None
    assert (await http.call("GET", f"{leader.url}{TOPIC}", 30.0)).status == 503
    await put(http, f"{leader.url}{UNLOAD}", second.broker_id)
    pulsar.lands[BUNDLE] = third.broker_id
    assert where(await http.call("GET", f"{leader.url}{TOPIC}", 30.0)).startswith(third.url)


async def test_leaving_broker_releases_its_bundles_and_brokers_can_join(pulsar: FakePulsar, world: MemoryWorld) -> None:
    leader, second, third = pulsar.brokers
    await leader.acquire(BUNDLE)
    await pulsar.leave(leader)
    assert await pulsar.owner(BUNDLE) is None
    assert await pulsar.leader() == second.broker_id
    joined = await pulsar.join()
    assert pulsar.brokers == [second, third, joined]
    store = await world.connect()
    assert joined.broker_id in await store.children("/loadbalance/brokers")
    await pulsar.move(BUNDLE, joined.broker_id)
    assert await joined.owned() == [BUNDLE]
