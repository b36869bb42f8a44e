"""Keys of token signatures: reading and creating them, and creating tokens.

Validation keys are read from the same places as in Pulsar, and again when the file changes.

| the setting is | the key is |
|---|---|
| `file:///path`, or the path of a file | the content of the file: a secret unchanged, a public key in DER or PEM |
| `data:;base64,...` | these bytes (RFC 2397) |
| anything else | base64 of these bytes |

Other forms of `data:` and `file:` are refused. A secret that should probably be decoded or trimmed is used unchanged,
as in Pulsar, with the warning `token_secret_suspect`.

An unusable key is refused at the start. Later the last good key stays in use, and `fault` describes the problem.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote_to_bytes

import jwt
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)
from jwt import InvalidKeyError
from jwt.algorithms import HMACAlgorithm

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.outgoing_token import FILE_SCHEME, path_of_file_url
from loadmanager.util.file_stamp import read_stamp

log = structlog.get_logger(__name__)

PEM = b"-----BEGIN"
_DATA = "data:"
_DATA_URL = re.compile(
    r"(?ais)data:([\w.+-]+/[\w.+-]+)?(;[\w-]+=[\w.-]+)*(?P<base64>;base64)?,(?P<data>.*)",
)
SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Minimum length of a secret per algorithm, as in Pulsar: the length of the hash."""

SecretAlgorithm = Literal["HS256", "HS384", "HS512"]
PublicAlgorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]

_CURVES: dict[str, type[ec.EllipticCurve]] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
_RSA_ALGORITHMS = tuple(name for name in get_args(PublicAlgorithm) if name not in _CURVES)

_LONGEST_KEY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ValidationKey:
    """A validation key and the algorithms that it accepts, whatever a token's header names."""

    key: bytes | RSAPublicKey | EllipticCurvePublicKey
    algorithms: tuple[str, ...]


class KeyPlace:
    """Location of a key, by a setting or a command-line option."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self.path = _find_path(text, name)
        self._is_file = self.path is not None and (text.startswith(FILE_SCHEME) or self.path.is_file())

    def __str__(self) -> str:
        """Name the setting, and the file if it is certainly one. Never show the key itself."""
        return f"{self._name} {self.path}" if self._is_file else self._name

    def read(self) -> bytes:
        """Read the key's bytes; raises `ConfigurationError` if there are none."""
        if self.path is None:
            return _decode(self._text, self._name)
        try:
            with self.path.open("rb") as file:
                content = file.read(_LONGEST_KEY_BYTES + 1)
        except OSError as error:
            hint = "" if self._is_file else "; base64 that begins with / is to be given as data:;base64,..."
            raise ConfigurationError(f"{self}: {error.strerror}{hint}") from None
        if not 0 < len(content) <= _LONGEST_KEY_BYTES:
            raise ConfigurationError(f"{self}: expected a key, found {len(content) or 'no'} bytes")
        return content


def secret_key(place: KeyPlace) -> ValidationKey:
    """Return the secret; raises `ConfigurationError` if there is none."""
    content = place.read()
    try:
        HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(content)
    except InvalidKeyError:
        raise ConfigurationError(
            f"{place}: half of a key pair is no secret; tokenPublicKey is for the public one"
        ) from None
    algorithms = tuple(name for name, least in SECRET_BYTES.items() if len(content) >= least)
    if not algorithms:
        raise ConfigurationError(
            f"{place}: a secret of {len(content)} bytes; expected {min(SECRET_BYTES.values())} or more"
        )
    return ValidationKey(content, algorithms)


def public_key(place: KeyPlace) -> ValidationKey:
    """Return the public key, with the algorithms that its kind allows; raises `ConfigurationError` for another key."""
    content = place.read()
    try:
        key = load_pem_public_key(content) if content.startswith(PEM) else load_der_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, RSAPublicKey):
        return ValidationKey(key, _RSA_ALGORITHMS)
    if isinstance(key, EllipticCurvePublicKey):
        algorithms = tuple(name for name, curve in _CURVES.items() if isinstance(key.curve, curve))
        if algorithms:
            return ValidationKey(key, algorithms)
    raise ConfigurationError(f"{place}: expected a public key in DER or PEM form: RSA, or EC on P-256, P-384 or P-521")


