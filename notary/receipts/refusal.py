"""`NotVerified`: why something that was checked is not believed."""

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
]
"""One word for programs; the message says the same to people, with the values."""


_CHARACTERS_MAX: Final = 1000


class NotVerified(NotaryError):
    """What was given does not prove what it should; `reason` says in one word why."""

    def __init__(self, reason: Reason, what: str) -> None:
        self.reason: Reason = reason
        # Much of it is quoted from whoever made what was checked, and goes to a terminal.
        self.what = "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in what[:_CHARACTERS_MAX]])
        super().__init__(f"{reason}: {self.what}")
