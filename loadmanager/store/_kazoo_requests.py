"""Requests of ZooKeeper's protocol that the store sends, including those that kazoo lacks.

kazoo lacks multi-read (many znodes in one request) and add-watch (persistent recursive watches), both of ZooKeeper 3.6,
and who-am-I (3.7); it would also log credentials. The other requests are here because kazoo serialises in its
connection thread: an error there ends the thread and the session. A `KazooRequest` is serialised by its creator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol.serialization import (
    CheckVersion,
    Delete,
    SetData,
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_string,
)
from kazoo.protocol.serialization import Create as CreateRequest
from kazoo.security import ACL, Id

from loadmanager.store.metadata_store import ANY_VERSION, Check, Create, Op, Put, Znode

T = TypeVar("T")

_GET_DATA = 4
_GET_ACL = 6
_SET_ACL = 7
_GET_CHILDREN = 8
SYNC = 9
_MULTI = 14
_MULTI_READ = 22
_AUTH = 100
_ADD_WATCH = 106
_WHO_AM_I = 107
_ERROR = -1

_NO_ERROR = 0
_ROLLED_BACK_BECAUSE_OF_ANOTHER = -2
_EPHEMERAL = 1
_PERSISTENT_RECURSIVE = 1
_NO_WATCH = b"\0"
_MORE, _LAST = 0, 1
_END_OF_MULTI = multiheader_struct.pack(_ERROR, _LAST, _ERROR)


class KazooRequest(Generic[T]):
    """A request in the form that kazoo's connection sends; `T` is the type of its answer."""

    __slots__ = ("_parse", "_payload", "type")

    def __init__(self, opcode: int, payload: bytes, parse: Callable[[bytes, int], T]) -> None:
        self.type = opcode
        self._payload = payload
        self._parse = parse

    def serialize(self) -> bytes:
        return self._payload

    def deserialize(self, buffer: bytes, offset: int) -> T:
        """Read the answer's body at `offset`; called in kazoo's connection thread."""
        return self._parse(buffer, offset)


def sync(full_path: str) -> KazooRequest[None]:
    return KazooRequest(SYNC, write_string(full_path), _ignore)


def add_watch(full_path: str) -> KazooRequest[None]:
    """Watch `full_path` and everything below it until the connection ends."""
    return KazooRequest(_ADD_WATCH, write_string(full_path) + int_struct.pack(_PERSISTENT_RECURSIVE), _ignore)


def multi_read(full_paths: Sequence[str], paths: Sequence[str]) -> KazooRequest[list[Znode | None]]:
    """Read znodes in one consistent state, None for those that do not exist; the results have `paths`, their names
    inside the chroot.
    """
    return _multi_read(_GET_DATA, full_paths, paths, [partial(_read_znode, path) for path in paths])


def multi_children(full_paths: Sequence[str], paths: Sequence[str]) -> KazooRequest[list[list[str] | None]]:
    """List the children of many znodes in one consistent state; None for those that do not exist."""
    return _multi_read(_GET_CHILDREN, full_paths, paths, [_read_strings] * len(full_paths))


def _multi_read(
    opcode_of_each: int,
    full_paths: Sequence[str],
    paths: Sequence[str],
    readers: Sequence[Callable[[bytes, int], tuple[T, int]]],
) -> KazooRequest[list[T | None]]:
    """Parse the answer with one reader per part, which gets the bytes and an offset and returns its end. Errors name
    the path.
    """
    header = multiheader_struct.pack(opcode_of_each, _MORE, _ERROR)
    payload = b"".join(header + write_string(full_path) + _NO_WATCH for full_path in full_paths)

    def parse(buffer: bytes, offset: int) -> list[T | None]:
        found: list[T | None] = []
        for path, read in zip(paths, readers, strict=True):
            opcode, _, _ = multiheader_struct.unpack_from(buffer, offset)
            offset += multiheader_struct.size
            if opcode == _ERROR:
                (code,) = int_struct.unpack_from(buffer, offset)
                offset += int_struct.size
                if code != NoNodeError.code:
                    raise EXCEPTIONS[code](path)
                found.append(None)
            else:
                each, offset = read(buffer, offset)
                found.append(each)
        return found

    return KazooRequest(_MULTI_READ, payload + _END_OF_MULTI, parse)


def multi(
    ops: Sequence[Op], full_path: Callable[[str], str], acl_of: Callable[[str], list[ACL]]
) -> KazooRequest[list[tuple[int, int]]]:
    """Commit all operations or none; return per operation its error code (0 if none) and the version after a `Put`.
    `acl_of` returns the ACL for each created full path.
    """
    payload = b"".join(_serialize_op(op, full_path(op.path), acl_of) for op in ops)
    return KazooRequest(_MULTI, payload + _END_OF_MULTI, _read_outcomes)


