"""Tokens of one secret, for tests of who may ask for what."""

from __future__ import annotations

import base64
import time
from typing import Any

from pydantic import SecretStr

from loadmanager.net.auth.gate import AccessRole
from loadmanager.net.auth.token_keys import create_token

SECRET = b"a secret of 32 bytes, or of more."

PRINCIPALS = {
    "reader": {AccessRole.READ},
    "client": {AccessRole.LOOKUP},
    "operator": {AccessRole.OPERATE, AccessRole.READ, AccessRole.LOOKUP},
}
PRINCIPALS |= {"node": {AccessRole.PEER, AccessRole.READ, AccessRole.LOOKUP}, "root": set(AccessRole)}
"""What each of them may do under `CLOSED`, besides what anyone may."""


def token_of(principal: str, **claims: Any) -> str:  # noqa: ANN401 - whatever a claim may be
    return create_token(SECRET, "HS256", {"sub": principal, **claims})


def expired_token_of(principal: str) -> str:
    return token_of(principal, exp=int(time.time()) - 60)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


CLOSED: dict[str, Any] = {
    "authentication_enabled": True,
    "token_secret_key": SecretStr(f"data:;base64,{base64.b64encode(SECRET).decode()}"),
    "super_user_roles": frozenset({"root"}),
    "operate_roles": frozenset({"operator"}),
    "read_roles": frozenset({"reader"}),
    "lookup_roles": frozenset({"client"}),
    "peer_roles": frozenset({"node"}),
    "broker_client_authentication_parameters": SecretStr(f"token:{token_of('node')}"),
}
"""Settings of a process that asks everybody for a token."""
