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


def test_a_token_is_what_is_in_its_file_now(path: Path) -> None:
    token = TokenFile(path)
    assert token.read() == "first"
    other = path.with_name("other")
    other.write_text("other")
    other.replace(path)
    assert token.read() == "other"


def test_a_token_that_is_changed_within_one_tick_of_the_clock_is_read_when_the_first_is_refused(path: Path) -> None:
    token, times = TokenFile(path), path.stat()
    path.write_text("other\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert token.read() == "first"
    assert token.read_again() == token.read() == "other"


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff"])
def test_a_file_that_has_no_token_for_a_moment_does_not_take_the_last_one_away(
    path: Path, content: bytes | None
) -> None:
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
def test_what_is_no_token_is_refused_and_not_shown(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^token file {path}: expected a token, which is one word") as refused:
        TokenFile(path)
    assert "secr" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"^token file {tmp_path}/none: No such file"):
        TokenFile(tmp_path / "none")


def test_tls_keys_that_cannot_be_used_are_named(path: Path) -> None:
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
