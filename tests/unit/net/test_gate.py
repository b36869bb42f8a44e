from __future__ import annotations

import asyncio
import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry
from support.nodes import settings
from support.tokens import CLOSED, SECRET, bearer, token_of

from loadmanager.config.auth_settings import AuthSettings
from loadmanager.config.node_settings import Settings
from loadmanager.config.settings_loader import load_settings
from loadmanager.errors import ConfigurationError, ForbiddenError, UnauthenticatedError
from loadmanager.net.auth import gate as gate_module
from loadmanager.net.auth.gate import PRINCIPAL, AccessRole, AuthGate
from loadmanager.net.auth.token_keys import ValidationKey, create_pair, create_token
from loadmanager.net.auth.token_verifier import Claimed, TokenFault, check_token

NOW_S = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def a_gate(clock: Clock | None = None, **changes: Any) -> AuthGate:  # noqa: ANN401 - whatever a setting may be
    return AuthGate(settings(**{**CLOSED, **changes}), clock) if clock else AuthGate(settings(**{**CLOSED, **changes}))


class Connection(asyncio.Transport):
    """One over which this certificate was shown, and believed."""

    def __init__(self, common_name: str = "") -> None:
        subject = ((("organizationName", "o"),), (("commonName", common_name),)) if common_name else ()
        super().__init__({"peercert": {"subject": subject} if common_name else None})


def passes(gate: AuthGate, role: AccessRole, headers: dict[str, str], certificate: str = "") -> str:
    """Name of the caller by the gate."""
    request: web.Request = make_mocked_request("GET", "/x", headers=headers, transport=Connection(certificate))
    gate.check(request, role)
    return request[PRINCIPAL]


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
def test_scheme_is_accepted_in_any_case(scheme: str) -> None:
    assert passes(a_gate(), AccessRole.ADMIN, {"Authorization": f"{scheme} {token_of('root')}"}) == "root"


@pytest.mark.parametrize("header", ["Basic cm9vdA==", "bearer", token_of("root"), f"Bearer\xa0{token_of('root')}"])
def test_other_schemes_are_refused(header: str) -> None:
    with pytest.raises(UnauthenticatedError, match="Authorization: expected Bearer and a token"):
        passes(a_gate(), AccessRole.ADMIN, {"Authorization": header})


@pytest.mark.parametrize(
    ("authentication", "address", "is_open"),
    [(True, "0.0.0.0", False), (False, "127.0.0.1", False), (False, "localhost", False)]
    + [(False, address, True) for address in ("0.0.0.0", "::", "10.0.0.1", "a-host")],
)
def test_open_gate_is_one_without_tokens(
    authentication: bool,  # noqa: FBT001 - of the table
    address: str,
    is_open: bool,  # noqa: FBT001 - of the table
) -> None:
    gate, registry = AuthGate(settings(**CLOSED if authentication else {}), address=address), CollectorRegistry()
    gate.show_in(registry, {})
    assert registry.get_sample_value("loadmanager_open_to_anyone") == is_open == gate.is_open_to_anyone


def by(principal: str, original: str | None = None) -> dict[str, str]:
    return bearer(token_of(principal)) | ({} if original is None else {"X-Original-Principal": original})


def test_handler_without_a_required_role_is_unchanged() -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response()

    assert AuthGate(settings()).permitting(AccessRole.ADMIN, handler) is handler
    assert a_gate().permitting(AccessRole.ANYONE, handler) is handler
    assert a_gate().permitting(AccessRole.READ, handler) is not handler


