"""`loadmanager token`: create and check keys and tokens, like `pulsar tokens`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import jwt
import orjson
import typer

from loadmanager.cli.exit_codes import EXIT_CONFIGURATION, EXIT_FAILURE, fail
from loadmanager.config.auth_settings import AuthSettings
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.token_keys import (
    KeyPlace,
    PublicAlgorithm,
    SecretAlgorithm,
    ValidationKey,
    algorithm_of_secret,
    create_pair,
    create_token,
    public_key,
    secret_key,
    why_suspect,
)
from loadmanager.net.auth.token_keys import create_secret as new_secret
from loadmanager.net.auth.token_verifier import TokenError, check_token

token = typer.Typer(help="Create keys and tokens, and check tokens.", no_args_is_help=True)

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_DURATION = re.compile(r"(\d{1,9})([smhdwy])", re.ASCII)
_TAKEN_FROM = "a file, data:;base64,..., or base64"

_Given = Annotated[str, typer.Argument(metavar="TOKEN", help="The token; - reads it from standard input.")]
_SecretKey = Annotated[str, typer.Option("--secret-key", help=f"The secret: {_TAKEN_FROM}.")]
_Algorithm = Annotated[PublicAlgorithm, typer.Option("--signature-algorithm", "-a", help="For a key pair.")]
T = TypeVar("T")


@token.command("create-secret-key")
def create_secret_key(
    output: Annotated[Path, typer.Option("--output", "-o", help="Output file; an existing file is not overwritten.")],
    signature_algorithm: Annotated[
        SecretAlgorithm,
        typer.Option("--signature-algorithm", "-a", help="Signature algorithm, which determines the length."),
    ] = "HS256",
) -> None:
    """Create a secret key that signs and checks tokens: whoever has it can make tokens."""
    _write(output, new_secret(signature_algorithm), 0o600)


@token.command("create-key-pair")
def create_key_pair(
    output_private_key: Annotated[Path, typer.Option(help="Output file for the private key.")],
    output_public_key: Annotated[Path, typer.Option(help="Output file for the public key.")],
    signature_algorithm: _Algorithm = "RS256",
) -> None:
    """Create a key pair: the private key signs tokens, and nodes need only the public key."""
    private, public = create_pair(signature_algorithm)
    _write(output_private_key, private, 0o600)
    _write(output_public_key, public, 0o644)


@token.command("create")
def create(
    subject: Annotated[str, typer.Option("--subject", "-s", help="Principal of the token, as in superUserRoles.")],
    secret: _SecretKey = "",
    private_key: Annotated[str, typer.Option(help=f"The private key: {_TAKEN_FROM}.")] = "",
    signature_algorithm: _Algorithm = "RS256",
    expiry_time: Annotated[
        str,
        typer.Option("--expiry-time", "-e", metavar="TIME", help="Lifetime: 12h, 30d, 1y; default: no expiry."),
    ] = "",
    audience: Annotated[str, typer.Option(help="The claim aud.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="New output file, readable only by you; default: standard output."),
    ] = None,
) -> None:
    """Create a token: print it, or write it into a file that only you can read."""
    if bool(secret) == bool(private_key):
        fail("--secret-key and --private-key: give one of them", EXIT_CONFIGURATION)
    claims: dict[str, object] = {"sub": subject}
    if expiry_time:
        claims["exp"] = int(time.time()) + _seconds(expiry_time)
    if audience:
        claims["aud"] = audience
    made = _or_fail(lambda: _sign(secret, private_key, signature_algorithm, claims))
    if output is None:
        print(made)
    else:
        _write(output, f"{made}\n".encode(), 0o600)


@token.command("show")
def show(given: _Given) -> None:
    """Print the contents of a token; its signature is not checked."""
    try:
        decoded = jwt.decode_complete(_token(given), options={"verify_signature": False})
    except jwt.PyJWTError:
        fail("TOKEN: is no JWT that can be read", EXIT_FAILURE)
    print(
        orjson.dumps({"header": decoded["header"], "claims": decoded["payload"]}, option=orjson.OPT_INDENT_2).decode()
    )


@token.command("validate")
def validate(
    given: _Given,
    secret: _SecretKey = "",
    public: Annotated[str, typer.Option("--public-key", help=f"The public key: {_TAKEN_FROM}.")] = "",
) -> None:
    """Tell whether a node with this key would accept a token, and name its principal."""
    if bool(secret) == bool(public):
        fail("--secret-key and --public-key: give one of them", EXIT_CONFIGURATION)
    key = _or_fail(lambda: _secret_key(secret) if secret else public_key(KeyPlace("--public-key", public)))
    try:
        claimed = check_token(_token(given), key, AuthSettings.model_construct())
    except TokenError as error:
        fail(str(error), EXIT_FAILURE)
    print(f"the token holds; its principal is {claimed.principal}")


def _sign(secret: str, private_key: str, algorithm: PublicAlgorithm, claims: dict[str, object]) -> str:
    if private_key:
        return create_token(KeyPlace("--private-key", private_key).read(), algorithm, claims)
    key = _secret_key(secret).key
    assert isinstance(key, bytes), "a secret"
    return create_token(key, algorithm_of_secret(key), claims)


def _secret_key(text: str) -> ValidationKey:
    place = KeyPlace("--secret-key", text)
    found = secret_key(place)
    assert isinstance(found.key, bytes), "a secret"
    why = why_suspect(found.key)
    if why is not None:
        print(f"loadmanager: warning: {place}: {why}", file=sys.stderr)
    return found


def _or_fail(make: Callable[[], T]) -> T:
    try:
        return make()
    except ConfigurationError as error:
        fail(str(error), EXIT_CONFIGURATION)


def _token(given: str) -> str:
    return (sys.stdin.readline() if given == "-" else given).strip()


def _seconds(text: str) -> int:
    """Parse a lifetime. It needs a unit: a bare number, meant as days, would make a token that soon ends."""
    found = _DURATION.fullmatch(text)
    if found is None:
        fail(f"--expiry-time {text!r}: expected a number and one of s, m, h, d, w, y, such as 30d", EXIT_CONFIGURATION)
    return int(found[1]) * _UNITS_S[found[2]]


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file; never overwrite one. Replacing a key would invalidate all tokens that it signed."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as error:
        fail(f"{path}: {error.strerror}", EXIT_FAILURE)
    print(f"written: {path}", file=sys.stderr)
