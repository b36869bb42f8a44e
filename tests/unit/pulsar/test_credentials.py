"""A token that is changed while it is used, and TLS keys that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadmanager.errors import ConfigurationError
from loadmanager.net.auth.outgoing_token import TokenFile
from loadmanager.net.tls_contexts import TlsOptions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def test_token_is_reread_when_its_file_is_replaced(path: Path) -> None:
    token = TokenFile(path)
    assert token.read() == "first"
    other = path.with_name("other")
    other.write_text("other")
    other.replace(path)
    assert token.read() == "other"


def test_token_changed_within_a_clock_tick_is_read_on_refusal(path: Path) -> None:
    token, times = TokenFile(path), path.stat()
    path.write_text("other\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert token.read() == "first"
    assert token.read_again() == token.read() == "other"


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff"])
def test_last_token_is_kept_while_the_file_has_none(path: Path, content: bytes | None) -> None:
    token = TokenFile(path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert token.read() == "first"
    with pytest.raises(ConfigurationError, match=f"token file {path}: "):
        token.read_again()
    path.write_text("again")
    assert token.read() == "again"


@pytest.mark.parametrize("content", [b"", b"se cret", b"secret\x00", b"secr\xc3\xa9t", b"a\nsecret"])
def test_invalid_token_is_rejected_and_not_shown(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^token file {path}: expected a token, which is one word") as refused:
        TokenFile(path)
    assert "secr" not in str(refused.value)


def test_missing_token_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^token file {tmp_path}/none: No such file"):
        TokenFile(tmp_path / "none")


def test_unusable_tls_settings_are_named(path: Path) -> None:
    missing = path.with_name("none")
    for options, said in [
        (TlsOptions(trust_certs=missing), f"^tlsTrustCertsFilePath {missing}: No such file.* expected certificates"),
        (TlsOptions(trust_certs=path), f"^tlsTrustCertsFilePath {path}: .*expected certificates"),
        (TlsOptions(certificate=path, key=missing), f"^tlsCertificateFilePath {path}, tlsKeyFilePath {missing}: "),
        (TlsOptions(certificate=path), f"^tlsCertificateFilePath {path}, tlsKeyFilePath None: .*without a password"),
        (TlsOptions(key=path), "^tlsKeyFilePath: without a tlsCertificateFilePath"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            options.context()
