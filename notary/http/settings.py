"""`[http]`: where the service listens, with how many processes, and the time limits of a call."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from ordering.errors import ConfigurationError
from ordering.settings import Fixed, NotNegative, Positive, Seconds

ACCEPTOR_PROCESSES_MAX: Final = 64


class HttpSettings(Struct, frozen=True):
    """`[http]`. An empty `health_listen` serves health on `listen`. With an empty `tls_cert_file` the service speaks plain HTTP."""

    listen: str = "127.0.0.1:8080"
    health_listen: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_client_ca_file: str = ""
    tls_client_cert: Literal["required", "optional"] = "required"
    reads: Literal["open", "parties"] = "open"
    acceptor_processes: Annotated[int, Meta(ge=0, le=ACCEPTOR_PROCESSES_MAX, description="a few for each core at most")] = 0
    """0: the worker's process alone."""
    connections_max: Positive = 2_000
    connections_per_address_max: NotNegative = 1_000
    """0: an address has no limit of its own."""
    head_ms_max: Positive = 10_000
    """Limit for receiving a head or the rest of a skipped body, and for the client to read an answer."""
    body_ms_max: Positive = 20_000
    keep_alive_ms: Positive = 75_000
    wait_ms_default: NotNegative = 10_000
    wait_ms_max: Positive = 60_000
    last_call_ms: Fixed[int] = 500
    """Time in which calls are still answered on open connections when the server stops."""
    goodbye_ms: Fixed[int] = 1_000
    """Limit for a client to end its connection after the last answer; with TLS only when the server stops or needs its place."""

    head_s = Seconds("head_ms_max")
    body_s = Seconds("body_ms_max")
    keep_alive_s = Seconds("keep_alive_ms")
    wait_s_max = Seconds("wait_ms_max")
    last_call_s = Seconds("last_call_ms")
    goodbye_s = Seconds("goodbye_ms")


def parse_listen(text: str) -> tuple[str, int]:
    """Returns (host, port) of HOST:PORT; port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or not host:
        raise ConfigurationError(f"expected HOST:PORT to listen on, got {text!r}: e.g. 127.0.0.1:8080")
    return host.strip("[]"), int(port)
