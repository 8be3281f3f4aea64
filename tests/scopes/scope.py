"""A scope: the incarnations of a small model, the batches that each sends, the number of faults; and the records that result.

A record of a scope is a `Label`, identified by its number. So few records can be written to the log, and a log is tuples of numbers.
"""

from functools import cache, cached_property
from hashlib import sha256

import msgspec

from joiner import JoinerLimits
from ordering.log import ORDERING, Record
from ordering.records import Entry, Fence, OrderingRecord, Register, batch_key
from ordering.signatures import sign_fill, sign_record
from tests.joiner.history import KEY, History, nonce, requests, value

PARTITIONS = 2
TOPIC_PARTITIONS = tuple(range(ORDERING, PARTITIONS))
"""In all tuples by topic-partition the ordering topic comes first: topic-partition s has index s + 1."""

_GENESIS = History(PARTITIONS)
"""The first record of the log, which every reader has read, and its id.

Every record says that its writer has seen that record alone. That older view is every reader's own history (R10), so no reader suspects a
loss.
"""

_T0_MS, _STEP_MS, _SENT_STEP_MS = 1_000_000, 30_000, 5_000


def genesis() -> Record:
    """Returns the genesis record, which precedes all records of a scope."""
    return _GENESIS.genesis


class Incarnation(msgspec.Struct, frozen=True):
    """One incarnation (`Incarnation`): the worker name that it registers, and the payload partition of each of its batches."""

    name: str
    partitions: tuple[int, ...]


class Label(msgspec.Struct, frozen=True):
    """One record that may be written: register | entry | fence to the ordering topic, payload | fill to a partition."""

    kind: str
    incarnation: int
    number: int  # the sequence; of a fence the last one counted
    partition: int
    named: int = 0  # the payload partition that an entry names

    def __str__(self) -> str:
        match self.kind:
            case "register":
                return f"register of incarnation {self.incarnation}"
            case "fence":
                return f"fence({self.incarnation}, {self.number})"
            case "entry":
                return f"entry ({self.incarnation}, {self.number}) for partition {self.named}"
        return f"{self.kind} ({self.incarnation}, {self.number})"


@cache
def ids_of(incarnation: int, sequence: int) -> tuple[bytes, ...]:
    """Returns the transaction ids of that batch."""
    return tuple([request.transaction_id for request in requests(f"{incarnation}.{sequence}")])


@cache
def _value_of(incarnation: int, sequence: int) -> bytes:
    return value(f"{incarnation}.{sequence}")


@cache
def hash_of(incarnation: int, sequence: int) -> bytes:
    """Returns the SHA-256 of that batch's payload, which its entry names."""
    return sha256(_value_of(incarnation, sequence)).digest()


@cache
def _signed(record: OrderingRecord) -> bytes:
    return sign_record(record, _GENESIS.log_id, KEY)


@cache
def _fill_of(incarnation: int, sequence: int, partition: int) -> bytes:
    return sign_fill(_GENESIS.log_id, partition, batch_key(incarnation, sequence), hash_of(incarnation, sequence), KEY)


class Scope(msgspec.Struct, frozen=True, dict=True):
    """A small model: the incarnations and their batches, and the number of each fault that may happen, at any moment and to any of them."""

    name: str
    incarnations: tuple[Incarnation, ...]
    crashes: int = 0  # incarnations that end with sends in flight: each of these still arrives, or never does
    stragglers: bool = True  # whether these sends may still arrive after a reader has seen that they are missing
    restarts: int = 0  # of readers, which resume from their persisted state
    lost: int = 0  # sends, and fills in flight, that never arrive
    repeats: int = 0  # records that the log holds and that are appended once more
    fills: int = 0  # by a peer: of any batch, wherever the readers of the scope are
    ticks: int = 0  # times that a hole_timeout passes for a reader while more can happen; otherwise it passes anyway
    fences: int = 0  # by a peer that has read any part of the log
    readers: int = 1
    portion_max: int = 1  # records that a reader may pass to one step
    limits: JoinerLimits = JoinerLimits(fence_bytes_min=0)  # fences are proposed although memory is free
    large: bool = False

    @cached_property
    def rereads(self) -> bool:
        """True if memory is so small that readers drop payloads and read them again."""
        return self.limits.buffer_bytes_max < JoinerLimits().buffer_bytes_max

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """All records that may be written."""
        found = []
        for incarnation, sends in enumerate(self.incarnations, 1):
            found.append(Label("register", incarnation, 0, ORDERING))
            found.append(Label("fence", incarnation, 0, ORDERING))
            for sequence, partition in enumerate(sends.partitions, 1):
                found.append(Label("entry", incarnation, sequence, ORDERING, partition))
                found.append(Label("payload", incarnation, sequence, partition))
                found.append(Label("fill", incarnation, sequence, partition))
                found.append(Label("fence", incarnation, sequence, ORDERING))
        return tuple(found)

    @cached_property
    def numbers(self) -> dict[tuple[str, int, int], int]:
        """The number of each label, by (kind, incarnation, sequence)."""
        return {(label.kind, label.incarnation, label.number): at for at, label in enumerate(self.labels)}

    @cached_property
    def sends(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """By incarnation and topic-partition, the labels sent there: the appends of one writer to one topic-partition keep their order."""
        kinds = ("register", "entry", "payload")
        return tuple(
            [
                tuple(
                    [
                        tuple(
                            [n for n, x in enumerate(self.labels) if x.incarnation == incarnation and x.partition == s and x.kind in kinds]
                        )
                        for s in TOPIC_PARTITIONS
                    ]
                )
                for incarnation in range(1, len(self.incarnations) + 1)
            ]
        )

    @cached_property
    def partition_fills(self) -> tuple[tuple[int, ...], ...]:
        """By partition, the labels of its fills."""
        return tuple([tuple([n for n, x in enumerate(self.labels) if (x.kind, x.partition) == ("fill", p)]) for p in range(PARTITIONS)])

    def append_time_ms(self, number: int) -> int:
        """Returns the record's time by the log's clock.

        It depends on the record, not on its offset, so that it adds no states; it still runs backwards at times.
        """
        label = self.labels[number]
        if label.kind != "entry":
            return _T0_MS + label.incarnation
        return _T0_MS + _STEP_MS * (label.number if label.incarnation % 2 else 4 - label.number)

    def sent_at_ms(self, number: int) -> int:
        """Returns the record's time by the sender's clock: some append times are over a minute ahead of it and are limited (R6)."""
        return _T0_MS + _SENT_STEP_MS * self.labels[number].number

    def record(self, number: int, offset: int) -> Record:
        """Returns that label as a record at that offset of its topic-partition."""
        label, at_ms = self.labels[number], self.append_time_ms(number)
        match label.kind:
            case "register":
                data = _signed(
                    Register(nonce(str(label.incarnation)), _GENESIS.view, 1, self.incarnations[label.incarnation - 1].name, "0")
                )
            case "fence":
                data = _signed(Fence(1, _GENESIS.view, label.incarnation, label.number))
            case "entry":
                name = label.incarnation, label.number
                data = _signed(Entry(*name, _GENESIS.view, self.sent_at_ms(number), label.named, hash_of(*name), ids_of(*name)))
            case _:
                name = label.incarnation, label.number
                content = _value_of(*name) if label.kind == "payload" else _fill_of(*name, label.partition)
                return Record(label.partition, offset, at_ms, batch_key(label.incarnation, label.number), content)
        return Record(ORDERING, offset, at_ms, None, data)