def get_acl(full_path: str) -> KazooRequest[list[ACL]]:
    return KazooRequest(
        _GET_ACL, write_string(full_path), lambda buffer, offset: _read_vector(buffer, offset, _read_acl_entry)[0]
    )


def set_acl(full_path: str, acl: Sequence[ACL]) -> KazooRequest[None]:
    """Replace the ACL of the znode at any version."""
    return KazooRequest(_SET_ACL, write_string(full_path) + _serialize_acl(acl) + int_struct.pack(ANY_VERSION), _ignore)


def who_am_i() -> KazooRequest[list[Id]]:
    """Return our identities as the servers know them; for a digest only the user."""
    return KazooRequest(_WHO_AM_I, b"", lambda buffer, offset: _read_vector(buffer, offset, _read_id)[0])


def auth(scheme: str, credential: str) -> KazooRequest[None]:
    """Authenticate; the logged form of the request hides the credentials."""
    return KazooRequest(_AUTH, int_struct.pack(0) + write_string(scheme) + write_string(credential), _ignore)


def first_failure(codes: Sequence[int]) -> int | None:
    """Return the index of the operation that failed the transaction; None if it was committed."""
    if not any(codes):
        return None
    culprits = [index for index, code in enumerate(codes) if code not in {_NO_ERROR, _ROLLED_BACK_BECAUSE_OF_ANOTHER}]
    return culprits[0] if culprits else codes.index(_ROLLED_BACK_BECAUSE_OF_ANOTHER)


def _serialize_acl(acl: Sequence[ACL]) -> bytes:
    entries = (int_struct.pack(each.perms) + write_string(each.id.scheme) + write_string(each.id.id) for each in acl)
    return int_struct.pack(len(acl)) + b"".join(entries)


def _serialize_op(op: Op, full_path: str, acl_of: Callable[[str], list[ACL]]) -> bytes:
    match op:
        case Check(version=version):
            opcode, body = CheckVersion.type, CheckVersion(full_path, version).serialize()
        case Create(data=data, ephemeral=ephemeral):
            flags = _EPHEMERAL if ephemeral else 0
            opcode, body = CreateRequest.type, CreateRequest(full_path, data, acl_of(full_path), flags).serialize()
        case Put(data=data, version=version):
            opcode, body = SetData.type, SetData(full_path, data, version).serialize()
        case _:
            opcode, body = Delete.type, Delete(full_path, op.version).serialize()
    return multiheader_struct.pack(opcode, _MORE, _ERROR) + bytes(body)


def _read_outcomes(buffer: bytes, offset: int) -> list[tuple[int, int]]:
    outcomes: list[tuple[int, int]] = []
    while True:
        opcode, done, _ = multiheader_struct.unpack_from(buffer, offset)
        offset += multiheader_struct.size
        if done:
            return outcomes
        code = version = 0
        if opcode == _ERROR:
            (code,) = int_struct.unpack_from(buffer, offset)
            offset += int_struct.size
        elif opcode == CreateRequest.type:
            _, offset = read_string(buffer, offset)
        elif opcode == SetData.type:
            version = stat_struct.unpack_from(buffer, offset)[4]
            offset += stat_struct.size
        outcomes.append((code, version))


def _read_znode(path: str, buffer: bytes, offset: int) -> tuple[Znode, int]:
    data, offset = read_buffer(buffer, offset)
    czxid, mzxid, _, _, version, _, _, owner, _, _, _ = stat_struct.unpack_from(buffer, offset)
    return Znode(path, data or b"", version, czxid, mzxid, owner), offset + stat_struct.size


def _read_strings(buffer: bytes, offset: int) -> tuple[list[str], int]:
    return _read_vector(buffer, offset, read_string)


def _read_acl_entry(buffer: bytes, offset: int) -> tuple[ACL, int]:
    (permissions,) = int_struct.unpack_from(buffer, offset)
    identity, offset = _read_id(buffer, offset + int_struct.size)
    return ACL(permissions, identity), offset


def _read_id(buffer: bytes, offset: int) -> tuple[Id, int]:
    scheme, offset = read_string(buffer, offset)
    name, offset = read_string(buffer, offset)
    return Id(scheme, name), offset


def _read_vector(buffer: bytes, offset: int, read: Callable[[bytes, int], tuple[T, int]]) -> tuple[list[T], int]:
    (count,) = int_struct.unpack_from(buffer, offset)
    offset += int_struct.size
    found = []
    for _ in range(count):
        each, offset = read(buffer, offset)
        found.append(each)
    return found, offset


def _ignore(_buffer: bytes, _offset: int) -> None:
    """Read nothing: the absence of an error is the answer."""
