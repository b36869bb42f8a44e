"""Who we are to a Pulsar: a token from a file."""

from __future__ import annotations

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
