"""Records, and a log that keeps them in order: one ordering topic, some payload partitions. Kafka may lose the end of each."""

from typing import Any, NamedTuple

from tests.model.tree import digest

PARTITIONS = 2
OWNER = "owner"
COMMITTED, INPUT_CONFLICT, REFERENCE_CONFLICT, LATE = "committed", "input-conflict", "reference-conflict", "outside-time-window"


class View(NamedTuple):
    """The number of records that have taken effect, and the running hash over them (R10)."""

    seen: int
    history: bytes


class Request(NamedTuple):
    """A request of a party. Its id is the hash of all the rest."""

    inputs: tuple[int, ...]
    references: tuple[int, ...]
    until: int
    salt: int

    @property
    def id(self) -> str:
        return digest(*self).hex()[:12]


class Decision(NamedTuple):
    """A decision as it is answered: `conflicts` has (state, kind, tag of its consumer)."""

    position: int
    id: str
    time: int
    outcome: str
    conflicts: tuple[tuple[int, str, str], ...] = ()


class Item(NamedTuple):
    """One position: its decision with the states that it consumed, or the leaf's hash alone, or nothing (a lost leaf)."""

    decision: Decision | None = None
    inputs: tuple[int, ...] | None = ()
    hash: bytes = b""

    def leaf(self, position: int) -> bytes:
        """Returns the leaf's hash."""
        if self.decision is not None:
            return digest("decision", *self.decision)
        return self.hash or digest("lost", position)

    @property
    def is_lost(self) -> bool:
        return self.decision is None and not self.hash


class Record(NamedTuple):
    """An ordering record. `signer`: the notary's key, "owner", or "" for a forger."""

    kind: str
    body: tuple[Any, ...]
    signer: str
    view: View | None = None


class Content(NamedTuple):
    """A payload record: `kind` data, fill or seal. `hash`: of the data, or that the entry names."""

    batch: tuple[int, int]
    kind: str
    hash: bytes
    requests: tuple[Request, ...] = ()
    signer: str = ""


class Missing(Exception):
    """A reader needs a record that was trimmed."""


class Log:
    """Both topics. Trimmed records stay in `pay`, as in an archive; readers get them no more."""

    def __init__(self) -> None:
        self.order: list[tuple[int, Record]] = [(0, Record("genesis", (), OWNER))]
        self.pay: list[list[Content]] = [[] for _ in range(PARTITIONS)]
        self.start = [0] * PARTITIONS

    @property
    def ends(self) -> list[int]:
        """The number of records: of the ordering topic, then of each payload partition."""
        return [len(self.order), *map(len, self.pay)]

    def copy(self, ends: list[int]) -> "Log":
        """Returns a new log with the beginning of each topic-partition: a mirror, a restored archive."""
        log = Log()
        log.order = self.order[: ends[0]]
        log.pay = [pay[:end] for pay, end in zip(self.pay, ends[1:], strict=True)]
        return log
