"""A local server that speaks the protocol of chat completions, for tests: what it answers is a function."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """content: what the model says. With another status than 200, or `raw`, the body is that of an error or `raw`."""

    content: str = ""
    status: int = 200
    message: str = "no"
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: str | None = None
    delay: float = 0.0
    finish_reason: str = "stop"
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 100, "completion_tokens": 10})

    def body(self) -> str:
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": self.message, "code": self.code}})
        message = {"role": "assistant", "content": self.content}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return json.dumps({"object": "chat.completion", "choices": [choice], "usage": self.usage})


@dataclass
class FakeEndpoint:
    """url: for --endpoint. bodies, keys, times: of every request, in order. most_at_once: requests in flight."""

    url: str
    answer: Callable[[dict[str, Any]], Reply]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    most_at_once: int = 0


def asked_text(body: dict[str, Any]) -> str:
    return str(body["messages"][1]["content"])


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Reply]) -> Iterator[FakeEndpoint]:
    lock = threading.Lock()
    now = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            nonlocal now
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                now += 1
                fake.most_at_once = max(fake.most_at_once, now)
                fake.bodies.append(body)
                fake.keys.append(self.headers.get("Authorization"))
                fake.times.append(time.monotonic())
                reply = fake.answer(body) if self.path == "/v1/chat/completions" else Reply(status=404)
            time.sleep(reply.delay)
            with lock:
                now -= 1
            data = reply.body().encode()
            try:
                self.send_response(reply.status)
                for name, value in (reply.headers | {"Content-Length": str(len(data))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # who asked has given up

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake = FakeEndpoint(f"http://127.0.0.1:{server.server_port}/v1", answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
