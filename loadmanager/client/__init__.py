"""Client library: owner lookup with a pushed owner map. Needs only aiohttp and mmh3 (the extra `client`)."""

from loadmanager.util.optional_dependencies import naming_extra

try:
    from loadmanager.client.lookup_client import BlockingLookupClient, LookupClient
    from loadmanager.client.push_events import Owner
except ModuleNotFoundError as error:
    raise naming_extra(error, "client") from None

__all__ = ["BlockingLookupClient", "LookupClient", "Owner"]
