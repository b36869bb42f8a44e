from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.recording_node import RecordingNode, a_recording_node


@pytest.fixture
def node() -> Iterator[RecordingNode]:
    with a_recording_node() as node:
        yield node
