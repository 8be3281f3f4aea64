"""`NotVerified`: the error for every receipt, checkpoint, key or tile that fails verification."""

from typing import Final, Literal, TypeAlias

from ordering.errors import NotaryError

Reason: TypeAlias = Literal[
    "malformed-decision",
    "malformed-receipt",
    "malformed-checkpoint",
    "malformed-key",
    "wrong-position",
    "wrong-origin",
    "unknown-key",
    "bad-signature",
    "index-out-of-range",
    "proof-too-short",
    "proof-too-long",
    "wrong-root",
    "inconsistent",
    "missing-tile",
    "wrong-tile",
    "bad-endorsement",
    "malformed-snapshot",
    "malformed-segment",
]
"""The machine-readable cause; the message gives the same cause for people, with the values."""

_CHARACTERS_MAX: Final = 1000


class NotVerified(NotaryError):
    """A verification failed; `reason` is the machine-readable cause."""

    def __init__(self, reason: Reason, what: str) -> None:
        self.reason: Reason = reason
        self.what = printable(what)
        super().__init__(f"{reason}: {self.what}")


def printable(text: str) -> str:
    """Returns the text, truncated and escaped: it quotes untrusted input, and may go to a terminal."""
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:_CHARACTERS_MAX]])
