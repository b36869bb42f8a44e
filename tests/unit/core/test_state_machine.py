from __future__ import annotations

import pytest

from loadmanager.core.protocol.state_machine import do_all


def test_failed_action_does_not_stop_later_ones() -> None:
    done: list[int] = []

    def do(action: int) -> None:
        if action < 3:
            raise KeyError(action)
        done.append(action)

    with pytest.raises(KeyError, match="1"):
        do_all([1, 2, 3, 4], do)
    assert done == [3, 4]
