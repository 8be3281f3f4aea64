"""Logs of signed requests, written without a worker: genesis, signatures, views, and the records of honest workers."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from ordering.log import ORDERING, Record
from payload import decode_submission, encode_batch
from tests.checkers.history import Submission
from tests.checkers.records import View
from tests.checkers.replay import Replayed
from tests.checkers.signed_log import NOTARY, SignedLog
from tests.clients.party import Party
from tests.spark.archived import Ends, ends_of

PARTITIONS = 3
PARTY = Party(NOTARY)
Append = Callable[[], Record]


class Writer:
    """A writer of a log of signed requests. Its views are those of a writer that has read everything."""

    def __init__(self) -> None:
        self.log = SignedLog(PARTITIONS)
        self.party = PARTY
        self.sequences: dict[int, int] = {}

    @property
    def replayed(self) -> Replayed:
        return self.log.replayed()

    @property
    def ends(self) -> Ends:
        return ends_of(self.log.by_partition)

    @property
    def last(self) -> Record:
        """Returns the last ordering record."""
        return self.log.by_partition[ORDERING][-1]

    def append(
        self,
        incarnation: int,
        submissions: list[Submission],
        partition: int = 0,
        *,
        content: bytes | None = None,
        fill: bool = False,
        ids: list[str] | None = None,
    ) -> Record:
        """Append the next batch of an incarnation, its payload first; returns the entry.

        `content` replaces the submissions; `fill` appends a fill before the payload; `ids` replace the content's.
        """
        value = self.value(submissions) if content is None else content
        sequence = self.sequence(incarnation)
        if fill:
            self.fill(incarnation, sequence, value, partition)
        self.log.payload(incarnation, sequence, partition=partition, value=value)
        asked = [id_ for each in submissions for id_ in each.ids] if ids is None else ids
        return self.log.entry(incarnation, sequence, partition=partition, at=self._now, value=value, ids=asked)

    def batch(self, incarnation: int, partition: int, *requests: dict[str, Any], party: Party | None = None) -> Record:
        """Append the next batch of an incarnation, with one submission; returns the entry."""
        return self.append(incarnation, [(party or self.party).submission(*requests)], partition)

    def send(self, incarnation: int, partition: int, *requests: dict[str, Any], view: View | None = None) -> tuple[Append, Append, Append]:
        """Returns functions that append entry, payload and fill of an incarnation's next batch, by default with the view at that time."""
        sent = self.party.submission(*requests)
        value, sequence, at = self.value([sent]), self.sequence(incarnation), self._now
        return (
            lambda: self.log.entry(incarnation, sequence, partition=partition, sent_at=at, value=value, ids=sent.ids, view=view),
            lambda: self.log.payload(incarnation, sequence, partition=partition, value=value),
            lambda: self.fill(incarnation, sequence, value, partition),
        )

    def fill(self, incarnation: int, sequence: int, value: bytes, partition: int) -> Record:
        """Append a fill for the batch whose entry names that payload."""
        fill = self.log.fill_value(incarnation, sequence, value, partition)
        return self.log.payload(incarnation, sequence, partition=partition, value=fill)

    def checkpoint(self, incarnation: int, size: int | None = None, root: bytes | None = None) -> Record:
        """Append a checkpoint of the complete log so far, or of that size, with the right root or another."""
        replayed = self.replayed
        size = len(replayed.decisions) if size is None else size
        return self.log.checkpoint(incarnation, size, replayed.root(size) if root is None else root)

    def sequence(self, incarnation: int) -> int:
        """Returns the next sequence of the incarnation."""
        self.sequences[incarnation] = self.sequences.get(incarnation, 0) + 1
        return self.sequences[incarnation]

    def value(self, submissions: list[Submission]) -> bytes:
        """Returns the payload of these submissions."""
        return encode_batch([decode_submission(each.body, NOTARY).encoded for each in submissions])

    @property
    def _now(self) -> int:
        return self.last.append_time_ms


def nonce(text: str) -> bytes:
    """Returns the nonce for that name, as `SignedLog` makes it."""
    return sha256(text.encode()).digest()[:16]