@pytest.mark.parametrize("key", ["superUserRoles", "proxyRoles"])
def test_wildcard_is_rejected_for_super_users_and_proxies(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{key}: \* is not taken here: name the principals"):
        load_settings(Settings, None, {key: ["*"]})


def test_token_suffices_without_authorization() -> None:
    gate = a_gate(authorization_enabled=False)
    assert passes(gate, AccessRole.ADMIN, by("stranger")) == "stranger"
    with pytest.raises(UnauthenticatedError, match="no token"):
        passes(gate, AccessRole.READ, {})


def test_wildcard_lookup_role_permits_lookups_only() -> None:
    gate = a_gate(lookup_roles=frozenset({"*"}))
    assert passes(gate, AccessRole.LOOKUP, by("stranger")) == "stranger"
    with pytest.raises(
        ForbiddenError, match=r"'stranger' .* takes READ, .*: readRoles, operateRoles, peerRoles, super"
    ):
        passes(gate, AccessRole.READ, by("stranger"))


def _part(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _forged(algorithm: str, secret: bytes = b"") -> str:
    """A token of root's that is signed as its head says, or not at all."""
    signed = ".".join(_part(json.dumps(part).encode()) for part in ({"alg": algorithm}, {"sub": "root"}))
    return f"{signed}.{_part(hmac.digest(secret, signed.encode(), 'sha256')) if secret else ''}"


def test_algorithm_in_the_token_header_is_not_trusted() -> None:
    private, public = create_pair("RS256")
    of_pair = a_gate(token_secret_key="", token_public_key=base64.b64encode(public).decode())
    assert passes(of_pair, AccessRole.ADMIN, bearer(create_token(private, "RS256", {"sub": "root"}))) == "root"
    assert passes(a_gate(), AccessRole.ADMIN, bearer(_forged("HS256", SECRET))) == "root", "so it would be taken"
    for token in (
        _forged("none"),
        _forged("HS256", public),
        token_of("root"),
        create_token(create_pair("RS256")[0], "RS256", {"sub": "root"}),
    ):
        with pytest.raises(UnauthenticatedError):
            passes(of_pair, AccessRole.READ, bearer(token))
    for token in (
        _forged("none"),
        create_token(private, "RS256", {"sub": "root"}),
        _forged("HS256", b"x" * 32),
    ):
        with pytest.raises(UnauthenticatedError):
            passes(a_gate(), AccessRole.READ, bearer(token))
    assert of_pair.failures[TokenFault.INVALID] == 4


def test_principal_is_the_claim_or_the_first_of_its_list() -> None:
    gate = a_gate(token_auth_claim="role")
    assert passes(gate, AccessRole.ADMIN, bearer(token_of("x", role="root"))) == "root"
    assert passes(gate, AccessRole.ADMIN, bearer(token_of("x", role=["root", "y"]))) == "root"
    nobody: list[object] = [None, [], "", " ", "a\nb", "\ud800", 7, {"a": 1}]
    for said in nobody:
        with pytest.raises(UnauthenticatedError, match="no claim role"):
            passes(gate, AccessRole.READ, bearer(token_of("root", role=said)))


def test_token_needs_the_configured_audience() -> None:
    gate = a_gate(token_audience="here")
    assert passes(gate, AccessRole.READ, bearer(token_of("root", aud="here")))
    assert passes(gate, AccessRole.READ, bearer(token_of("root", aud=["there", "here"])))
    for claims in ({}, {"aud": "there"}, {"aud": ["there"]}, {"aud": "here and there"}, {"aud": 7}, {"aud": [7]}):
        with pytest.raises(UnauthenticatedError, match="does not contain tokenAudience"):
            passes(gate, AccessRole.READ, bearer(token_of("root", **claims)))
    assert passes(a_gate(), AccessRole.READ, bearer(token_of("root", aud="whoever"))), "nobody looks"


def test_valid_token_is_cached_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def check(token: str, key: ValidationKey, of: AuthSettings) -> Claimed:
        checked.append(token)
        return check_token(token, key, of)

    monkeypatch.setattr(gate_module, "check_token", check)
    clock = Clock()
    gate = a_gate(clock)
    token = bearer(token_of("root", exp=int(NOW_S) * 2))
    for _ in range(3):
        passes(gate, AccessRole.READ, token)
    assert len(checked) == 1
    clock.now_s = NOW_S * 2
    passes(gate, AccessRole.READ, token)  # by the true clock, which PyJWT goes by, it has not ended
    assert len(checked) == 2


def test_token_cache_is_bounded_and_has_no_invalid_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_MOST_KNOWN", 3)
    gate = a_gate()
    for number in range(5):
        passes(gate, AccessRole.READ, bearer(token_of("root", number=number)))
        with pytest.raises(UnauthenticatedError):
            passes(gate, AccessRole.READ, bearer(f"bad {number}"))
    assert passes(gate, AccessRole.READ, bearer(token_of("root", much="x" * 4_000))) == "root"
    assert len(gate._known) == 3


def test_changed_key_invalidates_earlier_tokens(tmp_path: Path) -> None:
    file, clock = tmp_path / "secret", Clock()
    file.write_bytes(SECRET)
    gate = a_gate(clock, token_secret_key=str(file))
    assert passes(gate, AccessRole.READ, by("root"))
    file.write_bytes(b"another secret of thirty-two bytes")
    clock.now_s += 2.0
    with pytest.raises(UnauthenticatedError, match="not signed with the key"):
        passes(gate, AccessRole.READ, by("root"))
    file.write_bytes(b"too short")
    clock.now_s += 2.0
    passes(gate, AccessRole.READ, bearer(create_token(b"another secret of thirty-two bytes", "HS256", {"sub": "root"})))
    registry = CollectorRegistry()
    gate.show_in(registry, {"cluster": "c"})
    assert registry.get_sample_value("loadmanager_token_key_fault", {"cluster": "c"}) == 1.0
    assert registry.get_sample_value("loadmanager_open_to_anyone", {"cluster": "c"}) == 0.0
    labels = {"cluster": "c", "reason": "invalid"}
    assert registry.get_sample_value("loadmanager_authentication_failures_total", labels) == 1.0


def test_proxy_and_original_principal_both_need_the_role() -> None:
    gate = a_gate(proxy_roles=frozenset({"operator", "reader"}))
    assert passes(gate, AccessRole.OPERATE, by("operator", "root")) == "root by operator"
    with pytest.raises(ForbiddenError, match="'client' may not"):
        passes(gate, AccessRole.OPERATE, by("operator", "client"))
    with pytest.raises(ForbiddenError, match="'reader' may not"):
        passes(gate, AccessRole.OPERATE, by("reader", "root"))


def test_only_a_proxy_names_an_original_principal_and_must_do_so() -> None:
    gate = a_gate(proxy_roles=frozenset({"operator", "reader"}))
    for headers, said in [
        (by("operator"), "no name"),
        (by("operator", " "), "no name"),
        (by("operator", "reader"), "a proxy itself"),
        (by("root", "client"), "not in proxyRoles"),
    ]:
        with pytest.raises(UnauthenticatedError, match=said):
            passes(gate, AccessRole.READ, headers)
    assert passes(gate, AccessRole.READ, by("root", "root")) == "root"


def test_certificate_identifies_a_caller_without_a_token() -> None:
    gate = a_gate(proxy_roles=frozenset({"operator"}))
    assert passes(gate, AccessRole.ADMIN, {}, "root") == "root"
    assert passes(gate, AccessRole.READ, {"X-Original-Principal": "root"}, "operator") == "root by operator"
    with pytest.raises(ForbiddenError, match="'client' may not"):
        passes(gate, AccessRole.ADMIN, {}, "client")
    with pytest.raises(ForbiddenError, match="'client' may not"):
        passes(gate, AccessRole.ADMIN, by("client"), "root")
    with pytest.raises(UnauthenticatedError):
        passes(gate, AccessRole.ADMIN, bearer("bad"), "root")
    with pytest.raises(UnauthenticatedError, match="no token"):
        passes(gate, AccessRole.ADMIN, {})


def test_certificates_suffice_when_trusted_authorities_are_configured(tmp_path: Path) -> None:
    without: dict[str, Any] = {"token_secret_key": "", "tls_trust_certs_file_path": tmp_path / "ca.pem"}
    gate = a_gate(**without)
    assert passes(gate, AccessRole.ADMIN, {}, "root") == "root"
    for headers in ({}, by("root")):
        with pytest.raises(UnauthenticatedError, match="tokens are not taken"):
            passes(gate, AccessRole.READ, headers)
    with pytest.raises(ConfigurationError, match="neither is set"):
        a_gate(**{**without, "tls_trust_certs_file_path": None})


def test_error_about_an_invalid_token_does_not_contain_it() -> None:
    for token in ("c2VjcmV0", "a.b.c", token_of("root")[:-4], token_of("root", exp=1), token_of("root", nbf=2**40)):
        with pytest.raises(UnauthenticatedError) as error:
            passes(a_gate(), AccessRole.READ, bearer(token))
        assert token not in str(error.value)
