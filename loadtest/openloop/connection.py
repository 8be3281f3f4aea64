"""Keep-alive HTTP for one user: FastHttpUser's own client (geventhttpclient), without what a notary has no use for.

`FastHttpUser` keeps cookies, follows redirects and builds a response object: 170 us of CPU a submission where this takes 65, on the machine
that README's figures are from. What is left out of a load's time is left over for the notary beside it.
"""

import socket
import ssl
from typing import Any, NamedTuple

import gevent
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPParseError

CONNECT_S_MAX = 3.0
READ_S_MAX = 3_600.0
"""Of one read; `post` has a limit for the whole."""
BLOCK_BYTES = 1 << 16
_HEADERS = {"Content-Type": "application/json"}


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    retry_after_s: float
    body: bytes


class NoReply(Exception):
    """No whole reply: whether the submission was taken in, nobody knows. The message is one of a few."""


class _Late(Exception):
    pass


class Connections:
    """One connection to each URL, made when it is needed first."""

    def __init__(self, urls: tuple[str, ...], path: str) -> None:
        self._urls = urls
        self._path = path
        self._clients: dict[int, HTTPClient] = {}

    def post(self, at: int, body: bytes, limit_s: float) -> Reply:
        """Send a body to the URL of that place and read the whole reply; `NoReply`, also when it takes longer than `limit_s`."""
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
        return Reply(response.status_code, _seconds(response.get("retry-after")), content)

    def close(self) -> None:
        """Close all."""
        for at in list(self._clients):
            self._drop(at)

    def _drop(self, at: int) -> None:
        self._clients.pop(at).close()


def connect(url: str) -> HTTPClient:
    """A client for one connection at a time; of https, OpenSSL's own settings (SSL_CERT_FILE) say whom to trust."""
    # The library brings a list of authorities of its own.
    tls = {"ssl_options": {"ca_certs": ssl.get_default_verify_paths().cafile}} if url.startswith("https:") else {}
    client = HTTPClient.from_url(
        url, concurrency=1, connection_timeout=CONNECT_S_MAX, network_timeout=READ_S_MAX, block_size=BLOCK_BYTES, **tls
    )
    # The pool's own hook. Without it the last piece of a submission of many segments waits for an acknowledgement, up to 40 ms.
    setattr(client._connection_pool, "after_connect", _no_delay)  # noqa: B010 - a hook, which types call a method
    return client


def _no_delay(connection: Any) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _seconds(retry_after: object) -> float:
    return float(retry_after) if isinstance(retry_after, str) and retry_after.isdecimal() else 0.0
