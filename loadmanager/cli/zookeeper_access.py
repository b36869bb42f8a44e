"""ZooKeeper credentials and TLS of a process, by its settings."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from importlib.util import find_spec

from loadmanager.config import SessionSettings
from loadmanager.errors import ConfigurationError
from loadmanager.net.tls_contexts import RenewedTls, TlsKeys, TlsOptions
from loadmanager.store.zookeeper_acl import Access, Acls, identities_of, read_credentials

_KEYS = TlsKeys(
    *map(
        SessionSettings.key,
        (
            "metadata_store_tls_trust_certs_file_path",
            "metadata_store_tls_certificate_file_path",
            "metadata_store_tls_key_file_path",
        ),
    )
)


def access_of(settings: SessionSettings) -> Access:
    """To the store of our own; `ConfigurationError` names the key, and the file, of what cannot be used."""
    key = settings.key("metadata_store_credentials")
    ours = read_credentials(key, settings.metadata_store_credentials, settings.metadata_store_auth_scheme)
    _check_sasl(settings.key("metadata_store_auth_scheme"), settings.metadata_store_auth_scheme)
    nodes = identities_of(settings.key("metadata_store_node_ids"), settings.metadata_store_node_ids)
    agents = identities_of(settings.key("metadata_store_agent_ids"), settings.metadata_store_agent_ids)
    nodes = nodes or ((ours.identity,) if ours else ())
    if agents and not nodes:
        raise ConfigurationError(
            f"{settings.key('metadata_store_agent_ids')}: without {key} or {settings.key('metadata_store_node_ids')}"
            " nobody could write"
        )
    acls = Acls(nodes, agents) if settings.metadata_store_acl == "secure" else Acls()
    return Access(ours, _tls(settings, enabled=settings.metadata_store_tls_enabled), acls)


def _check_sasl(key: str, scheme: str) -> None:
    if scheme == "sasl" and find_spec("puresasl") is None:
        raise ConfigurationError(f"{key} sasl: needs the package pure-sasl: install loadmanager[sasl]")


def _tls(settings: SessionSettings, *, enabled: bool) -> Callable[[], ssl.SSLContext] | None:
    if not enabled:
        return None
    options = TlsOptions(
        trust_certs=settings.metadata_store_tls_trust_certs_file_path,
        certificate=settings.metadata_store_tls_certificate_file_path,
        key=settings.metadata_store_tls_key_file_path,
        hostname_verification=settings.metadata_store_tls_hostname_verification_enable,
        keys=_KEYS,
    )
    return RenewedTls(options).context
