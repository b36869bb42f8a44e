"""Whom we believe to be a Pulsar, and which certificate we show it: the TLS keys of a Pulsar client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from loadmanager.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The TLS keys of a Pulsar client; without `trust_certs` those are believed whom the system trusts."""

    trust_certs: Path | None = None
    """`tlsTrustCertsFilePath`"""
    certificate: Path | None = None
    """`tlsCertificateFilePath`"""
    key: Path | None = None
    """`tlsKeyFilePath`"""
    allow_insecure: bool = False
    """`tlsAllowInsecureConnection`: believe anybody."""
    hostname_verification: bool = True
    """`tlsHostnameVerificationEnable`: the certificate has to name the host that was asked."""

    def context(self) -> ssl.SSLContext:
        """Raises `ConfigurationError`, which names the key and the file, for what cannot be used."""
        context = self._trusting()
        if self.allow_insecure or not self.hostname_verification:
            context.check_hostname = False
        if self.allow_insecure:
            context.verify_mode = ssl.CERT_NONE
        self._present(context)
        return context

    def _trusting(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.trust_certs)
        except OSError as error:  # of which those of TLS are some
            raise _unusable("tlsTrustCertsFilePath", self.trust_certs, error, "certificates in PEM form") from None

    def _present(self, context: ssl.SSLContext) -> None:
        if self.certificate is None:
            if self.key is not None:
                raise ConfigurationError("tlsKeyFilePath: without a tlsCertificateFilePath nobody asks for it")
            return
        try:
            # Without a password to give, a key that has one would be asked for on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            key = f"tlsCertificateFilePath {self.certificate}, tlsKeyFilePath"
            raise _unusable(key, self.key, error, "a certificate and its key in PEM form, without a password") from None


def _unusable(key: str, path: Path | None, error: OSError, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{key} {path}: {error.strerror or error}: expected {expected}")
