from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.fake_pulsar import IMPL, FakePulsar
from support.waiting import patience

from loadmanager.core.domain.names import BrokerId, BundleName
from loadmanager.errors import InvalidRecordError
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import PulsarRefusedError

BUNDLE = BundleName.parse("lm/bench/0x40000000_0x80000000")


@pytest.fixture
async def admin(pulsar: FakePulsar) -> AsyncIterator[PulsarAdmin]:
    async with PulsarAdmin(pulsar.urls[:1], timeout_s=patience()) as admin:
        admin.trust([each.broker_id for each in pulsar.brokers])
        yield admin


def asked(pulsar: FakePulsar) -> list[str]:
    return [f"{each.method} {each.path}" for each in pulsar.asked]


async def test_move_is_an_unload_with_a_destination_and_one_lookup(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    _, owner, to = pulsar.brokers
    await owner.acquire(str(BUNDLE))
    await admin.unload(BUNDLE, to.broker_id)
    await admin.look_up(BUNDLE)
    assert await pulsar.owner(str(BUNDLE)) == to.broker_id


async def test_lookup_of_an_owned_bundle_moves_nothing(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    await pulsar.brokers[2].acquire(str(BUNDLE))
    await admin.look_up(BUNDLE)
    assert await pulsar.owner(str(BUNDLE)) == pulsar.brokers[2].broker_id
    assert len(pulsar.asked) == 1


async def test_lookup_places_a_bundle_without_topic_auto_creation(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    pulsar.auto_topic_creation = False
    await admin.look_up(BUNDLE)
    assert await pulsar.owner(str(BUNDLE)) is not None
    assert [each.path.split("/")[4] for each in pulsar.asked[:2]] == ["persistent", "non-persistent"]


async def test_lookup_of_a_missing_namespace_or_without_a_broker_is_refused(
    pulsar: FakePulsar, admin: PulsarAdmin
) -> None:
    with pytest.raises(PulsarRefusedError, match="404 'Namespace not found'"):
        await admin.look_up(BundleName.parse("lm/none/0x00000000_0xffffffff"))
    pulsar.lands[str(BUNDLE)] = None
    with pytest.raises(PulsarRefusedError, match=r"answered 503: Pulsar failed") as refused:
        await admin.look_up(BUNDLE)
    assert refused.value.status == 503


async def test_split_passes_algorithm_positions_and_unload(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    await pulsar.brokers[1].acquire(str(BUNDLE))
    await admin.split(BUNDLE, algorithm="specified_positions_divide", positions=[0x50000000], unload=False)
    assert asked(pulsar)[0].endswith("/split?unload=false&splitAlgorithmName=specified_positions_divide")
    assert (await pulsar.bundles("lm/bench")).boundaries[1:4] == (0x40000000, 0x50000000, 0x80000000)
    await admin.split(BundleName.parse("lm/bench/0x40000000_0x50000000"), unload=True)
    assert (await pulsar.bundles("lm/bench")).boundaries[1:4] == (0x40000000, 0x48000000, 0x50000000)


async def test_dynamic_configuration_is_set_read_and_deleted(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    key, value = "loadBalancerSheddingExcludedNamespaces", "lm/a b,lm/%/?"
    await admin.set_dynamic(key, value)
    assert await admin.dynamic() == await pulsar.dynamic() == {key: value}
    await admin.delete_dynamic(key)
    assert await admin.dynamic() == {}
    with pytest.raises(PulsarRefusedError, match=r"412 .*non-dynamic.*the key is not dynamic"):
        await admin.set_dynamic("loadBalancerEnabled", "false")


async def test_settings_are_read_from_each_broker(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    pulsar.brokers[1].settings["loadBalancerSheddingEnabled"] = "false"
    told = [await admin.settings(url) for url in pulsar.urls]
    assert [each.texts["loadBalancerSheddingEnabled"] for each in told] == ["true", "false", "true"]
    assert told[0].cluster == "rp"
    assert told[0].load_manager == f"{IMPL}.ModularLoadManagerImpl"


@pytest.mark.parametrize("url", ["", "nonsense", "http://b1:8080/path"])
async def test_broker_without_a_valid_address_is_refused(admin: PulsarAdmin, url: str) -> None:
    with pytest.raises(PulsarRefusedError, match=f"^the web service of a broker '{url}': expected") as refused:
        await admin.settings(url)
    assert refused.value.status == 0


@pytest.mark.parametrize(
    ("configured", "address"), [("http://a:1", "http://b:8080"), ("https://a:8443", "https://b:8443")]
)
async def test_broker_address_uses_the_configured_scheme(configured: str, address: str) -> None:
    async with PulsarAdmin([configured]) as admin:
        assert admin.address(BrokerId("b:8080")) == address


async def test_version_brokers_and_leader_are_read(pulsar: FakePulsar, admin: PulsarAdmin) -> None:
    assert await admin.version(pulsar.urls[0]) == "4.0.1"
    assert await admin.brokers() == [each.broker_id for each in pulsar.brokers]
    assert await admin.leader() == pulsar.brokers[0].broker_id
    pulsar.elects = False
    await pulsar.kill(pulsar.brokers[0])
    async with PulsarAdmin(pulsar.urls, timeout_s=patience()) as other:
        assert await other.leader() is None
        pulsar.faults.refuse("leaderBroker", 500)
        with pytest.raises(PulsarRefusedError, match="answered 500"):
            await other.leader()


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[1]", b'{"a": 1}'])
async def test_answer_of_another_service_is_rejected(pulsar: FakePulsar, admin: PulsarAdmin, body: bytes) -> None:
    pulsar.faults.answer("/brokers", 200, body, times=3)
    with pytest.raises(InvalidRecordError, match=r"^http://.*/brokers: (not JSON|expected a list of names)"):
        await admin.brokers()
    for answer in (admin.settings(pulsar.urls[0]), admin.leader()):
        with pytest.raises(
            PulsarRefusedError, match=r"answered 200.*: not an answer of a Pulsar: give the web service"
        ):
            await answer
