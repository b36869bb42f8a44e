from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.fake_pulsar import FakePulsar
from support.registrations import write
from support.servers import closed_port
from support.stores import MemoryWorld
from support.waiting import patience

from loadmanager.config import BesideSettings
from loadmanager.errors import ConfigurationError
from loadmanager.lab.decide.broker_settings import BrokerSettings
from loadmanager.pulsar.preflight import find_warnings, refuse_unfit
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.refusals import PulsarRefusedError, PulsarUnreachableError
from loadmanager.store.metadata_store import Delete, MetadataStore

ZOOKEEPER = "zk:127.0.0.1:2181"


def settings_for(*urls: str, **more: object) -> BesideSettings:
    return BesideSettings.model_validate({"pulsar_metadata_store_url": ZOOKEEPER, "admin_urls": urls, **more})


async def check(pulsar: FakePulsar, *urls: str, store: MetadataStore | None = None, **more: object) -> BrokerSettings:
    """All brokers of the Pulsar are configured, unless others are given."""
    settings = settings_for(*(urls or pulsar.urls), **more)
    async with PulsarAdmin(settings.admin_urls, token_file=settings.token_file, timeout_s=patience()) as admin:
        return await refuse_unfit(store or pulsar.operator, admin, settings)


async def refusal(pulsar: FakePulsar, *urls: str, store: MetadataStore | None = None, **more: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        await check(pulsar, *urls, store=store, **more)
    return str(refused.value)


@pytest.fixture
async def other(pulsar: FakePulsar) -> AsyncIterator[FakePulsar]:
    """Another Pulsar, with a metadata store of its own; its cluster is called the same."""
    world = MemoryWorld()
    async with FakePulsar(world, brokers=2, cluster=pulsar.cluster) as other:
        yield other
    await world.close()


@pytest.fixture
async def empty() -> AsyncIterator[MetadataStore]:
    world = MemoryWorld()
    yield await world.connect()
    await world.close()


async def test_one_pulsar_at_both_addresses_is_fit_and_tells_what_it_goes_by(pulsar: FakePulsar) -> None:
    told = await check(pulsar)
    assert (told.cluster, told.url) == ("rp", pulsar.urls[0])
    assert await find_warnings(pulsar.operator, told) == []


async def test_an_address_at_which_nobody_is_does_not_matter_while_another_answers(pulsar: FakePulsar) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    assert (await check(pulsar, gone, pulsar.urls[1])).url == pulsar.urls[1]
    with pytest.raises(PulsarUnreachableError, match=f"^{gone}/admin.*is it running"):
        await check(pulsar, gone)


async def test_a_pulsar_that_cannot_answer_now_is_not_wrongly_configured(pulsar: FakePulsar) -> None:
    pulsar.faults.refuse("/runtime", 503)
    with pytest.raises(PulsarRefusedError, match="answered 503"):
        await check(pulsar, pulsar.urls[0])


async def test_a_store_with_no_pulsar_or_with_a_cluster_of_ours_is_named(
    pulsar: FakePulsar, empty: MetadataStore
) -> None:
    said = await refusal(pulsar, store=empty)
    assert said.startswith(f"pulsarMetadataStoreUrl {ZOOKEEPER}: no Pulsar here, ")
    assert "with its chroot" in said
    await write(empty, "/loadbalance/epoch", b"")
    assert "a cluster of loadmanager's own (/loadbalance/epoch)" in await refusal(pulsar, store=empty)


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (404, b"nothing"), (302, b"")])
async def test_what_answers_and_is_no_pulsar_is_named(pulsar: FakePulsar, status: int, body: bytes) -> None:
    pulsar.faults.answer("/runtime", status, body)
    said = await refusal(pulsar)
    assert said.startswith(f"adminUrls: {pulsar.urls[0]}/admin/v2/brokers/configuration/runtime answered {status}")
    assert "such as http://broker:8080" in said or "or no Pulsar" in said


async def test_a_token_that_is_refused_is_said(pulsar: FakePulsar, tmp_path: Path) -> None:
    pulsar.token = "good"
    assert "answered 401 'Authentication required': it wants to know who asks" in await refusal(pulsar)
    token = tmp_path / "token"
    token.write_text("bad")
    assert f"the token in {token} is none of this Pulsar's" in await refusal(pulsar, token_file=token)


async def test_a_broker_of_another_cluster_is_refused_though_others_are_right(pulsar: FakePulsar) -> None:
    pulsar.brokers[2].settings["clusterName"] = "c9"
    said = await refusal(pulsar)
    assert said.startswith(f"adminUrls {pulsar.urls[2]}: a broker of the cluster 'c9', and ")
    assert said.endswith(" has rp: give brokers of the cluster in this metadata store")


