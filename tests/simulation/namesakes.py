"""Whether a worker that stopped because of a namesake had a reason, as far as the log tells (docs/rules.md, R5)."""

from collections.abc import Collection, Sequence

from ordering.log import Record
from tests.checkers.records import Fence, Register, ordering_record

LIVES_LOST_MAX = 3
LASTED_S = 60.0
READ_LATE_S = 45.0
"""A life begins and ends for its worker when it reads so. One that is longer than a minute by this much in the log lasted."""


def lost_quickly(ordering: Sequence[Record], landed_s: Sequence[float], name: str, nonces: Collection[bytes]) -> int:
    """How many lives of one process (those that began with `nonces`) registrations of others have ended, since its last that lasted."""
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
            lasted = min(ended_s, now_s) - began_s > LASTED_S + READ_LATE_S
            lost = 0 if lasted else lost + (said.nonce not in nonces)
        own, began_s, ended_s = len(seen) if said.nonce in nonces else 0, now_s, float("inf")
    return lost
