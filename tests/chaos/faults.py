"""Faults drawn from a seed: kind, victim, time and duration. Pure, so a seed always draws the same faults."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

KILL_WORKER, FREEZE_WORKER, RESTART_WORKER = "kill worker", "freeze worker", "restart worker"
KILL_BROKER, FREEZE_BROKER, RESTART_BROKER = "kill broker", "freeze broker", "restart broker"
KILL_ALL_BROKERS, WIPE_BROKER, MOVE_LEADER = "kill all brokers, begin with", "wipe broker", "move the ordering leader to broker"
CUT_OFF, CUT_OUTGOING, CUT_INCOMING = "cut off centre", "cut off what leaves centre", "cut off what goes to centre"
CUT_LINE, FAR_AWAY, LOSSY = "cut the line", "ten times the delay", "lose 5 % of the packets"

ON_WORKERS: Final = (KILL_WORKER, FREEZE_WORKER, RESTART_WORKER)
ON_BROKERS: Final = (KILL_BROKER, FREEZE_BROKER, RESTART_BROKER, MOVE_LEADER)
ON_CENTRES: Final = (CUT_OFF, CUT_OUTGOING, CUT_INCOMING)
ALONE: Final = (KILL_ALL_BROKERS, WIPE_BROKER)
"""Faults that strike alone: next to another one they could lose acknowledged records, or would prove no more."""

LINES: Final = tuple(f"{a}{way}{b}" for a, b in ((1, 2), (1, 3), (2, 3)) for way in "-><")
"""`1-2` is both directions of the line between two centres, `1>2` and `1<2` are one direction each."""

AFTER_S_MAX, HOLD_S = 1.0, (0.2, 5.0)


@dataclass(frozen=True)
class Fault:
    """One fault and its end: when it is over the victim is restored, or recovering."""

    kind: str
    victim: str
    after_s: float
    """Seconds since the start of its round."""
    hold_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.victim}, for {self.hold_s:.2f} s"


def rounds(seed: int, victims: Mapping[str, Sequence[str]]) -> Iterator[tuple[Fault, ...]]:
    """Yields rounds of one to three faults, without end. `victims` has the victims of each kind; none meets two faults at once.

    Kinds come in an order that is shuffled again and again, so that a long run meets all of them about equally often.
    """
    draw = random.Random(seed)
    kinds: list[str] = []
    while True:
        faults: list[Fault] = []
        met: set[str] = set()
        wanted = draw.choice((1, 1, 2, 3))
        while len(faults) < wanted:
            if not kinds:
                kinds = sorted(victims)
                draw.shuffle(kinds)
            if faults and (kinds[-1] in ALONE or faults[0].kind in ALONE):
                break
            kind = kinds.pop()
            left = [victim for victim in victims[kind] if victim not in met]
            if not left:
                break
            victim = draw.choice(left)
            met.add(victim)
            faults.append(Fault(kind, victim, draw.uniform(0, AFTER_S_MAX), draw.uniform(*HOLD_S)))
        yield tuple(faults)
