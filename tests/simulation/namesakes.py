"""Whether a worker that stopped because of a namesake had a reason, as far as the log tells (docs/rules.md, R5)."""

from collections.abc import Collection, Sequence

from ordering.log import Record
from tests.checkers.records import Fence, Register, ordering_record

LIVES_LOST_MAX = 3
LASTED_S = 60.0
READ_LATE_S = 45.0
"""A life begins and ends for its worker when it reads so. One that is longer than a minute by this much in the log lasted; one that is
shorter by as much did not."""


def lost_quickly(
    ordering: Sequence[Record],
    landed_s: Sequence[float],
    name: str,
    identity: bytes,
    *,
    lasted_s: float = LASTED_S + READ_LATE_S,
    known: Collection[int] | None = None,
) -> int:
    """How many lives of one process, whose nonces begin with `identity`, registrations of others have ended, since its last that lasted.

    With `known`, only what its worker surely counts: lives of these incarnations that no fence record may have ended first.
    """
    lost = 0
    seen: set[bytes] = set()
    own, began_s, ended_s = 0, 0.0, float("inf")  # the present life: its incarnation (0: another process's), and its time
    for record, now_s in zip(ordering, landed_s, strict=True):
        said = ordering_record(record.value)
        if isinstance(said, Fence) and said.incarnation == own:
            ended_s = min(ended_s, now_s)
        if not isinstance(said, Register) or said.nonce in seen:
            continue
        seen.add(said.nonce)
        if said.name != name:
            continue
        if own:
            if min(ended_s, now_s) - began_s > lasted_s:
                lost = 0
            elif known is None or (own in known and ended_s == float("inf")):
                lost += not said.nonce.startswith(identity)
        own, began_s, ended_s = len(seen) if said.nonce.startswith(identity) else 0, now_s, float("inf")
    return lost
