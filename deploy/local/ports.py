"""Ports that stay ours while a broker is down.

The system lends ports from its ephemeral range to outgoing connections; one of those could take the port of a broker
that was killed and is to come back on it. So ports are drawn below that range (32768 on Linux, 49152 on macOS), and
from a free one nothing else takes them but another server told to.
"""

import random
import socket

PORT_MIN, PORT_END = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 on which nobody listens, drawn at random so that two clusters rarely
    choose the same."""
    drawn = random.SystemRandom().sample(range(PORT_MIN, PORT_END), PORT_END - PORT_MIN)
    free = (port for port in drawn if _is_free(port))
    return [next(free) for _ in range(count)]


def listens(port: int) -> bool:
    """Whether somebody accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