class KeySource:
    """Validation key of these settings; `current` follows its file."""

    def __init__(self, settings: AuthSettings) -> None:
        """Read the key; raises `ConfigurationError`, which names the setting and the file."""
        secret, public = settings.token_secret_key.get_secret_value(), settings.token_public_key
        if bool(secret) == bool(public):
            fault = "both are set" if secret else "neither is set"
            raise ConfigurationError(
                f"tokenSecretKey and tokenPublicKey: {fault}: authenticationEnabled takes one of them"
            )
        self._is_public = bool(public)
        self._place = KeyPlace("tokenPublicKey", public) if public else KeyPlace("tokenSecretKey", secret)
        self.fault = ""
        """Current fault of the file, while the last good key stays in use."""
        self._seen = read_stamp(self._place.path)
        self.current = self._load()

    def look_again(self) -> bool:
        """Read the file if it has changed; return True if the key has changed."""
        stamp = read_stamp(self._place.path)
        if self._place.path is None or (stamp == self._seen and not self.fault):
            return False
        try:
            found = self._load()
        except ConfigurationError as error:
            self._say(str(error))
            return False
        log.info("token_key_read_again", key=str(self._place))
        before, self.current = self.current, found
        self._seen, self.fault = stamp, ""
        return found.key != before.key

    def _load(self) -> ValidationKey:
        if self._is_public:
            return public_key(self._place)
        found = secret_key(self._place)
        assert isinstance(found.key, bytes), "a secret"
        why = why_suspect(found.key)
        if why is not None:
            log.warning("token_secret_suspect", key=str(self._place), why=why)
        return found

    def _say(self, fault: str) -> None:
        if fault != self.fault:
            log.error("token_key_unusable", fault=fault, consequence="the last good key stays in force")
        self.fault = fault


def why_suspect(secret: bytes) -> str | None:
    """Return why a secret looks wrong, such as undecoded base64; None if it looks right."""
    try:
        text = secret.decode()
    except UnicodeDecodeError:
        return None
    if text != text.strip().strip("\ufeff"):
        return (
            "it is text that begins or ends with white space or a byte-order mark, which counts as part of the secret"
        )
    if text.startswith((_DATA, FILE_SCHEME)):
        return f"it is text that begins with {text.partition(':')[0]}:, which is not followed"
    if len(_decoded_strictly(text)) >= min(SECRET_BYTES.values()):
        return "it is base64 or hexadecimal text, which is not decoded; data:;base64,... is"
    return None


def _decoded_strictly(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _find_path(text: str, name: str) -> Path | None:
    """Return the file that the setting names; None if the setting is the key itself."""
    if text.startswith(_DATA):
        return None
    if text.startswith(FILE_SCHEME):
        return path_of_file_url(text, name)
    return Path(text) if text.startswith("/") or os.path.isfile(text) else None  # noqa: PTH113 - accepts any text


def _decode(text: str, name: str) -> bytes:
    data_url = _DATA_URL.fullmatch(text)
    if data_url is not None and data_url["base64"] is None:
        return unquote_to_bytes(data_url["data"])
    content = _decoded_strictly(text if data_url is None else data_url["data"])
    if not content:
        raise ConfigurationError(f"{name}: expected file:///path, the path of a file, data:;base64,... or base64")
    return content


_RSA_BITS = 2048
_PUBLIC_EXPONENT = 65_537


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
    """Create a token with these claims, signed with a secret or a private key; raises `ConfigurationError` for any
    other key.
    """
    try:
        return jwt.encode(claims, _signing_key(key, algorithm), algorithm=algorithm)
    except (ValueError, TypeError, jwt.PyJWTError):
        raise ConfigurationError(f"expected a private key in DER or PEM form that signs by {algorithm}") from None


def algorithm_of_secret(secret: bytes) -> SecretAlgorithm:
    """Return the algorithm that Pulsar uses for a secret of this length; raises `ConfigurationError` if it is too
    short.
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
