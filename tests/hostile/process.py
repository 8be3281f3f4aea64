"""The hostile clients, in a process of their own. Its argument is one `Attack`; it prints an empty line once it attacks, continues until
SIGTERM or the end of its standard input, and prints a `Tally` by kind.

    python -P -m tests.hostile.process '{"target": {...}, "kinds": ["trailers"]}'

A connection that ends is made again at once. The process has the lowest priority (nice 19): hostile clients are on other machines, and here
they may have only the time that the worker, the brokers and the load leave them.
"""

import asyncio
import contextlib
import math
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Final

import msgspec
import uvloop

from tests.hostile import contents, hostile_http  # their kinds register themselves
from tests.hostile.wire import KINDS, Ended, Kind, Tally, Target, connected

PAUSE_S: Final = 0.02
"""Between two connections of one client: much shorter, and these clients would need more of the machine than the worker."""
ALL: Final = (contents, hostile_http)


class Attack(msgspec.Struct, frozen=True):
    """The target and the kinds of an attack."""

    target: Target
    kinds: Sequence[str]
    ended_s_max: float = 0.0
    """After SIGTERM the kinds that the worker has to end go on until it has ended a connection of theirs, and so long at most."""
    part: float = 1.0
    """The part of each kind's clients that it has."""


async def client(kind: Kind, target: Target, tally: Tally, number: int) -> None:
    """Run one client without end."""
    source = f"127.0.{1 + list(KINDS).index(kind.name)}.{2 + number % kind.addresses}"
    while True:
        try:
            async with connected(target, tally, source, plain=kind.plain) as wire:
                try:
                    await kind.run(wire)
                except (Ended, ConnectionError):
                    tally.ended += 1
        except OSError:
            tally.refused += 1
        await asyncio.sleep(PAUSE_S)


async def attack(wanted: Attack) -> dict[str, Tally]:
    """Run all clients of these kinds until SIGTERM."""
    tallies = {name: Tally() for name in wanted.kinds}
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)  # of what is cancelled in the end, nothing is to be heard
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_reader(sys.stdin, over.set)  # its end is that of the process that started this one
    async with asyncio.TaskGroup() as tasks:
        clients = {
            name: [
                tasks.create_task(client(KINDS[name], wanted.target, tally, number))
                for number in range(math.ceil(KINDS[name].clients * wanted.part))
            ]
            for name, tally in tallies.items()
        }
        sys.stdout.buffer.write(b"\n")  # they are on their way
        sys.stdout.buffer.flush()
        await over.wait()
        until_s = loop.time() + wanted.ended_s_max
        while clients:
            for name in [name for name in clients if loop.time() >= until_s or not KINDS[name].ended or tallies[name].ended]:
                for each in clients.pop(name):
                    each.cancel()
            await asyncio.sleep(0.1)  # no event signals a count
    return tallies


if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[1], type=Attack)
    os.nice(19)
    with contextlib.suppress(ValueError):  # as many connections as the system allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    outcome = uvloop.run(attack(wanted))
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
