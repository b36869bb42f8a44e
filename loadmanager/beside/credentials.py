"""Who we are to a Pulsar, and whom we believe to be one: a token from a file, and the TLS keys of a Pulsar client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from loadmanager.errors import ConfigurationError


class TokenFile:
    """The token in a file, read again when the file has changed. It is said nowhere, in no error either."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError` if there is no token."""
        self.path = path
        self._seen: object = None
        self._token = ""
        self.read_again()

    def read(self) -> str:
        """The token as it is in the file now; the last one while the file cannot be read."""
        try:
            if self._stamp() != self._seen:
                self.read_again()
        except (ConfigurationError, OSError):
            pass  # It is being replaced; if the last one has ended, Pulsar says so.
        return self._token

    def read_again(self) -> str:
        """The token in the file, whether that has changed or not; `ConfigurationError` if there is none."""
        try:
            seen = self._stamp()
            token = self.path.read_text("ascii").strip()
        except OSError as error:
            raise ConfigurationError(f"token file {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            token = ""
        if not token.isprintable() or len(token.split()) != 1:
            raise ConfigurationError(f"token file {self.path}: expected a token, which is one word, and nothing else")
        self._seen, self._token = seen, token
        return token

    def _stamp(self) -> object:
        stat = self.path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


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
    keys: str = "tls"
    """How the keys begin that hold these."""

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
            raise _unusable(
                f"{self.keys}TrustCertsFilePath", self.trust_certs, error, "certificates in PEM form"
            ) from None

    def _present(self, context: ssl.SSLContext) -> None:
        if self.certificate is None:
            if self.key is not None:
                raise ConfigurationError(
                    f"{self.keys}KeyFilePath: without a {self.keys}CertificateFilePath nobody asks for it"
                )
            return
        try:
            # Without a password to give, a key that has one would be asked for on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            key = f"{self.keys}CertificateFilePath {self.certificate}, {self.keys}KeyFilePath"
            raise _unusable(key, self.key, error, "a certificate and its key in PEM form, without a password") from None


def _unusable(key: str, path: Path | None, error: OSError, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{key} {path}: {error.strerror or error}: expected {expected}")
