from __future__ import annotations

import random

from support.page import Shown, on_one_loop

pytestmark = on_one_loop

_READ = """async (chunks) => {
  const { eventReader } = await import("./page/stream.js");
  const events = [];
  const read = eventReader((event) => events.push([event.type, event.id, event.data]));
  chunks.forEach(read);
  return events;
}"""
_STREAM = (
    ": nothing new\n\n"
    'event: fleet\ndata: {"a":1}\n\n'
    "id: 3:17\nevent: decision\ndata: one\ndata: two\n\n"
    "retry: 5\nunknown\n\n"
    "data:no space\n\n"
    "event: cut\ndata: off"
)
_EVENTS = [["fleet", None, '{"a":1}'], ["decision", "3:17", "one\ntwo"], ["message", None, "no space"]]


async def test_events_are_the_same_however_the_stream_is_cut_up(shown: Shown) -> None:
    await shown.open("fleet")
    chance = random.Random(7)
    for _ in range(40):
        cuts = sorted(chance.sample(range(len(_STREAM)), chance.randrange(12)))
        chunks = [_STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(_STREAM)], strict=True)]
        assert await shown.page.evaluate(_READ, chunks) == _EVENTS, chunks
