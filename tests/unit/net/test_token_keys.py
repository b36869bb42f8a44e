from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from structlog.testing import capture_logs

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.token_keys import KeySource, PublicAlgorithm, create_pair

SECRET = b"s" * 32
_REQUIRED = {"brokerId": "b:1", "brokerUrl": "http://b:1", "loadManagerUrls": ["http://n:1"]}


def settings(**keys: Any) -> AgentSettings:  # noqa: ANN401 - whatever a setting may be
    return load_settings(AgentSettings, None, {**_REQUIRED, **keys})


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _pem(public: bytes) -> bytes:
    return load_der_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def test_secret_may_be_a_file_path_data_url_or_base64(tmp_path: Path) -> None:
    file = tmp_path / "a secret"
    file.write_bytes(SECRET)
    texts = [f"file://{tmp_path}/a%20secret", str(file), f"data:;base64,{_base64(SECRET)}", _base64(SECRET)]
    texts += [f"data:application/octet-stream;base64,{_base64(SECRET)}", f"data:,{SECRET.decode()}"]
    texts += [f"data:text/plain;charset=utf-8;BASE64,{_base64(SECRET)}\n", f"file://localhost{tmp_path}/a%20secret"]
    for text in texts:
        assert KeySource(settings(tokenSecretKey=text)).current.key == SECRET, text


@pytest.mark.parametrize(
    ("size", "algorithms"), [(32, ("HS256",)), (63, ("HS256", "HS384")), (64, ("HS256", "HS384", "HS512"))]
)
def test_secret_length_determines_its_algorithms(size: int, algorithms: tuple[str, ...]) -> None:
    assert KeySource(settings(tokenSecretKey=_base64(b"x" * size))).current.algorithms == algorithms


@pytest.mark.parametrize(
    ("algorithm", "accepted"),
    [
        ("RS256", ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        ("ES256", ("ES256",)),
        ("ES384", ("ES384",)),
        ("ES512", ("ES512",)),
    ],
)
def test_kind_of_a_public_key_determines_its_algorithms(
    tmp_path: Path, algorithm: PublicAlgorithm, accepted: tuple[str, ...]
) -> None:
    _, public = create_pair(algorithm)
    for number, content in enumerate((public, _pem(public))):
        file = tmp_path / f"public-{number}"
        file.write_bytes(content)
        assert KeySource(settings(tokenPublicKey=f"file://{file}")).current.algorithms == accepted


def test_invalid_key_is_rejected_with_setting_and_file(tmp_path: Path) -> None:
    short, pem, empty = tmp_path / "short", tmp_path / "pem", tmp_path / "empty"
    short.write_bytes(b"x" * 31)
    empty.write_bytes(b"")
    _, of_rsa = create_pair("RS256")
    pem.write_bytes(_pem(of_rsa))
    another = ec.generate_private_key(ec.SECP256K1()).public_key()
    of_another_curve = another.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    refused: list[tuple[dict[str, str], str]] = [
        ({}, "tokenSecretKey and tokenPublicKey: neither is set"),
        ({"tokenSecretKey": "a", "tokenPublicKey": "b"}, "tokenSecretKey and tokenPublicKey: both are set"),
        ({"tokenSecretKey": str(short)}, f"tokenSecretKey {short}: a secret of 31 bytes; expected 32 or more"),
        ({"tokenSecretKey": str(pem)}, f"tokenSecretKey {pem}: half of a key pair is no secret"),
        ({"tokenSecretKey": _base64(of_rsa)}, "tokenSecretKey: half of a key pair is no secret"),
        ({"tokenSecretKey": str(empty)}, f"tokenSecretKey {empty}: expected a key, found no bytes"),
        ({"tokenSecretKey": f"file://{tmp_path}/gone"}, f"tokenSecretKey {tmp_path}/gone: No such file or directory"),
        ({"tokenPublicKey": str(short)}, f"tokenPublicKey {short}: expected a public key in DER or PEM form"),
        ({"tokenPublicKey": _base64(of_another_curve)}, "tokenPublicKey: expected a public key in DER or PEM form"),
        *(
            (
                {"tokenSecretKey": f"{form},{_base64(SECRET)}"},
                "tokenSecretKey: expected file:///path, the path of a file",
            )
            for form in ("data:base64", "data:;base64=", "data:; base64", "data:;base-64", "data:text", "data;base64")
        ),
        ({"tokenSecretKey": f"data:;base64,{_base64(SECRET)[:-1]}"}, "tokenSecretKey: expected file:///path"),
        (
            {"tokenSecretKey": f"file://{tmp_path}"[:-1].replace("///", "//")},
            "tokenSecretKey: expected file:///path, with",
        ),
        ({"tokenPublicKey": "file://host/public.key"}, "tokenPublicKey: expected file:///path, with three slashes"),
        ({"tokenPublicKey": "%%%"}, "tokenPublicKey: expected file:///path, the path of a file"),
    ]
    for keys, said in refused:
        with pytest.raises(ConfigurationError) as error:
            KeySource(settings(**keys))
        assert said in str(error.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (SECRET + b"\n", "white space"),
        (b"\xef\xbb\xbf" + SECRET, "byte-order mark"),
        (_base64(bytes(range(64))).encode(), "base64"),
        (base64.encodebytes(bytes(range(64))).strip(), "base64"),
        (SECRET.hex().encode(), "hexadecimal"),
        (f"data:;base64,{_base64(SECRET)}".encode(), "begins with data:"),
        (SECRET, None),
        (bytes(range(100, 164)) + b"\xff\n", None),
    ],
)
def test_suspicious_secret_is_warned_about(tmp_path: Path, content: bytes, why: str | None) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    for text in (str(file), f"data:;base64,{_base64(content)}"):
        with capture_logs() as logs:
            assert KeySource(settings(tokenSecretKey=text)).current.key == content
        assert [entry["event"] for entry in logs] == ["token_secret_suspect"] * (why is not None), text
        assert (why or "") in str(logs)


def test_percent_encoded_data_is_decoded_bytewise() -> None:
    assert KeySource(settings(tokenSecretKey="data:," + "%FF" * 32)).current.key == b"\xff" * 32


def test_secret_mistaken_for_a_path_is_not_shown() -> None:
    secret = "/" + "s3cr3t" * 8
    with pytest.raises(ConfigurationError, match="tokenSecretKey: No such file") as error:
        KeySource(settings(tokenSecretKey=secret))
    assert "s3cr3t" not in str(error.value)


def test_key_is_reread_when_its_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    source = KeySource(settings(tokenSecretKey=str(file)))
    assert not source.look_again()
    file.write_bytes(b"another secret of thirty-two bytes")
    assert source.look_again()
    assert source.current.key == b"another secret of thirty-two bytes"
    assert not source.look_again()


def test_last_valid_key_is_kept_while_the_file_is_invalid(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    source = KeySource(settings(tokenSecretKey=str(file)))
    with capture_logs() as logs:
        file.write_bytes(b"too short")
        assert [source.look_again() for _ in range(3)] == [False] * 3
        file.unlink()
        assert not source.look_again()
    assert source.current.key == SECRET
    assert [entry["event"] for entry in logs] == ["token_key_unusable"] * 2, "once for each fault"
    assert "No such file" in source.fault
    file.write_bytes(SECRET)
    assert not source.look_again(), "it is the same key"
    assert source.fault == ""
