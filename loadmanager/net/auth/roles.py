"""Access roles of operations, and the lists of principals that have them.

Each operation needs exactly one role.

| a principal in | READ | LOOKUP | OPERATE | ADMIN | PEER |
|---|---|---|---|---|---|
| `superUserRoles` | yes | yes | yes | yes | yes |
| `operateRoles` | yes | yes | yes | | |
| `peerRoles` | yes | yes | | | yes |
| `readRoles` | yes | | | | |
| `lookupRoles` | | yes | | | |

A principal in several lists has the roles of all of them. `*` stands for every caller with a token; `superUserRoles`
may not contain it, and `lookupRoles` does by default. So a principal in no list may only look topics up: the broker
decides whether it may use a topic. Without `authorizationEnabled` every caller with a token may do anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from loadmanager.config import AuthSettings
from loadmanager.config.auth_settings import EVERYBODY


class AccessRole(StrEnum):
    """An access role. None contains another."""

    ANYONE = "anyone"
    """Everybody, without a token: probes, and the files of the page."""

    READ = "read"
    """Read-only operations: decisions, explanations, metrics, operator config."""

    LOOKUP = "lookup"
    """Lookups by clients and brokers, which may assign an owner."""

    OPERATE = "operate"
    """Operations that move bundles or stop moves: unload, split, drain, pin, freeze, plans."""

    ADMIN = "admin"
    """Operations that change namespaces, policies, failure domains or dynamic settings."""

    PEER = "peer"
    """Calls between processes of this service, mostly of a leader to an agent."""


ALL = frozenset(AccessRole)

_GIVES = {
    "operate_roles": frozenset({AccessRole.OPERATE, AccessRole.READ, AccessRole.LOOKUP}),
    "peer_roles": frozenset({AccessRole.PEER, AccessRole.READ, AccessRole.LOOKUP}),
    "read_roles": frozenset({AccessRole.READ}),
    "lookup_roles": frozenset({AccessRole.LOOKUP}),
}
_LISTS = {"super_user_roles": ALL, **_GIVES}


@dataclass(frozen=True, slots=True)
class Permissions:
    """Permissions by the lists in these settings."""

    settings: AuthSettings

    def of(self, principal: str) -> frozenset[AccessRole]:
        """Return the roles of the principal."""
        settings = self.settings
        if not settings.authorization_enabled or principal in settings.super_user_roles:
            return ALL
        given = {AccessRole.ANYONE}
        for name, roles in _GIVES.items():
            if not {principal, EVERYBODY}.isdisjoint(getattr(settings, name)):
                given |= roles
        return frozenset(given)

    def is_proxy(self, principal: str) -> bool:
        return principal in self.settings.proxy_roles

    def keys_that_give(self, role: AccessRole) -> list[str]:
        """Return the settings whose lists grant the role, the narrowest first."""
        names = sorted((name for name, roles in _LISTS.items() if role in roles), key=lambda name: len(_LISTS[name]))
        return [self.settings.key(name) for name in names]
