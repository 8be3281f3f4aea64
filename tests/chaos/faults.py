"""Faults drawn from a seed: what is done to whom, when, and for how long. Pure, so that a seed tells the same story every time."""

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
"""With another one beside them these could lose what was acknowledged, or prove nothing more than alone."""

LINES: Final = tuple(f"{a}{way}{b}" for a, b in ((1, 2), (1, 3), (2, 3)) for way in "-><")
"""`1-2` is both directions of the line between two centres, `1>2` and `1<2` are one each."""

AFTER_S_MAX, HOLD_S = 1.0, (0.2, 5.0)


@dataclass(frozen=True)
class Fault:
    """One fault and its end: the victim is well again, or on its way, when it is over."""

    kind: str
    victim: str
    after_s: float
    """From the beginning of its round."""
    hold_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.victim}, for {self.hold_s:.2f} s"


def rounds(seed: int, victims: Mapping[str, Sequence[str]]) -> Iterator[tuple[Fault, ...]]:
    """Rounds of one to three faults at a time, without end. `victims` has whom each kind may meet; nobody meets two at once.

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
