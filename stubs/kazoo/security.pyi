from typing import NamedTuple

class Id(NamedTuple):
    scheme: str
    id: str

class ACL(NamedTuple):
    perms: int
    id: Id

class Permissions:
    READ: int
    WRITE: int
    CREATE: int
    DELETE: int
    ADMIN: int
    ALL: int

OPEN_ACL_UNSAFE: list[ACL]

def make_digest_acl(username: str, password: str, *, all: bool) -> ACL: ...  # noqa: A002 - kazoo's own name
def make_digest_acl_credential(username: str, password: str) -> str: ...
