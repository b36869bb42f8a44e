"""TLS settings: certificates of the server, and of the client for other processes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from loadmanager.config.settings_base import KeyedSettings, OptionalPath


class TlsSettings(KeyedSettings):
    """TLS of nodes and agents, by Pulsar's keys. Files are read again when they change."""

    tls_certificate_file_path: OptionalPath = Field(
        None, description="Certificate of the TLS port (PEM, with its chain). A changed file is read again."
    )
    tls_key_file_path: OptionalPath = Field(None, description="Private key of that certificate, without a password.")
    tls_trust_certs_file_path: OptionalPath = Field(
        None,
        description="Trusted authorities of client certificates (PEM); other certificates are refused. Empty:"
        " clients need none.",
    )
    tls_require_trusted_client_cert_on_connect: bool = Field(False, description="Refuse clients without a certificate.")
    tls_protocols: tuple[Literal["TLSv1.2", "TLSv1.3"], ...] = Field(
        (), description="TLS versions of the TLS port: TLSv1.2, TLSv1.3. Empty: both."
    )
    tls_ciphers: tuple[str, ...] = Field(
        (), description="Ciphers of TLS 1.2, by OpenSSL's names. Empty: OpenSSL's default."
    )
    broker_client_tls_enabled: bool = Field(
        False, description="Advertise the TLS port to others, even if there is a plain port."
    )
    broker_client_trust_certs_file_path: OptionalPath = Field(
        None,
        description="Trusted authorities of the certificates of nodes and agents (PEM). Empty: those of the system.",
    )
    broker_client_certificate_file_path: OptionalPath = Field(
        None, description="Client certificate of this process for nodes and agents."
    )
    broker_client_key_file_path: OptionalPath = Field(None, description="Private key of that certificate.")
    tls_hostname_verification_enabled: bool = Field(
        True, description="The certificate of a node or an agent must name its host."
    )

    def check_ports(self, plain: str, tls: str) -> None:
        """Check that a port is set, and a certificate for a TLS port; raise `ValueError`."""
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
