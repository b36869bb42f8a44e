"""Whether a metadata store serves: asked by opening a session, the only answer that counts.

A server that listens, or even answers four-letter commands, may still be without a quorum.
"""

from __future__ import annotations

import logging

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

SESSION_TIMEOUT_S = 4.0

_silent = logging.getLogger(__name__)  # refused connections are what is being waited through, not news
_silent.setLevel(logging.CRITICAL)


def session_works(connect_string: str, timeout_s: float) -> bool:
    """Whether a session could be opened within `timeout_s`: a write that a quorum must have taken. Blocks."""
    client = KazooClient(connect_string, timeout=min(SESSION_TIMEOUT_S, timeout_s), logger=_silent)
    try:
        client.start(timeout_s)
    except (KazooException, KazooTimeoutError):
        return False
    finally:
        client.stop()
        client.close()
    return True
