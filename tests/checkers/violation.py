"""The findings of the checkers in this package, as values.

The package compares a notary's behaviour with the contract, and shares no code with the notary: it decodes the formats by itself, in the
slow and obvious way. A checker returns the list of all violations, empty for an honest notary.

| file | compares |
|---|---|
| `history` | the answers to clients with the decisions, and those with the requests |
| `replay` | nothing: it computes by brute force what a complete log decides |
| `indexes` | workers' indexes with the replay, and with each other |
| `receipts` | receipts and checkpoints with the notary's key and the tree of the replay |
| `memory` | the payloads that a worker buffers, and its offsets, with those that can still count |
| `precedence`, `tree`, `records`, `requests` | the parts: precedence; leaves and roots; records, their signatures and history; payloads |
| `signed_log` | a log for the tests of the checkers, written without any code of the notary |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SHOWN_MAX = 400


class Kind(StrEnum):
    """The kinds of violation. A checker reports one fault as one kind, and continues from what it found: one fault causes no others."""

    # The decisions, by position.
    POSITION_GAP = "position-gap"  # the decision at this place has another position: one is missing, or came twice
    DECIDED_TWICE = "decided-twice"  # a transaction has two positions
    NEVER_ASKED = "never-asked"  # a transaction was decided that no client sent
    LOG_TIME_FELL = "log-time-fell"
    DOUBLE_SPEND = "double-spend"  # two committed transactions share an input
    NO_EARLIER_CAUSE = "no-earlier-cause"  # rejected, though neither an earlier decision nor the log time is a cause
    WRONG_REASON = "wrong-reason"  # rejected for another reason than the first that applies, or committed in spite of one
    WRONG_CONFLICTS = "wrong-conflicts"  # rejected rightly, with another list of conflicts
    WRONG_OUTCOME = "wrong-outcome"  # outcome and reason do not fit together
    WRONG_CONSUMED = "wrong-consumed"  # the consumed states are not the inputs of the committed

    # The answers to clients.
    WRONG_SHAPE = "wrong-shape"  # an answer does not decide the requests of its submission, in their order
    CONTRADICTION = "contradiction"  # two answers about one transaction
    OTHER_BYTES = "other-bytes"  # two answers about one transaction, equal but not to the byte
    LOST = "lost"  # an acknowledged decision is missing
    CHANGED = "changed"  # an acknowledged decision was changed
    AGAINST_REAL_TIME = "against-real-time"  # answered before another was sent, and has the higher position

    # The rows of an index, compared with the replay.
    UNREADABLE = "unreadable"  # a row does not have the format
    WRONG_DECISION = "wrong-decision"
    WRONG_POSITION = "wrong-position"
    WRONG_STATE = "wrong-state"
    WRONG_TILE = "wrong-tile"
    AHEAD_OF_LOG = "ahead-of-log"  # it has decisions that the log does not give
    INDEXES_DIFFER = "indexes-differ"  # two workers have different rows

    # Receipts and checkpoints.
    BAD_RECEIPT = "bad-receipt"  # it does not have the format
    BAD_SIGNATURE = "bad-signature"  # no trusted key signed it, or one did not sign this
    OTHER_POSITION = "other-position"  # it proves another position
    BAD_PROOF = "bad-proof"  # its hashes do not lead from the decision to the root
    OTHER_TREE = "other-tree"  # its root is not that of the tree of the replay
    OTHER_CHECKPOINT = "other-checkpoint"  # two checkpoints of one size

    # The log's own evidence.
    FOREIGN_VIEW = "foreign-view"  # a worker's record has another history than the log: records were lost, or a worker is wrong

    # Memory and resuming.
    FORGOTTEN = "forgotten"  # a payload that may still count is missing, or would not be read again
    HOARDED = "hoarded"  # a payload is kept that can no longer count


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation: the place, the value found there, and the expected value."""

    kind: Kind
    place: str
    found: object
    wanted: object

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}: found {_shown(self.found)}, wanted {_shown(self.wanted)}"


def describe(violations: Sequence[Violation], most: int = 5) -> str:
    """Returns the first few violations, one per line, and the number of the others."""
    lines = [str(violation) for violation in violations[:most]]
    if len(violations) > most:
        lines.append(f"and {len(violations) - most} more")
    return "\n".join(lines)


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"
