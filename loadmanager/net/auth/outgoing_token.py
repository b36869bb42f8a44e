"""Outgoing authentication token. Never logged, nor part of an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from loadmanager.errors import ConfigurationError

if TYPE_CHECKING:  # takes its time to load, which commands do without
    from loadmanager.config.auth_settings import AuthSettings

_TOKEN = "token:"  # noqa: S105 - how a setting begins
FILE_SCHEME = "file:"


class Token(Protocol):
    """Source of the outgoing token."""

    def read(self) -> str: ...


class TokenAlone:
    """A fixed token."""

    def __init__(self, text: str, where: str) -> None:
        """Check the token; raises `ConfigurationError`, which names `where` it was given."""
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
        """Return the token in the file; the last one while the file cannot be read."""
        try:
            if self._stamp() != self._seen:
                self.read_again()
        except (ConfigurationError, OSError):
            pass  # It is being replaced; if the last one has ended, whoever is asked says so.
        return self._token

    def read_again(self) -> str:
        """Return the token in the file, changed or not; raises `ConfigurationError` if there is none."""
        try:
            seen = self._stamp()
            text = self.path.read_text("ascii")
        except OSError as error:
            raise ConfigurationError(f"token file {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            text = ""
        token = _one_word(text, f"token file {self.path}")
        self._seen, self._token = seen, token
        return token

    def _stamp(self) -> object:
        stat = self.path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def own_token(settings: AuthSettings) -> Token | None:
    """Return the token of `brokerClientAuthenticationParameters`, None without one; raises `ConfigurationError` if it
    is no token.
    """
    text = settings.broker_client_authentication_parameters.get_secret_value()
    return token_of(text, settings.key("broker_client_authentication_parameters"))


def token_of(text: str, where: str) -> Token | None:
    """Parse `token:...` or `file:///path`, None for an empty text; raises `ConfigurationError`, which names `where` it
    was given.
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
    """Return the path in a `file:` URL of this host; `ConfigurationError` for one of another host or without a path."""
    url = urlsplit(text)
    if url.netloc not in {"", "localhost"} or not url.path or url.query or url.fragment:
        raise ConfigurationError(f"{name}: expected file:///path, with three slashes")
    return Path(unquote(url.path))


def _one_word(text: str, where: str) -> str:
    token = text.strip()
    if not token.isprintable() or not token.isascii() or len(token.split()) != 1:
        raise ConfigurationError(f"{where}: expected a token, which is one word, and nothing else")
    return token
