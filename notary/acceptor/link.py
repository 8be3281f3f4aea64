"""One end of the socket between a worker and an acceptor process. Messages of one turn of the loop go together, each after its length.

Neither end fills the other's memory. If the worker reads too slowly, the process reads no more calls (`pause`). If the process reads too
slowly, the worker takes no more of its calls. So no more answers wait than calls were taken.
"""

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

BUFFER_BYTES: Final = 1 << 20
"""The bytes that may wait for the other end before this end pauses."""

_LENGTH: Final = Struct("<I")
_encode = msgspec.msgpack.Encoder().encode

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")


class Link(asyncio.Protocol, Generic[Incoming, Outgoing]):
    """One end of a link. `take` gets each message; `lost` is called once, when either end has closed."""

    def __init__(
        self, incoming: Any, take: Callable[[Incoming], None], lost: Callable[[], None], *, reads_while_it_may_write: bool = False
    ) -> None:
        self._decode: Callable[[memoryview], Incoming] = msgspec.msgpack.Decoder(incoming).decode
        self._take = take
        self._lost = lost
        self._reads_while_it_may_write = reads_while_it_may_write
        self._received = bytearray()
        self._gathered: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self.pause: Callable[[], None] = lambda: None
        """Called when the other end reads too slowly."""
        self.go_on: Callable[[], None] = lambda: None
        """Called when the other end keeps up again."""

    def send(self, message: Outgoing) -> None:
        """Send a message, with all others of this turn of the loop; do nothing if the other end is gone."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        encoded = _encode(message)
        self._gathered += (_LENGTH.pack(len(encoded)), encoded)

    def close(self) -> None:
        """Send the gathered messages, then end."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    # ---- asyncio's ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the link, from either side."""
        self._transport = None
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Take the complete messages."""
        received = self._received
        received += data
        at, size = 0, len(received)
        with memoryview(received) as view:
            while size - at >= _LENGTH.size:
                start = at + _LENGTH.size
                end = start + _LENGTH.unpack_from(view, at)[0]
                if end > size:
                    break
                self._take(self._decode(view[start:end]))
                at = end
        del received[:at]

    def pause_writing(self) -> None:
        """The other end reads too slowly."""
        self.pause()
        if self._reads_while_it_may_write and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The other end keeps up again."""
        self.go_on()
        if self._reads_while_it_may_write and self._transport is not None:
            self._transport.resume_reading()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered and self._transport is not None:
            self._transport.write(b"".join(gathered))
