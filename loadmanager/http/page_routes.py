"""Files of the web page in `page/`, which every node serves.

The files are read once. A browser revalidates each file by its entity tag (a hash of the content), so page and node
always have the same version. A content security policy forbids everything from other hosts and inline scripts. The page
may only probe other nodes, to continue there if its own does not answer.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import ETag, web

from loadmanager.errors import NotFoundError
from loadmanager.http.openapi import Operation, read
from loadmanager.net.auth.gate import AccessRole

_INDEX = "index.html"
_HTML = "text/html"
_ANY = "*/*"
_TYPES = {
    "html": _HTML,
    "css": "text/css",
    "js": "text/javascript",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "txt": "text/plain",
}
_OTHER = "application/octet-stream"
_WORTH_IT = 0.9
"""Maximum ratio of compressed to original size; otherwise the file is sent uncompressed."""

_SHOWN_CHARACTERS = 80
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'"
)
_HOST = re.compile(r"[A-Za-z0-9.-]+:[0-9]+")
_HEADERS = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the page; `compressed` is None if compression does not pay."""

    media_type: str
    tag: ETag
    body: bytes
    compressed: bytes | None

    @classmethod
    def of(cls, name: str, body: bytes) -> _File:
        media_type = _TYPES.get(name.rpartition(".")[2], _OTHER)
        compressed = gzip.compress(body, mtime=0)
        tag = ETag(hashlib.sha256(body).hexdigest(), is_weak=True)  # weak: the same for all encodings
        return cls(media_type, tag, body, compressed if len(compressed) <= _WORTH_IT * len(body) else None)


class PageHandlers:
    """Routes of the page. Anyone may load it: it contains no data of the cluster. Its requests carry the reader's
    token.
    """

    def __init__(self, nodes: Callable[[], Iterable[str]]) -> None:
        self._nodes = nodes
        self._files = _all_files()

    def operations(self) -> list[Operation]:
        return [
            read("/", self.index, None, role=AccessRole.ANYONE, media_type=_HTML, statuses=(200, 304)),
            read("/page/{file:.+}", self.file, None, role=AccessRole.ANYONE, media_type=_ANY, statuses=(200, 304, 404)),
        ]

    async def index(self, request: web.Request) -> web.Response:
        """Return the page."""
        return self._answer(request, self._files[_INDEX])

    async def file(self, request: web.Request) -> web.Response:
        """Return a file of the page."""
        name = request.match_info["file"]
        found = self._files.get(name)
        if found is None:
            raise NotFoundError(f"the page has no file {name[:_SHOWN_CHARACTERS]!r}")
        return self._answer(request, found)

    def _answer(self, request: web.Request, file: _File) -> web.Response:
        policy = _security_policy(request.scheme, self._nodes())
        response = web.Response(headers={**_HEADERS, "Content-Security-Policy": policy})
        response.etag = file.tag
        known = request.if_none_match or ()
        if any(each.value in (file.tag.value, "*") for each in known):
            response.set_status(HTTPStatus.NOT_MODIFIED)
            return response
        response.content_type = file.media_type
        if file.media_type.startswith("text/"):
            response.charset = "utf-8"
        if file.compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            response.headers["Content-Encoding"] = "gzip"
            response.body = file.compressed
        else:
            response.body = file.body
        return response


def _security_policy(scheme: str, nodes: Iterable[str]) -> str:
    others = [f"{scheme}://{node}" for node in sorted(nodes) if _HOST.fullmatch(node)]
    return " ".join([_POLICY, *others])


@cache
def _all_files() -> Mapping[str, _File]:
    """Load all files by their path below `page/`."""
    return {name: _File.of(name, body) for name, body in _read(files("loadmanager.http") / "page", "")}


def _read(folder: Traversable, below: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _read(each, f"{below}{each.name}/")
        else:
            yield f"{below}{each.name}", each.read_bytes()
