"""A check by the log alone: did a worker that stopped because of a duplicate worker name have a reason (docs/rules.md, R5)?"""

from collections.abc import Collection, Sequence

from tests.checkers.records import Fence, Ordering, Register, Retire

INCARNATIONS_LOST_MAX = 3
LASTED_S = 60.0
READ_LATE_S = 45.0
"""The tolerance in seconds for late reads.

For its worker an incarnation begins and ends when it reads the records. So an incarnation lasted if it is longer than a minute by this much
in the log; it did not if it is shorter by this much.
"""


def lost_quickly(
    effects: Sequence[tuple[float, Ordering]],
    name: str,
    identity: bytes,
    *,
    lasted_s: float = LASTED_S + READ_LATE_S,
    known: Collection[int] | None = None,
) -> int:
    """Returns the number of incarnations of one process that others' registrations have ended, since its last one that lasted.

    `effects`: the records that took effect, and their times. The nonces of its incarnations begin with `identity`. With `known`, only those
    count that its worker surely counts: these incarnations, unless a fence record may have ended them first.
    """
    lost = registered = 0
    own, began_s, ended_s = 0, 0.0, float("inf")  # the present incarnation (0: another process's), and its period
    for now_s, record in effects:
        if isinstance(record, Fence | Retire) and record.incarnation == own:
            ended_s = min(ended_s, now_s)
        if not isinstance(record, Register):
            continue
        registered += 1
        if record.name != name:
            continue
        if own:
            if min(ended_s, now_s) - began_s > lasted_s:
                lost = 0
            elif known is None or (own in known and ended_s == float("inf")):
                lost += not record.nonce.startswith(identity)
        own, began_s, ended_s = registered if record.nonce.startswith(identity) else 0, now_s, float("inf")
    return lost
