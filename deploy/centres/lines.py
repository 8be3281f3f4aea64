"""What happens to a packet between two centres: it waits for its delay, or is lost. Pure: the caller has the clock and the dice."""

import heapq
from dataclasses import dataclass, field


@dataclass
class Line:
    """One direction between two centres, and what it has seen."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Up to so much more, drawn for each packet."""
    loss: float = 0.0
    """The share of packets that vanish, 0 to 1."""
    cut: bool = False
    packets: int = 0
    bytes: int = 0
    """Packets and bytes delivered."""
    lost: int = 0
    """Packets that were not, by a cut or by chance."""
    due_last_s: float = field(default=float("-inf"), repr=False)


@dataclass
class Lines:
    """All lines, by (from, to), and the packets on their way, in the order in which they are due."""

    lines: dict[tuple[int, int], Line]
    _on_the_way: list[tuple[float, int, int, int, bytes]] = field(default_factory=list)
    _sent: int = 0

    def send(self, source: int, target: int, packet: bytes, now_s: float, dice: float) -> None:
        """A packet left its centre. `dice` is uniform in [0, 1): it tells whether this one is lost, and how much later it is."""
        line = self.lines.get((source, target))
        if line is None:
            return
        if line.cut or dice < line.loss:
            line.lost += 1
            return
        # What of the dice is left above the share of losses is uniform again. Never before the packet in front: a line is no shortcut.
        late = (dice - line.loss) / (1 - line.loss)
        line.due_last_s = max(line.due_last_s, now_s + line.delay_s + late * line.jitter_s)
        self._sent += 1
        heapq.heappush(self._on_the_way, (line.due_last_s, self._sent, source, target, packet))

    def due(self, now_s: float) -> list[tuple[int, bytes]]:
        """Take the packets that arrive now: (centre, packet)."""
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
        """When the next packet arrives; None when none is on its way."""
        return self._on_the_way[0][0] if self._on_the_way else None
