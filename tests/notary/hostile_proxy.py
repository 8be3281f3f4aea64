"""A proxy in front of a real worker that changes the worker's answers to the client."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Change = Callable[[list[dict[str, Any]]], None]


class HostileProxy:
    """A proxy for `target`; `change` changes the decisions in the answer to a POST, `described` the answer of `GET /v1/notary`."""

    def __init__(self, target: str, change: Change = lambda decisions: None) -> None:
        self.target = target
        self.change = change
        self.described: dict[str, Any] = {}
        self.receipt: Callable[[bytes], bytes] = lambda receipt: receipt
        self.posts = 0
        self.url = ""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        connection = HTTPConnection(urlsplit(self.target).netloc, timeout=60)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            status, kind, content = reply.status, reply.headers["Content-Type"], reply.read()
        finally:
            connection.close()
        if method == "POST":
            self.posts += 1
        if status == 200 and method == "POST":
            returned = json.loads(content)
            self.change(returned["decisions"])
            content = json.dumps(returned).encode()
        elif path == "/v1/notary":
            content = json.dumps(json.loads(content) | self.described).encode()
        elif path.endswith("/receipt"):
            content = self.receipt(content)
        return status, kind, content


@contextmanager
def hostile_proxy(target: str, change: Change = lambda decisions: None) -> Iterator[HostileProxy]:
    """Yields a `HostileProxy` that serves on loopback."""
    proxy = HostileProxy(target, change)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            kept = {name: value for name, value in self.headers.items() if name in ("Content-Type", "Prefer")}
            status, kind, content = proxy.answer(self.command, self.path, kept, body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
