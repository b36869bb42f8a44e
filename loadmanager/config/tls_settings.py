"""Settings of TLS: what a process shows to whoever asks it, and what to those whom it asks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from loadmanager.config.settings_base import KeyedSettings, OptionalPath


class TlsSettings(KeyedSettings):
    """TLS of nodes and agents, by Pulsar's keys. Files are read again when they change."""

    tls_certificate_file_path: OptionalPath = Field(
        None, description="The certificate (PEM, with its chain) of the TLS port; read again when it changes."
    )
    tls_key_file_path: OptionalPath = Field(None, description="The key of that certificate, without a password.")
    tls_trust_certs_file_path: OptionalPath = Field(
        None,
        description="Who signs clients' certificates (PEM); a client that shows another is refused. Empty: none is"
        " asked for.",
    )
    tls_require_trusted_client_cert_on_connect: bool = Field(
        False, description="Refuse clients that show no certificate."
    )
    tls_protocols: tuple[Literal["TLSv1.2", "TLSv1.3"], ...] = Field(
        (), description="Versions that are spoken on the TLS port: TLSv1.2, TLSv1.3; empty: both."
    )
    tls_ciphers: tuple[str, ...] = Field(
        (), description="Ciphers for TLS 1.2, by OpenSSL's names; empty: OpenSSL's own choice."
    )
    broker_client_tls_enabled: bool = Field(
        False, description="Others are told to come to the TLS port where there is a plain one, too."
    )
    broker_client_trust_certs_file_path: OptionalPath = Field(
        None, description="Who signs the certificates of nodes and agents (PEM); empty: whom the system trusts."
    )
    broker_client_certificate_file_path: OptionalPath = Field(
        None, description="The certificate that nodes and agents are shown when this process asks them."
    )
    broker_client_key_file_path: OptionalPath = Field(None, description="The key of that certificate.")
    tls_hostname_verification_enabled: bool = Field(
        True, description="The certificate of a node or an agent has to name the host that was asked."
    )

    def check_ports(self, plain: str, tls: str) -> None:
        """Of the fields of two ports at least one is to be set, and for TLS a certificate; `ValueError`."""
        plain_key, tls_key = self.key(plain), self.key(tls)
        if getattr(self, tls) is None:
            if getattr(self, plain) is None:
                raise ValueError(f"{plain_key}, {tls_key}: both are empty: give the port to listen on")
            if self.broker_client_tls_enabled:
                raise ValueError(f"brokerClientTlsEnabled: others cannot come by TLS: give {tls_key}")
        elif self.tls_certificate_file_path is None or self.tls_key_file_path is None:
            raise ValueError(f"{tls_key}: needs a tlsCertificateFilePath and a tlsKeyFilePath")
        if self.tls_require_trusted_client_cert_on_connect and self.tls_trust_certs_file_path is None:
            raise ValueError(
                "tlsRequireTrustedClientCertOnConnect: nobody's would be trusted: give tlsTrustCertsFilePath"
            )
