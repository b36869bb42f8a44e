"""Keys and tokens for a first setup, in the forms of `pulsar tokens`."""

from __future__ import annotations

import secrets
from typing import Literal, get_args

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from loadmanager.config.auth_settings import PublicAlgorithm
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.token_keys import PEM, SECRET_BYTES

SecretAlgorithm = Literal["HS256", "HS384", "HS512"]

_RSA_BITS = 2048
_PUBLIC_EXPONENT = 65_537
_CURVES: dict[str, type[ec.EllipticCurve]] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


def create_secret(algorithm: SecretAlgorithm) -> bytes:
    """Create a secret of the algorithm's length."""
    return secrets.token_bytes(SECRET_BYTES[algorithm])


def create_pair(algorithm: PublicAlgorithm) -> tuple[bytes, bytes]:
    """Create a private key (PKCS 8) and its public key (X.509), both in DER form."""
    curve = _CURVES.get(algorithm)
    key = rsa.generate_private_key(_PUBLIC_EXPONENT, _RSA_BITS) if curve is None else ec.generate_private_key(curve())
    private = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def create_token(key: bytes, algorithm: str, claims: dict[str, object]) -> str:
    """Create a token with these claims, signed with a secret or a private key; raises `ConfigurationError` for another
    key.
    """
    try:
        return jwt.encode(claims, _signing_key(key, algorithm), algorithm=algorithm)
    except (ValueError, TypeError, jwt.PyJWTError):
        raise ConfigurationError(f"expected a private key in DER or PEM form that signs by {algorithm}") from None


def algorithm_of_secret(secret: bytes) -> SecretAlgorithm:
    """Return the algorithm that Pulsar signs with, by the secret's length; raises `ConfigurationError` for a short
    secret.
    """
    for name in reversed(get_args(SecretAlgorithm)):
        if len(secret) >= SECRET_BYTES[name]:
            found: SecretAlgorithm = name
            return found
    raise ConfigurationError(f"a secret of {len(secret)} bytes; expected {SECRET_BYTES['HS256']} or more")


def _signing_key(key: bytes, algorithm: str) -> bytes | rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey:
    if algorithm in SECRET_BYTES:
        return key
    private = (load_pem_private_key if key.startswith(PEM) else load_der_private_key)(key, None)
    if not isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise TypeError("expected an RSA or an EC key")
    return private
