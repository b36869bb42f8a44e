"""Certificates for tests: authorities, and what they sign, as files."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"


@dataclass(frozen=True)
class Signed:
    """A certificate with its chain, and its key."""

    certificate: Path
    key: Path

    def put_in_place_of(self, other: Signed) -> None:
        """Replace files as certificate managers do: each atomically, one after the other."""
        for new, old in ((self.certificate, other.certificate), (self.key, other.key)):
            copy = old.with_name(f"{old.name}.new")
            copy.write_bytes(new.read_bytes())
            copy.replace(old)


@dataclass(frozen=True)
class Authority:
    """Signs; `certificate` is what those trust who believe it. Files go into the folder."""

    folder: Path
    name: str = "authority"
    _authority: trustme.CA = field(default_factory=lambda: trustme.CA(key_type=trustme.KeyType.ECDSA), repr=False)

    @property
    def certificate(self) -> Path:
        path = self.folder / f"{self.name}.pem"
        if not path.exists():
            self._authority.cert_pem.write_to_path(path)
        return path

    def sign(self, name: str, host: str = LOOPBACK, days: tuple[float, float] = (-1, 1)) -> Signed:
        """For this common name and host; it holds from so many days from now to so many."""
        made = Signed(self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key")
        begins, ends = (datetime.now(UTC) + timedelta(days=each) for each in days)
        leaf = self._authority.issue_cert(
            host, common_name=name, not_before=begins, not_after=ends, key_type=trustme.KeyType.ECDSA
        )
        leaf.private_key_pem.write_to_path(made.key)
        made.certificate.write_bytes(b"".join(each.bytes() for each in leaf.cert_chain_pems))
        return made
