"""Token verification as in Pulsar's AuthenticationProviderToken: signature, times, audience, principal.

The configured key determines the signature algorithms (`token_keys.ValidationKey`), never the header of a token. So
neither the algorithm "none" nor a public key used as a secret is accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import jwt
from jwt.types import Options

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.net.auth.token_keys import ValidationKey

_OPTIONS: Options = {
    "verify_signature": True,
    "verify_exp": True,
    "verify_nbf": True,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}
"""The audience is checked if one is configured. The principal is checked here."""


class TokenFault(StrEnum):
    """Reason for which a token is rejected; a label of the metric."""

    MISSING = "missing"
    INVALID = "invalid"
    EXPIRED = "expired"
    AUDIENCE = "audience"
    PRINCIPAL = "principal"
    FORBIDDEN = "forbidden"


class TokenError(Exception):
    """A rejected token, with the reason; never the token itself."""

    def __init__(self, fault: TokenFault, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Claimed:
    """Principal of a verified token, and its expiry in seconds since the epoch."""

    principal: str
    expires_s: float


def bearer_token(authorization: str) -> str | None:
    """Return the token in an Authorization header; None for another scheme. Case-insensitive (RFC 9110, 11.1)."""
    scheme, space, token = authorization.partition(" ")
    return token.strip() if space and scheme.lower() == "bearer" else None


def check_token(token: str, key: ValidationKey, settings: AuthSettings) -> Claimed:
    """Verify the token; raises `TokenError` if it is rejected."""
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=list(key.algorithms),
            options={**_OPTIONS, "verify_aud": bool(settings.token_audience)},
            audience=settings.token_audience or None,
            leeway=settings.token_allowed_clock_skew_seconds,
        )
    except jwt.ExpiredSignatureError:
        raise TokenError(TokenFault.EXPIRED, "the token has expired") from None
    except jwt.ImmatureSignatureError:
        raise TokenError(TokenFault.EXPIRED, "the token is not valid yet") from None
    except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError):
        raise TokenError(TokenFault.AUDIENCE, "the claim aud of the token does not contain tokenAudience") from None
    except jwt.InvalidAlgorithmError:
        taken = " or ".join(key.algorithms)
        raise TokenError(TokenFault.INVALID, f"the token is signed by another algorithm than {taken}") from None
    except jwt.InvalidSignatureError:
        raise TokenError(TokenFault.INVALID, "the token is not signed with the key of this cluster") from None
    except (jwt.PyJWTError, ValueError, OverflowError):
        raise TokenError(TokenFault.INVALID, "the token is not a readable JWT") from None
    expires = claims.get("exp")
    until_s = math.inf if expires is None else int(expires) + settings.token_allowed_clock_skew_seconds
    return Claimed(_principal(claims, settings.token_auth_claim), until_s)


def _principal(claims: dict[str, Any], claim: str) -> str:
    """Return the principal, as in Pulsar: a string, or the first of a list."""
    principal = claims.get(claim)
    if isinstance(principal, list) and principal:
        principal = principal[0]
    if not isinstance(principal, str) or not principal.strip() or not principal.isprintable():
        raise TokenError(TokenFault.PRINCIPAL, f"the token has no claim {claim} with a principal")
    return principal
