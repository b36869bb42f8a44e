"""An HTTP server in another thread that records requests and returns the test's answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class RecordingNode:
    """`hangs_up`: the connection is closed instead of an answer. `location` is where a redirect leads. `script` has
    answers by path, status and body, one after the other; the last one is given again.
    """

    url: str = ""
    status: int = 204
    body: bytes = b""
    content_type: str = "application/json"
    hangs_up: bool = False
    location: str = ""
    script: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    asked: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[Message] = field(default_factory=list)

    def answer_to(self, path: str) -> tuple[int, bytes]:
        answers = self.script.get(path.partition("?")[0])
        if not answers:
            return self.status, self.body
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextmanager
def a_recording_node() -> Iterator[RecordingNode]:
    node = RecordingNode()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            node.asked.append((self.command, self.path, body))
            node.headers.append(self.headers)
            if node.hangs_up:
                self.close_connection = True
                return
            status, answer = node.answer_to(self.path)
            self.send_response(status)
            self.send_header("Content-Type", node.content_type)
            self.send_header("Content-Length", str(len(answer)))
            self.send_header("Location", node.location)
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - what the library calls

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    node.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield node
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
