import socket
from collections.abc import Mapping
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

# Neither protocol is a class of kazoo's: they say what its connection asks of a request, and of what takes the answer.
class WireRequest(Protocol):
    @property
    def type(self) -> int | None: ...
    def serialize(self) -> bytes | bytearray: ...

class PendingReply(Protocol):
    def set(self, value: Any, /) -> None: ...  # noqa: ANN401 - whatever the request of this reply parses to
    def set_exception(self, exception: Exception, /) -> None: ...

class ConnectionDropped(Exception): ...  # noqa: N818 - kazoo's own name

AUTH_XID: int

class ConnectionHandler:
    client: KazooClient
    _socket: socket.socket | None
    def __init__(
        self, client: KazooClient, retry_sleeper: KazooRetry, *, sasl_options: Mapping[str, str] | None = ...
    ) -> None: ...
    def _invoke(self, timeout: float, request: WireRequest, xid: int | None = None) -> object: ...
    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]: ...
    def _connect_attempt(self, host: str, hostip: str, port: int, retry: KazooRetry) -> object: ...
    def _read_watch_event(self, buffer: bytes, offset: int) -> None: ...
