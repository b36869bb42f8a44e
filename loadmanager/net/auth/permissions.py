"""Permissions: the lists of principals in the settings, and the access roles that each list grants.

| a principal in | READ | LOOKUP | OPERATE | ADMIN | PEER |
|---|---|---|---|---|---|
| `superUserRoles` | yes | yes | yes | yes | yes |
| `operateRoles` | yes | yes | yes | | |
| `peerRoles` | yes | yes | | | yes |
| `readRoles` | yes | | | | |
| `lookupRoles` | | yes | | | |

One that is in several has what any of them gives. `*` in a list stands for all who have a token; `superUserRoles` may
not hold it, and `lookupRoles` does by default. So one that is in no list may look topics up, and nothing else: whether
they may use a topic is for the broker to say. Without `authorizationEnabled` all who have a token may do anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadmanager.config import AuthSettings
from loadmanager.config.auth_settings import EVERYBODY
from loadmanager.net.auth.roles import AccessRole

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
