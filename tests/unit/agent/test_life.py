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


def test_life_on_this_host_is_over_once_closed(own: Life) -> None:
    other = Life()
    assert not own.is_over(other.name)
    other.close()
    assert own.is_over(other.name)


def test_life_on_another_host_is_never_known_to_be_over(own: Life) -> None:
    other = Life("another.1")
    other.close()
    assert not own.is_over(other.name)


def test_unknown_host_equals_no_other_host() -> None:
    with closing(Life("")) as own, closing(Life("")) as other:
        other.close()
        assert not own.is_over(other.name)


@pytest.mark.parametrize("token", ["", "x" * 200, "a\0b"])
def test_malformed_life_is_over_only_if_nobody_can_hold_its_name(own: Life, token: str) -> None:
    assert not own.is_over(token)
    assert own.is_over(f"{this_place()}/{token}") == (len(token) < 100)


def test_lives_have_different_names(own: Life) -> None:
    with closing(Life()) as other:
        assert own.name != other.name


def test_agents_of_one_network_namespace_are_counted() -> None:
    with closing(Life("a-place")) as own:
        assert own.count_agents_here() == 1
        with closing(Life("a-place")), closing(Life("another-place")):
            assert own.count_agents_here() == 2
        assert own.count_agents_here() == 1


def test_life_ends_when_its_object_is_collected() -> None:
    with closing(Life()) as own:
        name = Life().name
        gc.collect()
        assert own.is_over(name)
