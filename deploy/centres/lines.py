"""The lines between centres: each delays or loses packets. Pure: the caller passes the time and the random numbers."""

import heapq
from dataclasses import dataclass, field


@dataclass
class NetworkLine:
    """One direction between two centres: its settings and its counters."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """The most that is added to the delay, drawn for each packet."""
    loss: float = 0.0
    """The share of packets that are lost, 0 to 1."""
    cut: bool = False
    packets: int = 0
    bytes: int = 0
    """Packets and bytes delivered."""
    lost: int = 0
    """Packets not delivered, by a cut or by chance."""
    due_last_s: float = field(default=float("-inf"), repr=False)


@dataclass
class Lines:
    """All lines, by (from, to), and the packets in flight, in the order in which they are due."""

    lines: dict[tuple[int, int], NetworkLine]
    _on_the_way: list[tuple[float, int, int, int, bytes]] = field(default_factory=list)
    _sent: int = 0

    def send(self, source: int, target: int, packet: bytes, now_s: float, dice: float) -> None:
        """Accept a packet from its centre. `dice` is uniform in [0, 1): it decides whether the packet is lost, and its jitter."""
        line = self.lines.get((source, target))
        if line is None:
            return
        if line.cut or dice < line.loss:
            line.lost += 1
            return
        # Given that the packet is not lost, the rest of `dice` is uniform again. `max` keeps the order: no packet overtakes an earlier one.
        late = (dice - line.loss) / (1 - line.loss)
        line.due_last_s = max(line.due_last_s, now_s + line.delay_s + late * line.jitter_s)
        self._sent += 1
        heapq.heappush(self._on_the_way, (line.due_last_s, self._sent, source, target, packet))

    def due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Remove and return the packets that arrive by now: (centre, packet)."""
        arrived: list[tuple[int, bytes]] = []
        while self._on_the_way and self._on_the_way[0][0] <= now_s:
            _, _, source, target, packet = heapq.heappop(self._on_the_way)
            line = self.lines[source, target]
            if line.cut:
                line.lost += 1
                continue
            line.packets += 1
            line.bytes += len(packet)
            arrived.append((target, packet))
        return arrived

    @property
    def due_next_s(self) -> float | None:
        """The time at which the next packet arrives; None if none is in flight."""
        return self._on_the_way[0][0] if self._on_the_way else None
