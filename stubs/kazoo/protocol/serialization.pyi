import struct
from typing import NamedTuple

from kazoo.security import ACL

int_struct: struct.Struct
multiheader_struct: struct.Struct
stat_struct: struct.Struct

def read_string(buffer: bytes, offset: int) -> tuple[str, int]: ...
def read_buffer(buffer: bytes, offset: int, /) -> tuple[bytes | None, int]: ...
def write_string(text: str, /) -> bytes: ...

class Connect(NamedTuple):
    protocol_version: int
    last_zxid_seen: int
    time_out: int
    session_id: int
    passwd: bytes
    read_only: bool

class Create(NamedTuple):
    path: str
    data: bytes
    acl: list[ACL]
    flags: int
    type: int = ...
    def serialize(self) -> bytearray: ...

class Delete(NamedTuple):
    path: str
    version: int
    type: int = ...
    def serialize(self) -> bytearray: ...

class SetData(NamedTuple):
    path: str
    data: bytes
    version: int
    type: int = ...
    def serialize(self) -> bytearray: ...

class CheckVersion(NamedTuple):
    path: str
    version: int
    type: int = ...
    def serialize(self) -> bytearray: ...

class Watch(NamedTuple):
    type: int
    state: int
    path: str
    @classmethod
    def deserialize(cls, buffer: bytes, offset: int, /) -> tuple[Watch, int]: ...

class ReplyHeader(NamedTuple):
    xid: int
    zxid: int
    err: int
