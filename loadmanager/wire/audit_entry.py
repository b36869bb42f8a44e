"""Audit entry: one operation with its caller and its change, the same in log, history and HTTP answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from loadmanager.wire.validation import WireModel

ANONYMOUS = "anonymous"


class AuditEntry(WireModel):
    """An operation that changes something, whatever its outcome.

    `at` in epoch milliseconds is when it was answered by `node`, with `status`; `from_` is the address that asked, and
    `operation` a verb and a path with variables. `before` and `after` say what it changed, and nothing of what it left
    as it was; None where nothing was changed, or where nothing more is to be said than the path does.
    """

    at: int
    node: str
    request_id: str
    who: str
    from_: str = Field(alias="from")
    operation: str
    path: str
    status: int
    before: Any = None
    after: Any = None


class AuditAnswer(WireModel):
    """`GET /loadbalance/v1/audit`, newest first."""

    entries: list[AuditEntry]
