"""Preflight check at the start: ask the configured brokers, and refuse a configuration that cannot work.

| answer | outcome |
|---|---|
| not from a Pulsar, or the token is refused | `ConfigurationError` |
| none, or a temporary failure | `PulsarUnreachableError`, `PulsarRefusedError`: start again later |
| from a broker of another cluster | `ConfigurationError` |
| an untested version | a warning |
"""

from __future__ import annotations

from loadmanager.config.pulsar_service_settings import PulsarServiceSettings
from loadmanager.errors import ConfigurationError
from loadmanager.pulsar.broker_settings import BrokerSettings
from loadmanager.pulsar.pulsar_admin import PulsarAdmin
from loadmanager.pulsar.refusals import FAULTS_OF_ITS_OWN, PulsarRefusedError, PulsarUnreachableError

_TRIED = ("4.0.1", "4.2.4", "5.0.0-M1")
_BUSY = 429


async def ask_settings(admin: PulsarAdmin, settings: PulsarServiceSettings) -> BrokerSettings:
    """Return the settings of the first broker that answers; raises as the table says."""
    answers = [await _ask(admin, url) for url in settings.admin_urls]
    answered = [each for each in answers if isinstance(each, BrokerSettings)]
    errors = [each for each in answers if not isinstance(each, BrokerSettings)]
    wanted = settings.cluster_name or next((each.cluster for each in answered), "")
    for each in answered:
        if each.cluster != wanted:
            raise ConfigurationError(
                f"adminUrls {each.url}: a broker of the cluster {each.cluster!r}, and not of {wanted!r}: give brokers"
                " of one cluster, or leave clusterName out"
            )
    if not answered:
        raise errors[0]
    return answered[0]


async def find_warning(admin: PulsarAdmin, broker: BrokerSettings) -> str | None:
    """Return the warning for an untested version, None for a tested one."""
    version = await admin.version(broker.url)
    if version in _TRIED:
        return None
    return f"the brokers have version {version}; tried versions are {', '.join(_TRIED)}: observe before you act"


async def _ask(admin: PulsarAdmin, url: str) -> BrokerSettings | PulsarRefusedError | PulsarUnreachableError:
    """Return the settings of a broker, or a temporary error. Raises `ConfigurationError` for a permanent error."""
    try:
        return await admin.settings(url)
    except PulsarUnreachableError as error:
        return error
    except PulsarRefusedError as error:
        if error.status == _BUSY or error.status >= FAULTS_OF_ITS_OWN:
            return error
        raise ConfigurationError(f"adminUrls: {error}") from None
