"""What the checkers of this room find, as values.

The room holds what a notary did against what the contract says, and shares no code with the notary: what it needs of the formats it
reads by itself, the slow and obvious way. A checker returns the list of all that it found, empty for an honest notary.

| file | holds |
|---|---|
| `history` | what clients were told against the decisions, and those against what was asked |
| `replay` | nothing yet: it says what a complete log decides, by brute force |
| `indexes` | workers' indexes against the replay, and against each other |
| `receipts` | receipts and checkpoints against the notary's key and the tree of the replay |
| `memory` | what a worker keeps in memory, and where it would read on, against what can still count |
| `judge`, `tree`, `records`, `requests` | the parts: precedence, leaves and roots, records with their signatures and history, payloads |
| `signed_log` | a log for the tests of the checkers, written without any code of the notary |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SHOWN_MAX = 400


class Kind(StrEnum):
    """What is wrong. Each checker reports one fault as one kind, and goes on with what it found, so that nothing follows from it."""

    # The decisions, by position.
    POSITION_GAP = "position-gap"  # the decision at this place has another position: one is missing, or came twice
    DECIDED_TWICE = "decided-twice"  # a transaction has two positions
    NEVER_ASKED = "never-asked"  # a transaction was decided that no client sent
    LOG_TIME_FELL = "log-time-fell"
    DOUBLE_SPEND = "double-spend"  # two committed transactions share an input
    NO_EARLIER_CAUSE = "no-earlier-cause"  # refused, and nothing before it, nor its time, is a cause
    WRONG_REASON = "wrong-reason"  # refused for another reason than the first that applies, or committed in spite of one
    WRONG_CONFLICTS = "wrong-conflicts"  # refused rightly, with another list of conflicts
    WRONG_OUTCOME = "wrong-outcome"  # outcome and reason do not fit together
    WRONG_CONSUMED = "wrong-consumed"  # the consumed states are not the inputs of the committed

    # What clients were told.
    WRONG_SHAPE = "wrong-shape"  # an answer does not decide the requests of its submission, in their order
    CONTRADICTION = "contradiction"  # two answers about one transaction
    OTHER_BYTES = "other-bytes"  # two answers about one transaction, equal but not to the byte
    LOST = "lost"  # what was acknowledged is not there
    CHANGED = "changed"  # what was acknowledged is there, and says something else
    AGAINST_REAL_TIME = "against-real-time"  # answered before another was sent, and has the higher position

    # The rows of an index, held against the replay.
    UNREADABLE = "unreadable"  # a row is none by its format
    WRONG_DECISION = "wrong-decision"
    WRONG_POSITION = "wrong-position"
    WRONG_STATE = "wrong-state"
    WRONG_TILE = "wrong-tile"
    AHEAD_OF_LOG = "ahead-of-log"  # it has decisions that the log does not give
    INDEXES_DIFFER = "indexes-differ"  # two workers have different rows

    # Receipts and checkpoints.
    BAD_RECEIPT = "bad-receipt"  # it is none by its format
    BAD_SIGNATURE = "bad-signature"  # no trusted key signed it, or one did not sign this
    OTHER_POSITION = "other-position"  # it proves another position
    BAD_PROOF = "bad-proof"  # its hashes do not lead from the decision to the root
    OTHER_TREE = "other-tree"  # its root is not that of the tree of the replay
    OTHER_CHECKPOINT = "other-checkpoint"  # two checkpoints of one size

    # The log's own evidence.
    FOREIGN_VIEW = "foreign-view"  # a worker's record has another history than the log: records were lost, or somebody is wrong

    # Memory and resuming.
    FORGOTTEN = "forgotten"  # a payload that may still count is not there, or would not be read again
    HOARDED = "hoarded"  # more is kept than may still count


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that is not as it should be: where, what is there, what should be."""

    kind: Kind
    place: str
    found: object
    wanted: object

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}: found {_shown(self.found)}, wanted {_shown(self.wanted)}"


def describe(violations: Sequence[Violation], most: int = 5) -> str:
    """The first few, a line each, and how many there are besides."""
    lines = [str(violation) for violation in violations[:most]]
    if len(violations) > most:
        lines.append(f"and {len(violations) - most} more")
    return "\n".join(lines)


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}... ({len(text)} characters)"
