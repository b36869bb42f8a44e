from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing

import pytest

from loadmanager.net.liveness import Life, this_place


@pytest.fixture
def own() -> Iterator[Life]:
    with closing(Life()) as own:
        yield own


def test_a_life_on_this_host_is_over_once_it_has_ended_and_not_before(own: Life) -> None:
    other = Life()
    assert not own.is_over(other.name)
    other.close()
    assert own.is_over(other.name)


def test_of_a_life_on_another_host_nothing_is_known(own: Life) -> None:
    other = Life("another.1")
    other.close()
    assert not own.is_over(other.name)


def test_a_place_that_is_not_known_is_like_no_other() -> None:
    with closing(Life("")) as own, closing(Life("")) as other:
        other.close()
        assert not own.is_over(other.name)


@pytest.mark.parametrize("token", ["", "x" * 200, "a\0b"])
def test_a_name_that_no_agent_has_written_is_over_only_if_nobody_can_hold_it(own: Life, token: str) -> None:
    assert not own.is_over(token)
    assert own.is_over(f"{this_place()}/{token}") == (len(token) < 100)


def test_no_two_lives_have_one_name(own: Life) -> None:
    with closing(Life()) as other:
        assert own.name != other.name


def test_agents_of_one_network_namespace_are_counted() -> None:
    with closing(Life("a-place")) as own:
        assert own.count_agents_here() == 1
        with closing(Life("a-place")), closing(Life("another-place")):
            assert own.count_agents_here() == 2
        assert own.count_agents_here() == 1


def test_a_life_ends_with_what_lives_it() -> None:
    with closing(Life()) as own:
        name = Life().name
        gc.collect()
        assert own.is_over(name)
