"""`[archive]`, and the messages between a worker and the process that seals segments. Needs only msgspec."""

from typing import Final

import msgspec

from ordering.settings import NotNegative

ANSWER_CHARS_MAX: Final = 1_000
"""The limit for a text of an answer. The store and its errors are not trusted, and the worker reads a line of at most 64 KiB."""


class ArchiveSettings(msgspec.Struct, frozen=True):
    """`[archive]`: the folder or URL of the segments (empty: none), and the interval between two."""

    url: str = ""
    every_s: NotNegative = 5


class SealCommand(msgspec.Struct, frozen=True):
    """A command to seal all contents, and the ordering records below `head`, which the worker has applied. `key`: the key in force, hex."""

    head: int
    key: str
    leave_ms: int = 0
    """0 on this worker's turn. Else the process reads the manifests before this command, and seals nothing if another worker sealed within
    this time."""
    payload_partitions: int = 0
    """The number that the records below `head` declare: the owner may add some while the process runs."""


class Sealed(msgspec.Struct, frozen=True):
    """The answer to a command: the number of new segments and of their records, or the problem."""

    segments: int = 0
    records: int = 0
    skipped_turn: bool = False
    """True if nothing was sealed, since another worker is the writer."""
    problem: str = ""
    goes_on: bool = False
    """True if the process takes further commands after this problem: it has read the manifests, which may take minutes."""
    skipped: str = ""
    """A sentence about manifests in the store that were skipped for the first time."""
    gap: str = ""
    """A sentence about records that the log no longer has, and that no segment has."""
