"""Whether a worker that stopped because of a namesake had a reason, as far as the log tells (docs/rules.md, R5)."""

from collections.abc import Collection, Sequence

from tests.checkers.records import Fence, Ordering, Register, Retire

LIVES_LOST_MAX = 3
LASTED_S = 60.0
READ_LATE_S = 45.0
"""A life begins and ends for its worker when it reads so. One that is longer than a minute by this much in the log lasted; one that is
shorter by as much did not."""


def lost_quickly(
    effects: Sequence[tuple[float, Ordering]],
    name: str,
    identity: bytes,
    *,
    lasted_s: float = LASTED_S + READ_LATE_S,
    known: Collection[int] | None = None,
) -> int:
    """The number of lives of one process that registrations of others have ended, since its last that lasted.

    `effects`: the records that took effect, and when. The nonces of its lives begin with `identity`. With `known`, only what its worker
    surely counts: lives of these incarnations that no fence record may have ended first.
    """
    lost = registered = 0
    own, began_s, ended_s = 0, 0.0, float("inf")  # the present life: its incarnation (0: another process's), and its time
    for now_s, said in effects:
        if isinstance(said, Fence | Retire) and said.incarnation == own:
            ended_s = min(ended_s, now_s)
        if not isinstance(said, Register):
            continue
        registered += 1
        if said.name != name:
            continue
        if own:
            if min(ended_s, now_s) - began_s > lasted_s:
                lost = 0
            elif known is None or (own in known and ended_s == float("inf")):
                lost += not said.nonce.startswith(identity)
        own, began_s, ended_s = registered if said.nonce.startswith(identity) else 0, now_s, float("inf")
    return lost
