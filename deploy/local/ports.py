"""Chooses ports that stay free for a server while it is down, or not yet up.

The system assigns ports of its ephemeral range to outgoing connections. Such a connection could take the port of a broker
that was killed and will restart on it. So ports are drawn below that range, which begins at 32768 on Linux and 49152 on macOS.
A free port there can only be taken by another server that is configured for it.

A port that was drawn is free until its server listens, seconds later, and another test would find it free too. So the process
that draws a port also holds the UDP port of this number: UDP has its own ports, so the server can listen, and nobody else draws it.
"""

import random
import socket
from collections import deque

PORT_MIN, PORT_END = 20_000, 32_000

DRAWN_MAX = 2_000
"""Ports that a call tries; the rest of the range stays unused, since drawing all takes 10 ms."""
HELD_MAX = 400
"""Ports that a process holds, each by an open file descriptor. Beyond that, the one drawn first is released."""

_held: deque[int] = deque()


def free_ports(count: int) -> list[int]:
    """Return `count` free ports of 127.0.0.1 that no process of this machine has drawn and still holds."""
    drawn = random.SystemRandom().sample(range(PORT_MIN, PORT_END), DRAWN_MAX)
    free = (port for port in drawn if hold(port))
    return [next(free) for _ in range(count)]


def hold(port: int) -> bool:
    """Hold this port of 127.0.0.1 for a server of this process; returns False if another server listens on it or will."""
    holder = socket.socket(type=socket.SOCK_DGRAM)
    if _binds(holder, port) and is_free(port):
        _held.append(holder.detach())
        if len(_held) > HELD_MAX:
            socket.close(_held.popleft())
        return True
    holder.close()
    return False


def listens(port: int) -> bool:
    """Returns True if a server accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    """Returns True if no server of this machine listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        return _binds(probe, port)


def _binds(to_bind: socket.socket, port: int) -> bool:
    try:
        to_bind.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
