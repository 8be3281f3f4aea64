"""The process between the centres: `python -P -m deploy.centres.forward CENTRES`.

It makes the centres, prints the paths of their namespaces (`{"networks": ["/proc/PID/fd/N", …]}`, the first is centre 1), and forwards
their packets until its stdin ends. Then it exits, and the devices vanish with it. It replies to each line on stdin with one line on stdout:

    line FROM TO delay_ms=20 jitter_ms=2 loss=0.01 cut=0     any of these, for one direction: ok
    counts                                                   {"1>2": {"packets": …, "bytes": …, "lost": …}, …}

It exits with 0 at the end of stdin, and with 2 and a reason on stderr if it cannot make the centres. Linux only.
"""

import itertools
import os
import random
import select
import sys
import time
from collections.abc import Sequence

import orjson

from deploy.centres.device import Device, make, number_of
from deploy.centres.lines import Lines, NetworkLine

PACKET_BYTES_MAX = 65_535
READ_AT_ONCE_MAX = 64
"""Packets read from one device in a turn, before the other devices and the packets that are due."""
CENTRES_MAX = 9

DONE, COULD_NOT = 0, 2


def main(arguments: Sequence[str]) -> int:
    """Make the centres, and forward packets until stdin ends; return the exit code."""
    count = int(arguments[0])
    if not 1 <= count <= CENTRES_MAX:
        print(f"{count} centres cannot be made: choose 1 to {CENTRES_MAX}", file=sys.stderr)
        return COULD_NOT
    try:
        devices = {number: make(number) for number in range(1, count + 1)}
    except (OSError, AttributeError) as problem:  # AttributeError: a system whose C library has no namespaces
        print(
            f"network namespaces and TUN devices cannot be made here: {problem}. That needs Linux, root (CAP_SYS_ADMIN and CAP_NET_ADMIN)"
            " and /dev/net/tun (`modprobe tun`)",
            file=sys.stderr,
        )
        return COULD_NOT
    networks = [f"/proc/{os.getpid()}/fd/{device.namespace}" for device in devices.values()]
    print(orjson.dumps({"networks": networks}).decode(), flush=True)
    forward(devices, random.Random(0))
    return DONE


def forward(devices: dict[int, Device], dice: random.Random) -> None:
    """Forward packets and execute the commands on stdin, until stdin ends."""
    lines = Lines({pair: NetworkLine() for pair in itertools.permutations(devices, 2)})
    numbers = {device.packets: number for number, device in devices.items()}
    commands, asked = sys.stdin.fileno(), b""
    watched = [commands, *numbers]
    while True:
        due_s = lines.due_next_s
        # Not epoll: its timeout has a resolution of 1 ms, too coarse for a line of 1 ms.
        readable, _, _ = select.select(watched, [], [], None if due_s is None else max(0.0, due_s - time.monotonic()))
        for descriptor in readable:
            if descriptor != commands:
                _take(descriptor, numbers[descriptor], lines, dice)
                continue
            read = os.read(commands, 65_536)
            if not read:
                return
            *texts, asked = (asked + read).split(b"\n")
            for command in texts:
                print(_obey(command.decode(), lines), flush=True)
        for number, packet in lines.due(time.monotonic()):
            try:
                os.write(devices[number].packets, packet)
            except OSError:  # the device's buffer is full, or the packet is malformed: a network loses such packets too
                continue


def _take(descriptor: int, source: int, lines: Lines, dice: random.Random) -> None:
    now_s = time.monotonic()
    for _ in range(READ_AT_ONCE_MAX):
        try:
            packet = os.read(descriptor, PACKET_BYTES_MAX)
        except BlockingIOError:
            return
        target = number_of(packet)
        if target is not None:
            lines.send(source, target, packet, now_s, dice.random())


def _obey(command: str, lines: Lines) -> str:
    verb, *words = command.split()
    try:
        if verb == "counts":
            counts = {
                f"{source}>{target}": {"packets": line.packets, "bytes": line.bytes, "lost": line.lost}
                for (source, target), line in lines.lines.items()
            }
            return orjson.dumps(counts).decode()
        if verb != "line":
            return f"the command {verb!r} is unknown: use `line` or `counts`"
        line = lines.lines[int(words[0]), int(words[1])]
        for word in words[2:]:
            name, _, value = word.partition("=")
            if name in ("delay_ms", "jitter_ms"):
                setattr(line, name.removesuffix("_ms") + "_s", float(value) / 1000)
            elif name == "loss" and 0 <= float(value) < 1:
                line.loss = float(value)
            elif name == "cut":
                line.cut = bool(int(value))
            else:
                return f"the setting {word!r} is unknown: use delay_ms, jitter_ms, loss (0 to less than 1) or cut (0, 1)"
    except (LookupError, ValueError) as problem:
        return f"{command!r} cannot be done: {problem!r}"
    return "ok"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
