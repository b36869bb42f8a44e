"""Outgoing authentication token. Never part of a log line or an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from loadmanager.errors import ConfigurationError
from loadmanager.util.file_stamp import read_stamp

if TYPE_CHECKING:  # slow to import, and most commands do not need it
    from loadmanager.config.auth_settings import AuthSettings

_TOKEN = "token:"  # noqa: S105 - prefix of a setting, no secret
FILE_SCHEME = "file:"


class Token(Protocol):
    """Source of the outgoing token."""

    def read(self) -> str: ...


class TokenAlone:
    """A fixed token."""

    def __init__(self, text: str, where: str) -> None:
        """Check the token; raises `ConfigurationError`, which names its source `where`."""
        self._token = _one_word(text, where)

    def read(self) -> str:
        return self._token


class TokenFile:
    """A token in a file, read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises `ConfigurationError` if it holds no token."""
        self.path = path
        self._seen: object = None
        self._token = ""
        self.read_again()

    def read(self) -> str:
        """Return the token in the file; the previous one if the file cannot be read."""
        try:
            if read_stamp(self.path) != self._seen:
                self.read_again()
        except ConfigurationError:
            pass  # The file is being replaced. If the previous token has expired, the server will say so.
        return self._token

    def read_again(self) -> str:
        """Return the token in the file, even if unchanged; raises `ConfigurationError` if there is none."""
        seen = read_stamp(self.path)
        try:
            text = self.path.read_text("ascii")
        except OSError as error:
            raise ConfigurationError(f"token file {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        token = _one_word(text, f"token file {self.path}")
        self._seen, self._token = seen, token
        return token


def own_token(settings: AuthSettings) -> Token | None:
    """Return the token of `brokerClientAuthenticationParameters`, None without one; raises `ConfigurationError` for an
    invalid one.
    """
    text = settings.broker_client_authentication_parameters.get_secret_value()
    return token_of(text, settings.key("broker_client_authentication_parameters"))


def token_of(text: str, where: str) -> Token | None:
    """Parse `token:...` or `file:///path`; None for an empty text. Raises `ConfigurationError`, which names the source
    `where`.
    """
    if not text:
        return None
    if text.startswith(FILE_SCHEME):
        try:
            return TokenFile(path_of_file_url(text, "token"))
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    return TokenAlone(text.removeprefix(_TOKEN), where)


def path_of_file_url(text: str, name: str) -> Path:
    """Return the path in a `file:` URL; raises `ConfigurationError` if the URL names another host or has no path."""
    url = urlsplit(text)
    if url.netloc not in {"", "localhost"} or not url.path or url.query or url.fragment:
        raise ConfigurationError(f"{name}: expected file:///path, with three slashes")
    return Path(unquote(url.path))


def _one_word(text: str, where: str) -> str:
    token = text.strip()
    if not token.isprintable() or not token.isascii() or len(token.split()) != 1:
        raise ConfigurationError(f"{where}: expected a token, which is one word, and nothing else")
    return token
