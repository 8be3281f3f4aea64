"""Keep-alive HTTP for one user: FastHttpUser's own client (geventhttpclient), without features that a notary does not need.

`FastHttpUser` keeps cookies, follows redirects and builds a response object: 170 us of CPU a submission instead of 65, on the machine of
README's figures. CPU time that the load saves is available to the notary on the same machine.
"""

import socket
import ssl
from typing import Any, NamedTuple

import gevent
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError

CONNECT_S_MAX = 3.0
READ_S_MAX = 3_600.0
"""The timeout of one read; `post` has a deadline for the complete reply."""
BLOCK_BYTES = 1 << 16
_HEADERS = {"Content-Type": "application/json"}


class HttpReply(NamedTuple):
    """A complete HTTP reply."""

    status: int
    retry_after_s: float
    body: bytes


class NoReply(Exception):
    """No complete reply: the submission may or may not have been admitted. The message is one of a few."""


class _Late(Exception):
    pass


class Connections:
    """One connection to each URL, opened on first use."""

    def __init__(self, urls: tuple[str, ...], path: str) -> None:
        self._urls = urls
        self._path = path
        self._clients: dict[int, HTTPClient] = {}

    def post(self, at: int, body: bytes, limit_s: float) -> HttpReply:
        """Send a body to URL number `at` and return the complete reply. Raises `NoReply`, also after `limit_s` seconds."""
        client = self._clients.get(at)
        if client is None:
            client = self._clients[at] = connect(self._urls[at])
        try:
            with gevent.Timeout(limit_s, _Late):
                response = client.request("POST", self._path, body=body, headers=_HEADERS)
                content = bytes(response.read())
        except _Late:
            self._drop(at)
            raise NoReply("late") from None
        except ConnectionRefusedError:
            self._drop(at)
            raise NoReply("refused") from None
        except (OSError, HTTPParseError) as problem:
            self._drop(at)
            raise NoReply(f"broken: {type(problem).__name__}") from None
        return HttpReply(response.status_code, _seconds(response.get("retry-after")), content)

    def close(self) -> None:
        """Close all connections."""
        for at in list(self._clients):
            self._drop(at)

    def _drop(self, at: int) -> None:
        self._clients.pop(at).close()


def connect(url: str) -> HTTPClient:
    """Returns a client for one connection at a time; for https, OpenSSL's own settings (SSL_CERT_FILE) define the trusted authorities."""
    # The library has its own list of authorities.
    tls = {"ssl_options": {"ca_certs": ssl.get_default_verify_paths().cafile}} if url.startswith("https:") else {}
    client = HTTPClient.from_url(
        url, concurrency=1, connection_timeout=CONNECT_S_MAX, network_timeout=READ_S_MAX, block_size=BLOCK_BYTES, **tls
    )
    # The pool's own hook. Without it the last segment of a large submission waits for an acknowledgement, up to 40 ms.
    setattr(client._connection_pool, "after_connect", _no_delay)  # noqa: B010 - a hook, which types call a method
    return client


def _no_delay(connection: Any) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _seconds(retry_after: object) -> float:
    return float(retry_after) if isinstance(retry_after, str) and retry_after.isdecimal() else 0.0
