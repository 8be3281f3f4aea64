"""The brokers' certificates, from a separate TLS handshake: when they end, and why a connection fails.

aiokafka 0.14 drops the reason of a failed handshake, and reports only `Unable to bootstrap from …`. It does not return a connection's
certificate either; that of an old connection may have been renewed since. So this module makes a new handshake, with the same context.
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiokafka.conn import collect_hosts
from aiokafka.errors import KafkaConnectionError

from ordering.errors import error_text

HANDSHAKE_S_MAX: Final = 1.0
"""The deadline of a handshake, and of the alert by which a broker rejects our certificate after it (TLS 1.3)."""


class Handshake(msgspec.Struct, frozen=True):
    """The result of a TLS handshake with a broker."""

    certificate_ends_s: float | None = None
    """The expiry of the broker's certificate, in seconds since 1970; None if it was not accepted, or no broker answered."""
    problem: str = ""
    """The reason in TLS why the handshake failed; empty if it succeeded, or if the connection failed otherwise."""


async def shake_hands(host: str, port: int, context: ssl.SSLContext, *, alert: bool = False) -> Handshake:
    """Make a handshake with a broker, and close the connection. `alert`: wait for an alert after it. Takes a few seconds at most."""
    try:
        async with asyncio.timeout(HANDSHAKE_S_MAX):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as problem:
        return Handshake(problem=_text(problem))
    except (OSError, TimeoutError):
        return Handshake()
    ends, problem_text = writer.get_extra_info("ssl_object").getpeercert().get("notAfter"), ""
    try:
        async with asyncio.timeout(HANDSHAKE_S_MAX):
            if alert:
                await reader.read(1)
            writer.close()
            await writer.wait_closed()
    except ssl.SSLError as problem:
        problem_text = _text(problem) if alert else ""
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()
    return Handshake(None if ends is None else float(ssl.cert_time_to_seconds(ends)), problem_text)


async def connection_error_text(problem: BaseException, settings: Mapping[str, Any]) -> str:
    """Returns the text of a client's error. If no connection to a broker was possible, it includes the reason in TLS, or else a remedy.

    `settings` are the client's keyword arguments.
    """
    text, context = error_text(problem), settings.get("ssl_context")
    if not isinstance(problem, KafkaConnectionError):
        return text
    reach = f"{text}. Do brokers listen there, and does this machine reach them?"
    if context is None:
        return reach
    brokers = [(host, port) for host, port, _ in collect_hosts(settings["bootstrap_servers"])]
    found = await asyncio.gather(*[shake_hands(host, port, context, alert=True) for host, port in brokers])
    for (host, port), handshake in zip(brokers, found, strict=True):
        if handshake.problem:
            return f"{text}; the TLS handshake with {host}:{port} fails: {handshake.problem}"
    return reach


def _text(problem: ssl.SSLError) -> str:
    """Returns the error's text without the line of OpenSSL's binding that raised it."""
    return re.sub(r" \(_ssl\.c:\d+\)$", "", str(problem))
