"""Settings of who may ask a process of ours, and of who we are to others. Pulsar's keys keep their names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from loadmanager.config.settings_base import KeyedSettings

PublicAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]

EVERYBODY = "*"
"""In a list of principals: whoever has a token."""


def _named(principals: frozenset[str]) -> frozenset[str]:
    if EVERYBODY in principals:
        raise ValueError(f"{EVERYBODY} is not taken here: name the principals")
    return principals


Named = Annotated[frozenset[str], AfterValidator(_named)]


class AuthSettings(KeyedSettings):
    """Who may ask for what, by a JWT as Pulsar's AuthenticationProviderToken takes it."""

    authentication_enabled: bool = Field(
        False, description="Want a token from all but probes. While this is off, anyone may do anything."
    )
    authorization_enabled: bool = Field(
        True,
        description="Go by the lists of roles below. Off: whoever has a token may do anything (Pulsar's default).",
    )
    token_secret_key: SecretStr = Field(
        SecretStr(""),
        description="The key that tokens are signed with, 32 bytes or more: file:///path or a path (the file's bytes"
        " are the key), data:;base64,... or base64. Give this or tokenPublicKey; a file is read again when it changes.",
    )
    token_public_key: str = Field(
        "",
        description="The public key of the pair that tokens are signed with, DER or PEM: file:///path or a path,"
        " data:;base64,... or base64. The file is read again when it changes.",
    )
    token_public_alg: PublicAlgorithm = Field(
        "RS256", description="The algorithm of tokens that are signed with a key pair; no other is taken."
    )
    token_auth_claim: str = Field(
        "sub", min_length=1, description="The claim of a token that says whose it is: its principal."
    )
    token_audience_claim: str = Field(
        "", description="The claim that says whom a token is for, such as aud; empty: any will do."
    )
    token_audience: str = Field("", description="What tokenAudienceClaim has to say, or to have in its list.")
    token_allowed_clock_skew_seconds: int = Field(
        0, ge=0, le=86_400, description="By so much a token's times may be off."
    )
    super_user_roles: Named = Field(
        frozenset(), description="Principals that may do anything: alone namespaces, policies and dynamic settings."
    )
    operate_roles: frozenset[str] = Field(
        frozenset(),
        description="Principals that may move bundles and keep them from moving, read, and look up; * is everybody"
        " with a token, here and in the lists below.",
    )
    read_roles: frozenset[str] = Field(
        frozenset(), description="Principals that may ask what changes nothing: Prometheus, dashboards."
    )
    lookup_roles: frozenset[str] = Field(
        frozenset({EVERYBODY}), description="Principals that may look topics up: clients."
    )
    peer_roles: frozenset[str] = Field(
        frozenset(),
        description="Principals of nodes and agents: what these processes ask each other, and to read and look up.",
    )
    proxy_roles: Named = Field(
        frozenset(),
        description="Principals that ask for others, whom X-Original-Principal names; both need the permission.",
    )
    broker_client_authentication_parameters: SecretStr = Field(
        SecretStr(""),
        description="The token that this process shows to nodes and agents: token:... or file:///path, which is read"
        " again when it changes.",
    )
