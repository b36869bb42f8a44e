from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from support.certificates import Authority, Signed

from loadmanager.config.agent_settings import AgentSettings
from loadmanager.config.settings_loader import load_settings
from loadmanager.errors import ConfigurationError
from loadmanager.net.tls_contexts import (
    RenewedTls,
    ServerTls,
    TlsFiles,
    TlsKeys,
    TlsMetrics,
    TlsOptions,
    TlsServerOptions,
    client_tls_of,
)

REQUIRED = {"brokerId": "b:1", "brokerUrl": "http://b:1", "loadManagerUrls": ["https://lm:1"]}


@pytest.fixture
def own(authority: Authority) -> Signed:
    return authority.sign("own")


@pytest.fixture
def permissive_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that leaves the minimum version to OpenSSL, as Debian's own does."""
    default = ssl.create_default_context

    def permissive(purpose: ssl.Purpose, *, cafile: Path | None) -> ssl.SSLContext:
        context = default(purpose, cafile=cafile)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        return context

    monkeypatch.setattr(ssl, "create_default_context", permissive)


def server(own: Signed) -> TlsServerOptions:
    return TlsServerOptions(certificate=own.certificate, key=own.key)


def test_unusable_file_is_named_by_key(authority: Authority, own: Signed, tmp_path: Path) -> None:
    missing, other, rubbish = tmp_path / "none", authority.sign("other"), tmp_path / "rubbish"
    rubbish.write_text("no PEM")
    pair = "tlsCertificateFilePath {}, tlsKeyFilePath {}: "
    cases: list[tuple[TlsFiles, str]] = [
        (TlsServerOptions(None, missing, own.key), pair.format(missing, own.key) + "No such file"),
        (TlsServerOptions(None, own.certificate, missing), pair.format(own.certificate, missing) + "No such file"),
        (TlsServerOptions(None, own.certificate, other.key), pair.format(own.certificate, other.key) + ".*MISMATCH"),
        (
            TlsServerOptions(None, rubbish, own.key),
            pair.format(rubbish, own.key) + ".*expected a certificate and its key",
        ),
        (TlsServerOptions(rubbish, own.certificate, own.key), f"tlsTrustCertsFilePath {rubbish}: "),
        (TlsOptions(certificate=missing, keys=TlsKeys(certificate="--certificate", key="--key")), "--certificate "),
    ]
    for options, said in cases:
        with pytest.raises(ConfigurationError, match=said):
            RenewedTls(options)


def test_encrypted_key_is_rejected_without_a_prompt(own: Signed) -> None:
    key = serialization.load_pem_private_key(own.key.read_bytes(), None)
    form, secret = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    own.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    with pytest.raises(ConfigurationError, match="without a password"):
        RenewedTls(server(own))


@pytest.mark.parametrize("days", [(-3.0, -1.0), (1.0, 3.0)])
def test_certificate_outside_its_validity_is_rejected(authority: Authority, days: tuple[float, float]) -> None:
    ended = authority.sign("ended", days=days)
    with pytest.raises(
        ConfigurationError, match=r"tlsCertificateFilePath .*ended.pem: holds from .* to .* UTC: expected"
    ):
        RenewedTls(server(ended))


@pytest.mark.usefixtures("permissive_python")
@pytest.mark.parametrize(
    ("protocols", "least", "most"),
    [
        ((), "TLSv1_2", "MAXIMUM_SUPPORTED"),
        (("TLSv1.2",), "TLSv1_2", "TLSv1_2"),
        (("TLSv1.3", "TLSv1.2"), "TLSv1_2", "TLSv1_3"),
    ],
)
def test_configured_tls_versions(own: Signed, protocols: tuple[str, ...], least: str, most: str) -> None:
    context = TlsServerOptions(None, own.certificate, own.key, protocols=protocols).context()
    assert (context.minimum_version.name, context.maximum_version.name) == (least, most)


@pytest.mark.usefixtures("permissive_python")
def test_client_requires_at_least_tls_1_2() -> None:
    assert TlsOptions().context().minimum_version is ssl.TLSVersion.TLSv1_2


def test_invalid_files_keep_the_last_valid_ones_and_set_the_metric(authority: Authority, own: Signed) -> None:
    tls = ServerTls(server(own))
    registry = CollectorRegistry()
    registry.register(TlsMetrics(None, tls, {"cluster": "c"}))

    def metric(name: str) -> float | None:
        return registry.get_sample_value(f"loadmanager_tls_{name}", {"cluster": "c", "side": "server"})

    first, ends = tls.context(), metric("certificate_expires_seconds")
    assert (tls.context(), metric("files_unusable")) == (first, 0.0)
    for spoil in (
        lambda: own.key.write_bytes(authority.sign("other").key.read_bytes()),
        lambda: authority.sign("ended", days=(-3, -1)).put_in_place_of(own),
        own.certificate.unlink,
    ):
        spoil()
        with capture_logs() as logs:
            assert tls.context() is tls.context() is first
        assert [(each["event"], each["log_level"]) for each in logs] == [("tls_files_unusable", "error")]
        assert str(own.certificate) in tls.fault
        assert (metric("files_unusable"), metric("certificate_expires_seconds")) == (1.0, ends)
    authority.sign("renewed", days=(-1, 9)).put_in_place_of(own)
    with capture_logs() as logs:
        assert tls.context() is not first
    assert [each["event"] for each in logs] == ["tls_files_renewed"]
    assert (tls.fault, metric("files_unusable")) == ("", 0.0)
    assert (metric("certificate_expires_seconds") or 0) > (ends or 0)


def test_unusable_files_are_retried(own: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ServerTls(server(own))
    first = tls.context()
    monkeypatch.setattr("loadmanager.net.tls_contexts.read_stamp", lambda _: "as ever")
    own.key.rename(own.key.with_name("away"))
    with capture_logs() as logs:
        assert tls.context() is first
        monkeypatch.setattr("loadmanager.net.tls_contexts._TRY_AGAIN_S", 0.0)
        tls._try_again_at_s = 0.0
        assert tls.context() is tls.context() is first
        assert "No such file" in tls.fault
        own.key.with_name("away").rename(own.key)
        assert tls.context() is not first
    assert [each["event"] for each in logs] == ["tls_files_unusable", "tls_files_renewed"], (
        "the same fault is said once"
    )
    assert tls.fault == ""


def test_client_tls_follows_the_settings_or_is_absent(authority: Authority) -> None:
    assert client_tls_of(load_settings(AgentSettings, None, REQUIRED)) is None
    given = {**REQUIRED, "brokerClientTrustCertsFilePath": str(authority.certificate)}
    tls = client_tls_of(load_settings(AgentSettings, None, given))
    assert tls is not None
    assert [each["subject"] for each in tls.context().get_ca_certs()]
    assert tls.context().check_hostname
    open_to = client_tls_of(load_settings(AgentSettings, None, {**REQUIRED, "tlsHostnameVerificationEnabled": False}))
    assert open_to is not None
    assert not open_to.context().check_hostname
    with pytest.raises(ConfigurationError, match="brokerClientTrustCertsFilePath /nowhere: No such file"):
        client_tls_of(load_settings(AgentSettings, None, {**REQUIRED, "brokerClientTrustCertsFilePath": "/nowhere"}))


def test_trusted_certificate_format_of_openssl_is_rejected(own: Signed) -> None:
    trusted = own.certificate.read_text().replace("CERTIFICATE-----", "TRUSTED CERTIFICATE-----")
    own.certificate.write_text(trusted)
    with pytest.raises(ConfigurationError, match=f"tlsCertificateFilePath {own.certificate}"):
        RenewedTls(server(own))
