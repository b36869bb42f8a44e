"""Live stream of decisions from any node, whoever leads.

Whenever the stream begins anew, because the node went away or another one leads, what was decided meanwhile is asked
for first; what was shown already is not shown again, unless its move was measured since.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import orjson

from loadmanager.cli.admin.node_requests import AdminRequest, NoNodeReachableError, Stream
from loadmanager.cli.admin.service_client import NodeRefusedError, Service

Json = Mapping[str, Any]
"""An object of an answer, by the keys that it has on the wire."""

MOVE_BEGINS = "unload"
"""The kind of entry that is said again once its move was measured; its other entries say the same."""

_LIVE = "/loadbalance/v1/live"
_SILENCE_S = 30.0
"""A stream says something every ten seconds."""

_AGAIN_S = 1.0
_REMEMBERED = 10_000
"""So many decisions are known to have been shown; nodes keep fewer."""


class DecisionFollower:
    """Shows what `request` asks for, and then goes on with it until the process is stopped."""

    def __init__(self, request: AdminRequest, show: Callable[[Json], None]) -> None:
        self._request = request
        self._show = show
        self._subject = request.query["subject"]
        self._kinds = frozenset(str(request.query["kind"] or "").split(",")) - {""}
        self._shown: OrderedDict[tuple[int, int], bool] = OrderedDict()
        self._place = ""
        self._fault = ""

    def __call__(self, service: Service) -> None:
        show = _show_line if service.as_json else self._show
        stream, missed = self._begin(service)
        while True:
            try:
                for entry in chain(missed, self._decisions(stream)):
                    if self._is_new(entry):
                        show(entry)
                        sys.stdout.flush()
            finally:
                stream.close()
            time.sleep(_AGAIN_S)
            stream, missed = self._begin_again(service)

    def _begin(self, service: Service) -> tuple[Stream, list[Json]]:
        """The stream, and what was decided before it began, oldest first."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._place} if self._place else {})
        stream = service.stream(AdminRequest("GET", _LIVE, headers=headers), _SILENCE_S)
        try:
            content = service.get(self._request)
        except BaseException:
            stream.close()
            raise
        return stream, content["decisions"][::-1] if isinstance(content, dict) else []

    def _begin_again(self, service: Service) -> tuple[Stream, list[Json]]:
        """The same, once it can be had again; who may not have it any more is told so."""
        while True:
            try:
                begun = self._begin(service)
            except (NoNodeReachableError, NodeRefusedError) as error:
                if isinstance(error, NodeRefusedError) and not error.passes_by:
                    raise
                self._tell(f"{error}; asking again")
                time.sleep(_AGAIN_S)
            else:
                self._tell("")
                return begun

    def _decisions(self, stream: Stream) -> Iterator[Json]:
        """Yield the decisions of the stream."""
        for event, place, data in events(stream.lines()):
            self._place = place or self._place
            if event == "decision":
                yield orjson.loads(data)

    def _tell(self, fault: str) -> None:
        """Say once that nobody can be followed, and once that somebody can again."""
        if bool(fault) != bool(self._fault):
            print(f"loadmanager: {fault or 'following again'}", file=sys.stderr)
        self._fault = fault

    def _is_new(self, entry: Json) -> bool:
        """Tell if the decision is wanted and was not shown yet in this state."""
        about = (entry["subject"], entry["source"], entry["destination"])
        if (self._subject and self._subject not in about) or (self._kinds and entry["kind"] not in self._kinds):
            return False
        key = (entry["epoch"], entry["sequence"])
        is_measured = entry["kind"] == MOVE_BEGINS and bool((entry.get("effect") or {}).get("measured"))
        if key in self._shown and (self._shown[key] or not is_measured):
            return False
        self._shown[key] = is_measured
        if len(self._shown) > _REMEMBERED:
            self._shown.popitem(last=False)
        self._request = replace(self._request, query=self._request.query | {"since": entry["lastAt"]})
        return True


def events(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Server-sent events: the kind, the id (empty when it has none) and the data of each."""
    kind, place, data = "message", "", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, place, "\n".join(data)
            kind, place, data = "message", "", []
        elif name == "event":
            kind = value
        elif name == "id":
            place = value
        elif name == "data":
            data.append(value)


def _show_line(entry: Json) -> None:
    print(orjson.dumps(entry).decode())
