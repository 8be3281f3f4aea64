"""The link between a worker and an acceptor process: messages arrive once and in order, and memory is bounded on both sides."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from notary.acceptor.link import BUFFER_BYTES, Link
from notary.acceptor.messages import Answered, Down, LookupCall, Submitted, Up
from notary.http.submission import AnswerForm
from payload import Submission

CALLS = [
    Submitted(at, 1.5, AnswerForm(receipts=bool(at % 2), wait_s=at or None), Submission("O=A", b"s" * 64, (), b"x" * at * 1_000))
    for at in range(40)
]


@asynccontextmanager
async def linked(incoming: Any, take: Callable[[Any], None], **options: Any) -> AsyncIterator[tuple[Link[Any, Any], socket.socket]]:
    """Yields a link, and the raw socket that is its other end."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    lost = loop.create_future()
    link: Link[Any, Any] = Link(incoming, take, lambda: lost.set_result(None), **options)
    await loop.connect_accepted_socket(lambda: link, ours)
    try:
        yield link, theirs
    finally:
        link.close()
        theirs.close()
        await lost


async def sent(link: Link[Any, Any], theirs: socket.socket, messages: list[Any]) -> bytes:
    """Returns the bytes that sending these messages makes."""
    for message in messages:
        link.send(message)
    size = sum(4 + len(msgspec.msgpack.encode(message)) for message in messages)
    received = b""
    while len(received) < size:
        received += await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
    return received


@pytest.mark.parametrize("piece", [1, 3, 1_000, 1 << 20])
async def test_messages_arrive_whatever_the_pieces(piece: int) -> None:
    """Pieces of any size give the same messages, in order."""
    taken: list[Up] = []
    async with linked(Up, taken.append) as (link, theirs):
        messages = CALLS if piece > 100 else CALLS[:3]
        data = await sent(link, theirs, messages)
        for start in range(0, len(data), piece):
            link.data_received(data[start : start + piece])
    assert taken == messages


async def test_a_worker_takes_no_calls_from_a_process_that_reads_no_answers() -> None:
    """Unread answers hold the process's calls back; once they are read, the calls arrive."""
    loop = asyncio.get_running_loop()
    taken: list[Up] = []
    async with linked(Up, taken.append, reads_while_it_may_write=True) as (link, theirs), linked(Down, print) as (other, copied):
        call = await sent(other, copied, [LookupCall(1, "GET", "/livez", b"", "127.0.0.1", may_read=False)])
        paused = asyncio.Event()
        link.pause = paused.set
        while not paused.is_set():
            link.send(Answered(1, (200, [], b"x" * (BUFFER_BYTES // 4))))
            await asyncio.sleep(0)
        await loop.sock_sendall(theirs, call)
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert taken == []
        while not taken:
            await loop.sock_recv(theirs, 1 << 20)
            await asyncio.sleep(0)
    assert taken == [LookupCall(1, "GET", "/livez", b"", "127.0.0.1", may_read=False)]
