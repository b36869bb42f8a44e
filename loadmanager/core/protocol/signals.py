"""Events without data, shared by the state machines."""

from __future__ import annotations

import enum


class Signal(enum.Enum):
    """TIME: `wake_s` is reached, or a driver requests a pass. MEMBERSHIP: a broker joined or left. CHANGED: the
    controls changed, or a broker left.
    """

    TIME = enum.auto()
    MEMBERSHIP = enum.auto()
    CHANGED = enum.auto()
