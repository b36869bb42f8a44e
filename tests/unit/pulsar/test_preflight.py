from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_pulsar import FakePulsar
from support.servers import closed_port
from support.waiting import patience

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.errors import ConfigurationError
from loadmanager.pulsar.broker_settings import BrokerSettings
from loadmanager.pulsar.preflight import ask_settings, find_warning
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.rest_call import PulsarRefusedError, PulsarUnreachableError


async def check(pulsar: FakePulsar, *urls: str, **more: object) -> BrokerSettings:
    """All brokers of the Pulsar are configured, unless others are given."""
    settings = PulsarServiceSettings.model_validate({"admin_urls": urls or pulsar.urls, **more})
    async with PulsarAdmin(settings.admin_urls, token_file=settings.token_file, timeout_s=patience()) as admin:
        return await ask_settings(admin, settings)


async def refusal(pulsar: FakePulsar, *urls: str, **more: object) -> str:
    with pytest.raises(ConfigurationError) as refused:
        await check(pulsar, *urls, **more)
    return str(refused.value)


async def test_cluster_of_the_configured_brokers_is_accepted(pulsar: FakePulsar) -> None:
    told = await check(pulsar)
    assert (told.cluster, told.url) == ("rp", pulsar.urls[0])
    async with PulsarAdmin(pulsar.urls, timeout_s=patience()) as admin:
        assert await find_warning(admin, told) is None
        pulsar.version = "4.0.9"
        assert await find_warning(admin, told) == (
            "the brokers have version 4.0.9; tried versions are 4.0.1, 4.2.4, 5.0.0-M1: observe before you act"
        )


async def test_unreachable_address_is_ignored_while_another_answers(pulsar: FakePulsar) -> None:
    gone = f"http://127.0.0.1:{closed_port()}"
    assert (await check(pulsar, gone, pulsar.urls[1])).url == pulsar.urls[1]
    with pytest.raises(PulsarUnreachableError, match=f"^{gone}/admin.*is it running"):
        await check(pulsar, gone)


async def test_unavailable_pulsar_is_no_configuration_error(pulsar: FakePulsar) -> None:
    pulsar.faults.refuse("/runtime", 503)
    with pytest.raises(PulsarRefusedError, match="answered 503"):
        await check(pulsar, pulsar.urls[0])


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (404, b"nothing"), (302, b"")])
async def test_other_service_at_the_address_is_named(pulsar: FakePulsar, status: int, body: bytes) -> None:
    pulsar.faults.answer("/runtime", status, body)
    said = await refusal(pulsar)
    assert said.startswith(f"adminUrls: {pulsar.urls[0]}/admin/v2/brokers/configuration/runtime answered {status}")
    assert "such as http://broker:8080" in said or "is no Pulsar" in said


async def test_refused_token_is_named(pulsar: FakePulsar, tmp_path: Path) -> None:
    pulsar.token = "good"
    assert "answered 401 'Authentication required': it wants to know who asks" in await refusal(pulsar)
    token = tmp_path / "token"
    token.write_text("bad")
    assert f"the token in {token} is none of this Pulsar's" in await refusal(pulsar, token_file=token)


async def test_broker_of_another_cluster_is_refused(pulsar: FakePulsar) -> None:
    pulsar.brokers[2].settings["clusterName"] = "c9"
    said = await refusal(pulsar)
    assert said.startswith(f"adminUrls {pulsar.urls[2]}: a broker of the cluster 'c9', and not of 'rp'")
    assert (await check(pulsar, pulsar.urls[0], cluster_name="rp")).cluster == "rp"
    assert "a broker of the cluster 'rp', and not of 'peer'" in await refusal(pulsar, cluster_name="peer")


async def test_a_valid_token_of_a_role_without_rights_is_named(pulsar: FakePulsar, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("valid")
    body = b'{"reason": "Unauthorized to validateSuperUserAccess for originalPrincipal [null] and clientAppId [shop]"}'
    pulsar.faults.answer("/runtime", 401, body, times=2)
    assert "role shop lacks rights: add it to superUserRoles" in await refusal(pulsar, pulsar.urls[0], token_file=token)
