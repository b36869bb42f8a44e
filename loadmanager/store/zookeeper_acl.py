"""ZooKeeper authentication and ACLs: our identity, and the permissions on each znode.

Permissions are ZooKeeper's: c(reate) and d(elete) children, r(ead), w(rite), a(dminister: change the ACL).

path                      nodes    agents   anybody else
----                      -----    ------   ------------
/loadbalance/brokers      cdrwa    cdr      nothing
/loadbalance/brokers/*    ra       rw       nothing
everything else           cdrwa    r        nothing

ZooKeeper checks the permission to delete at the parent: a process that may delete its own registration may delete all
others. Znodes above the chroot are not ours, and stay open to everybody.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl_credential

from loadmanager.errors import ConfigurationError
from loadmanager.store import paths

_LETTERS = {
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "a": Permissions.ADMIN,
}
_TABLE = {paths.BROKERS: ("cdrwa", "cdr"), f"{paths.BROKERS}/*": ("ra", "rw")}
_EVERYTHING_ELSE = ("cdrwa", "r")
_DIGEST = re.compile(r"[^:]+:[A-Za-z0-9+/]{27}=")
_BYTES_PER_ENTRY = 16
"""Permissions and the lengths of both texts, with a margin."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """User and password. `origin` is their source: the setting, and the file or variable."""

    scheme: Literal["digest", "sasl"]
    user: str
    password: str = field(repr=False)
    origin: str

    @property
    def identity(self) -> Id:
        """Identity in an ACL."""
        if self.scheme == "sasl":
            return Id("sasl", self.user)
        return Id("digest", make_digest_acl_credential(self.user, self.password))

    def __str__(self) -> str:
        return f"{self.scheme}:{self.user} ({self.origin})"


_SASL = "sasl:"


def read_credentials(key: str, source: str) -> Credentials | None:
    """Read the credentials at `source`: `file:///path`, `env:NAME`, either of them after `sasl:`, or empty for none.

    Raises `ConfigurationError`, which names the key and the source, but never the content.
    """
    if not source:
        return None
    kind, _, where = source.removeprefix(_SASL).partition(":")
    if kind == "file" and where:
        text = _read_file(key, Path(where.removeprefix("//")))
    elif kind == "env" and where:
        if where not in os.environ:
            raise ConfigurationError(f"{key} env:{where}: there is no such environment variable")
        text = os.environ[where]
    else:
        expected = "file:///path/to/file or env:VARIABLE, with sasl: in front for SASL"
        raise ConfigurationError(f"{key}: expected {expected}, never credentials themselves")
    user, colon, password = text.strip().partition(":")
    if not colon or not user or not password or not text.strip().isprintable():
        raise ConfigurationError(f"{key} {source}: expected user:password on one line, and nothing else")
    return Credentials("sasl" if source.startswith(_SASL) else "digest", user, password, f"{key} {source}")


def _read_file(key: str, path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{key} file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{key} file {path}: not UTF-8 text") from None


def is_for_anyone(texts: Iterable[str]) -> bool:
    """Return True for node identities that leave everything open: ZooKeeper's `world:anyone` alone."""
    return list(texts) == ["world:anyone"]


def identities_of(key: str, texts: Iterable[str]) -> tuple[Id, ...]:
    """Parse identities in ACL form: `digest:user:hash`, `sasl:user`, `x509:CN=name`; raises `ConfigurationError`."""
    found = []
    for text in texts:
        scheme, _, name = text.partition(":")
        if scheme == "digest" and not _DIGEST.fullmatch(name):
            raise ConfigurationError(
                f"{key}: digest:{name.partition(':')[0]}:...: expected the user and ZooKeeper's hash of its password,"
                " as `loadmanager zookeeper secure` prints it"
            )
        if scheme not in {"digest", "sasl", "x509"} or not name:
            expected = "digest:user:hash, sasl:user or x509:subject; for nodes also world:anyone, alone"
            raise ConfigurationError(f"{key}: {text!r}: expected {expected}")
        found.append(Id(scheme, name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Acls:
    """ACL table (see the module docstring) for these identities; everything is open without node identities."""

    nodes: tuple[Id, ...] = ()
    agents: tuple[Id, ...] = ()

    @property
    def are_open(self) -> bool:
        return not self.nodes

    @property
    def longest_bytes(self) -> int:
        """Upper bound of the size of these ACLs on the wire."""
        ids = [*self.nodes, *self.agents]
        return sum(len(f"{each.scheme}{each.id}".encode()) + _BYTES_PER_ENTRY for each in ids)

    def of(self, path: str) -> list[ACL]:
        """Return the ACL of a znode by its path below the chroot; `/` is the chroot itself."""
        if self.are_open:
            return OPEN_ACL_UNSAFE
        of_nodes, of_agents = _TABLE.get(path) or _TABLE.get(f"{path.rpartition('/')[0]}/*") or _EVERYTHING_ELSE
        granted: dict[Id, int] = {}
        for ids, letters in ((self.nodes, of_nodes), (self.agents, of_agents)):
            for each in ids:
                granted[each] = granted.get(each, 0) | _permissions(letters)
        return [ACL(permissions, each) for each, permissions in granted.items()]


def _permissions(letters: str) -> int:
    return sum(_LETTERS[letter] for letter in letters)


@dataclass(frozen=True, slots=True)
class Access:
    """Access to a ZooKeeper: credentials, TLS (a context per connection) and ACLs."""

    credentials: Credentials | None = None
    tls: Callable[[], ssl.SSLContext] | None = None
    acls: Acls = Acls()

    @property
    def who(self) -> str:
        return str(self.credentials or "nobody by a password: there are no metadataStoreCredentials")


ANYBODY = Access()


def grants_all(acl: Sequence[ACL], ids: Iterable[Id]) -> bool:
    """Return True if the ACL grants all permissions to one of these, or to everybody. A hash may be hidden from us."""
    wanted = {_without_password(each) for each in [*ids, OPEN_ACL_UNSAFE[0].id]}
    return any(entry.perms == Permissions.ALL and _without_password(entry.id) in wanted for entry in acl)


def render(acl: Iterable[ACL]) -> str:
    """Format an ACL as ZooKeeper's own client does: `sasl:lm:cdrwa, sasl:agent:r`; for a digest only the user."""
    return ", ".join(f"{':'.join(_without_password(each.id))}:{letters_of(each.perms)}" for each in acl)


def letters_of(permissions: int) -> str:
    return "".join(letter for letter, permission in _LETTERS.items() if permissions & permission)


def _without_password(identity: Id) -> tuple[str, str]:
    """Return an identity without the hash of its password."""
    return (identity.scheme, identity.id.partition(":")[0] if identity.scheme == "digest" else identity.id)
