from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from loadmanager.cli.token_command import token

RUNNER = CliRunner()


def run(*arguments: str | Path, told: str = "") -> str:
    done = RUNNER.invoke(token, list(map(str, arguments)), input=told)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def refused(*arguments: str | Path, told: str = "") -> tuple[int, str]:
    done = RUNNER.invoke(token, list(map(str, arguments)), input=told)
    return done.exit_code, done.stderr.strip()


@pytest.mark.parametrize("algorithm", ["HS256", "HS512"])
def test_token_is_created_and_validated_with_a_secret_key(tmp_path: Path, algorithm: str) -> None:
    secret = tmp_path / "secret.key"
    run("create-secret-key", "-o", secret, "-a", algorithm)
    assert secret.stat().st_mode & 0o777 == 0o600
    made = run("create", "--secret-key", secret, "-s", "ops", "-e", "30d", "--audience", "here")
    shown = orjson.loads(run("show", made))
    assert shown["header"]["alg"] == algorithm
    assert shown["claims"]["sub"] == "ops"
    assert shown["claims"]["aud"] == "here"
    assert (
        run("validate", "--secret-key", f"file://{secret}", "-", told=made) == "the token holds; its principal is ops"
    )


@pytest.mark.parametrize("algorithm", ["RS256", "ES384"])
def test_token_is_created_and_validated_with_a_key_pair(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    run("create-key-pair", "--output-private-key", private, "--output-public-key", public, "-a", algorithm)
    assert private.stat().st_mode & 0o777 == 0o600
    made = run("create", "--private-key", private, "-a", algorithm, "-s", "ops")
    assert "ops" in run("validate", "--public-key", public, made)
    assert refused("create", "--private-key", public, "-a", algorithm, "-s", "ops") == (
        2,
        f"loadmanager: expected a private key in DER or PEM form that signs by {algorithm}",
    )


def test_invalid_tokens_are_refused(tmp_path: Path) -> None:
    secret, other = tmp_path / "secret.key", tmp_path / "other.key"
    run("create-secret-key", "-o", secret)
    run("create-secret-key", "-o", other)
    made = run("create", "--secret-key", secret, "-s", "ops")
    assert refused("validate", "--secret-key", other, made)[0] == 1
    ended = run("create", "--secret-key", secret, "-s", "ops", "-e", "0s")
    assert refused("validate", "--secret-key", secret, ended) == (1, "loadmanager: the token has expired")
    assert refused("show", "nonsense") == (1, "loadmanager: TOKEN: is no JWT that can be read")


def test_token_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret.key", tmp_path / "admin.token"
    run("create-secret-key", "-o", secret)
    assert run("create", "--secret-key", secret, "-s", "admin", "--output", file) == ""
    assert file.stat().st_mode & 0o777 == 0o600
    assert "admin" in run("validate", "--secret-key", secret, "-", told=file.read_text())
    assert refused("create", "--secret-key", secret, "-s", "x", "-o", file) == (1, f"loadmanager: {file}: File exists")


def test_secret_with_white_space_is_warned_about(tmp_path: Path) -> None:
    secret = tmp_path / "secret.key"
    secret.write_text("s" * 32 + "\n")
    done = RUNNER.invoke(token, ["create", "-s", "x", "--secret-key", str(secret)])
    assert done.stdout.count(".") == 2
    assert f"warning: --secret-key {secret}: it is text that begins or ends with white space" in done.stderr


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    secret = tmp_path / "secret.key"
    run("create-secret-key", "-o", secret)
    content = secret.read_bytes()
    assert refused("create-secret-key", "-o", secret) == (1, f"loadmanager: {secret}: File exists")
    assert secret.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "-s", "x"], "--secret-key and --private-key: give one of them"),
        (["create", "-s", "x", "--secret-key", "eA==", "-e", "1 month"], "--expiry-time '1 month': expected a number"),
        (["create", "-s", "x", "--secret-key", "eA==", "-e", "30"], "--expiry-time '30': expected a number and one of"),
        (["create", "-s", "x", "--secret-key", "eA=="], "--secret-key: a secret of 1 bytes; expected 32 or more"),
        (["validate", "a.b.c"], "--secret-key and --public-key: give one of them"),
    ],
)
def test_wrong_usage_names_the_option(arguments: list[str], said: str) -> None:
    code, error = refused(*arguments)
    assert code == 2
    assert said in error
