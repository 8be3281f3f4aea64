"""Makes a network namespace for a centre, with a TUN device that carries all its packets. It needs only system calls.

Its constants, of <linux/if_tun.h>, <linux/sockios.h> and <linux/if.h>, are the same on all machines that run CPython on Linux.
"""

import fcntl
import os
import socket
import struct
from dataclasses import dataclass

from deploy import namespace

NAME = b"wide"
MTU = 65_000
"""Large, so that a TCP stream needs few packets; with its header a packet has 65,535 bytes at most."""
QUEUE_PACKETS = 10_000
"""Packets that the device buffers until the forwarder reads them: more than the TCP windows of all connections."""

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8922, 0x8943
_IFF_UP = 1


@dataclass(frozen=True)
class Device:
    """A centre as two file descriptors: of its namespace, and of its device (`packets`: non-blocking, one IP packet a read or write)."""

    namespace: int
    packets: int


def address(number: int) -> str:
    """Returns the IPv4 address of a centre."""
    return f"10.77.{number}.1"


def number_of(packet: bytes) -> int | None:
    """Returns the number of the centre that a packet goes to; None for IPv6 and for an address that is no centre's."""
    if packet[:1] >= b"\x50" or len(packet) < 20:
        return None
    return packet[18] if packet[16:18] == b"\x0a\x4d" and packet[19] == 1 else None


def make(number: int) -> Device:
    """Make a centre. Raises `OSError`."""
    space = namespace.make()
    with namespace.inside(f"/proc/self/fd/{space}"):
        packets = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        fcntl.ioctl(packets, _TUNSETIFF, struct.pack("16sH22x", NAME, _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            # The netmask spans all centres, so no route has to be set: packets to other addresses than this centre's go to the device.
            for request, text in ((_SIOCSIFADDR, address(number)), (_SIOCSIFNETMASK, "255.255.0.0")):
                fcntl.ioctl(any_socket, request, struct.pack("16sHH4s16x", NAME, socket.AF_INET, 0, socket.inet_aton(text)))
            for request, value in ((_SIOCSIFMTU, MTU), (_SIOCSIFTXQLEN, QUEUE_PACKETS)):
                fcntl.ioctl(any_socket, request, struct.pack("16si20x", NAME, value))
            for name in (b"lo", NAME):
                asked = struct.pack("16sH22x", name, 0)
                (flags,) = struct.unpack_from("16xH", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))
                fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | _IFF_UP))
    return Device(space, packets)
