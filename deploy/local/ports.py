"""Chooses ports that stay free for a broker while it is down.

The system assigns ports of its ephemeral range to outgoing connections. Such a connection could take the port of a broker
that was killed and will restart on it. So ports are drawn below that range, which begins at 32768 on Linux and 49152 on macOS.
A free port there can only be taken by another server that is configured for it.
"""

import random
import socket

PORT_MIN, PORT_END = 20_000, 32_000


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of 127.0.0.1, drawn at random so that two clusters rarely choose the same."""
    drawn = random.SystemRandom().sample(range(PORT_MIN, PORT_END), PORT_END - PORT_MIN)
    free = (port for port in drawn if is_free(port))
    return [next(free) for _ in range(count)]


def listens(port: int) -> bool:
    """Returns True if a server accepts connections on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    """Returns True if no server of this machine listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
