"""Events of the machines here that say nothing but that they happened."""

from __future__ import annotations

import enum


class Signal(enum.Enum):
    """TIME: the machine's `wake_s` has come, or it is to look anyway. MEMBERSHIP: a broker has come or gone. CHANGED:
    the controls are others, or a broker has gone.
    """

    TIME = enum.auto()
    MEMBERSHIP = enum.auto()
    CHANGED = enum.auto()
