from __future__ import annotations

import pytest

from loadmanager.core.protocol.state_machine import do_all


def test_an_action_that_fails_does_not_keep_those_after_it_from_being_done() -> None:
    done: list[int] = []

    def do(action: int) -> None:
        if action < 3:
            raise KeyError(action)
        done.append(action)

    with pytest.raises(KeyError, match="1"):
        do_all([1, 2, 3, 4], do)
    assert done == [3, 4]
