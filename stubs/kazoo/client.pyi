import logging
import threading
from collections import deque
from collections.abc import Callable

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler, PendingReply, WireRequest
from kazoo.retry import KazooRetry

class KazooClient:
    handler: SequentialThreadingHandler
    _state: str
    _session_id: int | None
    _session_timeout: int
    last_zxid: int
    _queue: deque[object]
    _pending: deque[tuple[WireRequest, PendingReply | None, int]]
    _connection: ConnectionHandler
    _conn_retry: KazooRetry
    def __init__(
        self,
        hosts: str = ...,
        timeout: float = ...,
        client_id: tuple[int, bytes] | None = ...,
        handler: SequentialThreadingHandler | None = ...,
        connection_retry: KazooRetry | None = ...,
        logger: logging.Logger | None = ...,
    ) -> None: ...
    @property
    def client_id(self) -> tuple[int, bytes] | None: ...
    def add_listener(self, listener: Callable[[str], bool | None]) -> None: ...
    def start(self, timeout: float = ...) -> None: ...
    def start_async(self) -> threading.Event: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def sync_async(self, path: str) -> AsyncResult: ...
    def _call(self, request: WireRequest, async_object: PendingReply) -> bool | None: ...
    def _session_callback(self, state: str) -> None: ...
