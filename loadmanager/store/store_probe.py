"""Probe of a metadata store: opens a session, the only proof that it serves.

A server that listens, or even answers four-letter commands, may still be without a quorum.
"""

from __future__ import annotations

import logging

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from loadmanager.store._kazoo_sockets import Sockets, TlsContext

SESSION_TIMEOUT_S = 4.0

_silent = logging.getLogger(__name__)  # refused connections are what is being waited through, not news
_silent.setLevel(logging.CRITICAL)


def session_works(connect_string: str, timeout_s: float, tls: TlsContext | None = None, *, named: str = "") -> bool:
    """Return True if a session could be opened within `timeout_s`, which takes a write by a quorum. Blocks.

    Over TLS the server's certificate has to be of the host `named`, or of the one that is asked.
    """
    patience_s = min(SESSION_TIMEOUT_S, timeout_s)
    client = KazooClient(connect_string, patience_s, handler=Sockets(patience_s, tls, named or None), logger=_silent)
    try:
        client.start(timeout_s)
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        client.stop()
        client.close()
    return True