async def test_brokers_of_another_cluster_than_the_one_that_is_configured_are_refused(pulsar: FakePulsar) -> None:
    assert (await check(pulsar, cluster_name="rp")).cluster == "rp"
    await write(pulsar.operator, "/admin/clusters/peer", b"{}")
    assert "of the cluster 'rp', and clusterName is 'peer'" in await refusal(pulsar, cluster_name="peer")


async def test_another_pulsar_is_not_taken_for_this_one_though_its_cluster_is_called_the_same(
    pulsar: FakePulsar, other: FakePulsar
) -> None:
    known, here = (", ".join(each.broker_id for each in each.brokers) for each in (other, pulsar))
    said = await refusal(pulsar, pulsar.urls[0], other.urls[0])
    assert said.startswith(
        f"adminUrls {other.urls[0]}: it knows the brokers {known}, and below /loadbalance/brokers of"
    )
    assert f" are {here}: give the metadata store of that Pulsar" in said


async def test_a_pulsar_whose_brokers_are_not_registered_yet_is_refused(pulsar: FakePulsar) -> None:
    for broker in pulsar.brokers:
        await broker.store.commit([Delete(broker.path)])
    assert "knows the brokers none, and below /loadbalance/brokers of" in await refusal(pulsar)


@pytest.mark.parametrize(
    ("url", "is_fit"),
    [
        ("zk:pulsar-zookeeper:2181/chroot", True),
        ("a:2181,b:2181", True),
        ("", True),
        ("oxia://oxia:6648", False),
        ("etcd:http://127.0.0.1:2379", False),
        ("rocksdb:///data", False),
        ("memory:local", False),
    ],
)
async def test_only_a_zookeeper_is_read_whatever_its_name_is(
    pulsar: FakePulsar, empty: MetadataStore, url: str, *, is_fit: bool
) -> None:
    pulsar.metadata_store_url = url
    if is_fit:
        await check(pulsar)
        return
    for store in (pulsar.operator, empty):
        said = await refusal(pulsar, store=store)
        assert said.startswith(f"adminUrls {pulsar.urls[0]}: its metadataStoreUrl is {url!r}: only a Pulsar whose")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl", "has ExtensibleLoadManagerImpl"),
        ("org.apache.pulsar.broker.loadbalance.impl.SimpleLoadManagerImpl", "has SimpleLoadManagerImpl"),
        (None, "has none that it names"),
    ],
)
async def test_one_broker_under_another_load_manager_is_enough(pulsar: FakePulsar, name: str | None, said: str) -> None:
    odd = pulsar.brokers[1]
    record = {**await odd.record(), "loadManagerClassName": name}
    await write(odd.store, odd.path, orjson.dumps(record))
    refused = await refusal(pulsar)
    assert refused.startswith(
        f"/loadbalance/brokers: loadManagerClassName: {odd.broker_id} {said}: every broker has to"
    )


@pytest.mark.parametrize("data", [b"", b"[1]", b"{"])
async def test_a_broker_whose_record_cannot_be_read_is_under_no_load_manager_that_we_know(
    pulsar: FakePulsar, data: bytes
) -> None:
    for broker in pulsar.brokers[:2]:
        await write(broker.store, broker.path, data)
    assert f"{pulsar.brokers[1].broker_id} has none that it names: every" in await refusal(pulsar)


async def test_of_many_brokers_some_are_named(pulsar: FakePulsar) -> None:
    for _ in range(5):
        await pulsar.join()
    for broker in pulsar.brokers:
        await write(broker.store, broker.path, b"{}")
    assert "has none that it names and 3 more: every" in await refusal(pulsar)


async def test_policies_in_a_store_of_their_own_are_a_warning_in_shadow_and_refused_where_we_act(
    pulsar: FakePulsar,
) -> None:
    key = "configurationMetadataStoreUrl"
    for same in ("", "zk:127.0.0.1:2181", "127.0.0.1:2181/"):
        pulsar.brokers[0].settings[key] = same
        assert await find_warnings(pulsar.operator, await check(pulsar)) == []
    pulsar.brokers[0].settings[key] = "zk:global:2181"
    (warning,) = await find_warnings(pulsar.operator, await check(pulsar))
    assert "configurationMetadataStoreUrl is 'zk:global:2181'" in warning
    acting: dict[str, Any] = {"mode": "act", "state_store_url": "zk:127.0.0.1:2181/ours"}
    assert (await refusal(pulsar, **acting)).startswith(warning)


async def test_a_version_that_was_not_tried_is_a_warning(pulsar: FakePulsar) -> None:
    pulsar.version = "4.0.9"
    await pulsar.brokers[1].report()
    (warning,) = await find_warnings(pulsar.operator, await check(pulsar))
    assert warning.startswith("brokers are of version 4.0.9, and 4.0.1 was tried")
