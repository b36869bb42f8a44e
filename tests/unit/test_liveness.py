from __future__ import annotations

import pytest
from support.servers import closed_port, listen

from loadmanager.liveness import is_refused


async def test_a_closed_port_is_refused() -> None:
    assert await is_refused(f"http://127.0.0.1:{closed_port()}/")


async def test_a_name_with_several_addresses_is_refused_when_all_of_them_are() -> None:
    assert await is_refused(f"http://localhost:{closed_port()}")


async def test_a_port_that_listens_but_never_answers_is_not_refused() -> None:
    with listen() as listener:
        assert not await is_refused(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert not await is_refused(f"http://localhost:{listener.getsockname()[1]}")


async def test_a_name_that_does_not_resolve_is_not_refused() -> None:
    assert not await is_refused("http://nowhere.invalid:80")


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://host:port"])
async def test_what_is_no_url_is_not_refused(url: str) -> None:
    assert not await is_refused(url)
