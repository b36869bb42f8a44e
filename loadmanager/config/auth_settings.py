"""Settings of authentication and authorization. Pulsar's keys keep their names."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from loadmanager.config.settings_base import KeyedSettings

EVERYBODY = "*"
"""In a list of principals: everyone with a token."""


def _require_named(principals: frozenset[str]) -> frozenset[str]:
    if EVERYBODY in principals:
        raise ValueError(f"{EVERYBODY} is not taken here: name the principals")
    return principals


Named = Annotated[frozenset[str], AfterValidator(_require_named)]


class AuthSettings(KeyedSettings):
    """Authentication by JWT, as Pulsar's AuthenticationProviderToken does it, and the roles of principals."""

    authentication_enabled: bool = Field(
        False,
        description="Require a token for everything except health checks. While this is off, everybody may do"
        " everything.",
    )
    authorization_enabled: bool = Field(
        True,
        description="Check the roles below. Off: every valid token may do everything (Pulsar's default).",
    )
    token_secret_key: SecretStr = Field(
        SecretStr(""),
        description="Symmetric key of tokens, at least 32 bytes: file:///path or a path (the bytes of the file"
        " are the key), data:;base64,... or base64. Set this or tokenPublicKey. A changed file is"
        " read again.",
    )
    token_public_key: str = Field(
        "",
        description="Public key of tokens, DER or PEM: file:///path or a path, data:;base64,... or base64. A"
        " changed file is read again.",
    )
    token_auth_claim: str = Field("sub", min_length=1, description="Claim with the principal of a token.")
    token_audience: str = Field(
        "", description="Required audience: the claim aud of a token, or one in its list. Empty: any."
    )
    token_allowed_clock_skew_seconds: int = Field(0, ge=0, le=86_400, description="Tolerance for the times in a token.")
    super_user_roles: Named = Field(
        frozenset(),
        description="Principals that may do everything. Only they change namespaces, policies and dynamic settings.",
    )
    operate_roles: frozenset[str] = Field(
        frozenset(),
        description="Principals that may move, pin and freeze bundles, read, and look up. Here and in the lists"
        " below * stands for every valid token.",
    )
    read_roles: frozenset[str] = Field(
        frozenset(), description="Principals that may read, such as Prometheus and dashboards."
    )
    lookup_roles: frozenset[str] = Field(
        frozenset({EVERYBODY}), description="Principals that may look topics up, such as clients."
    )
    peer_roles: frozenset[str] = Field(
        frozenset(),
        description="Principals of nodes and agents. They may call each other, read, and look up.",
    )
    proxy_roles: Named = Field(
        frozenset(),
        description="Principals that forward requests of others, named by X-Original-Principal. Both need the"
        " permission.",
    )
    broker_client_authentication_parameters: SecretStr = Field(
        SecretStr(""),
        description="Token of this process for nodes and agents: token:... or file:///path. A changed file is"
        " read again.",
    )
