"""The errors of this project, distinguished by what the caller may conclude.

Domain outcomes (a rejected transaction, a filled batch) are values, never exceptions. Everything else is one of these errors, whose message
names the event, the value and the remedy. Library exceptions are mapped to these errors once, at the edge.
"""

from enum import StrEnum
from typing import Final


class NotaryError(Exception):
    """The base class of every error that this project raises on purpose."""


class Malformed(NotaryError):
    """Input from outside that breaks the contract; `where` is the path to it, such as `requests[3].inputs[0]`."""

    def __init__(self, what: str, where: str = "") -> None:
        self.what = what
        self.where = where
        super().__init__(f"{where}: {what}" if where else what)


class NotReady(NotaryError):
    """Surely not applied: this worker, or the log behind it, cannot serve the request now. Retrying it is safe."""

    retry_after_s: Final = 2


class Overloaded(NotaryError):
    """Surely not applied: a bounded queue is full. Retrying is safe after `retry_after_s` seconds."""

    def __init__(self, what: str, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        self.ticket = b""
        super().__init__(what)


class OutcomeUnknown(NotaryError):
    """The request may or may not have been applied. Retrying with the same transaction ids is safe (R7)."""


class CorruptRecord(NotaryError):
    """Bytes of a log record or an index row that do not decode completely."""


class ConfigurationError(NotaryError):
    """Configuration that cannot work: a flag, a setting, a file, a topic. The message names it and the remedy."""


class FatalCode(StrEnum):
    """The fault of a `Fatal`: programs and tests match this code, and the message is for people."""

    ACCEPTOR_ENDED = "acceptor-ended"
    """An acceptor process ended before it served."""
    CONTENT_LOST = "content-lost"
    """The log had the content of an entry, and has lost it (R10)."""
    DISK_FULL = "disk-full"
    """The disk of the index, or of the embedded log, has no space left."""
    DUPLICATE_WORKER_NAME = "duplicate-worker-name"
    """Another process has this worker's name and keeps fencing it (R5)."""
    FORMAT_TOO_NEW = "format-too-new"
    """The log activates a format version that this software does not read."""
    HISTORY_DIFFERS = "history-differs"
    """Another worker, or the owner's `settle`, has another history than this index (R10)."""
    INDEX_AHEAD_OF_LOG = "index-ahead-of-log"
    """The log lacks a record, or has another one, at an offset that this index has read."""
    INDEX_BUSY = "index-busy"
    """The files of the index changed at each attempt to link them."""
    INDEX_DAMAGED = "index-damaged"
    """The index does not open, or has a row that cannot be read or does not fit the others."""
    INDEX_QUARANTINED = "index-quarantined"
    """The index is known to be wrong (R9)."""
    INDEX_SETTINGS_IGNORED = "index-settings-ignored"
    """RocksDB runs with other settings than the wanted ones."""
    INDEX_UNWRITABLE = "index-unwritable"
    """A write to the index failed."""
    KEY_MISSING = "key-missing"
    """This worker does not have the key in force in the log."""
    LOG_DAMAGED = "log-damaged"
    """The store of the embedded log does not open, or lacks a record."""
    LOG_UNWRITABLE = "log-unwritable"
    """A write to the embedded log failed."""
    NO_GENESIS = "no-genesis"
    """The ordering topic does not begin with a genesis record."""
    OPEN_FILES = "open-files"
    """The process, or its machine, has as many open files as it may have: the index does not open, or cannot be read."""
    PARTITIONS_DIFFER = "partitions-differ"
    """The payload topic has another number of partitions than the log says."""
    RETIRED = "retired"
    """The owner has retired this worker's incarnation."""
    SALVAGED = "salvaged"
    """A command that reads the ordering topic alone meets a salvage or trim: it must read both topics (R11)."""


class Fatal(NotaryError):
    """Our view of durable state is uncertain or contradicted: the process must stop; a restart recovers, or fails with the reason."""

    def __init__(self, code: FatalCode, what: str) -> None:
        self.code = code
        super().__init__(what)


class Quarantined(Fatal):
    """This worker's index is quarantined, known to be wrong (R9): it answers nothing more, and no restart repairs that."""

    def __init__(self, what: str) -> None:
        super().__init__(FatalCode.INDEX_QUARANTINED, what)


class OutOfRange(Fatal):
    """The log lacks an offset that it had before: records were deleted, or the broker is behind."""

    def __init__(self, what: str) -> None:
        super().__init__(FatalCode.INDEX_AHEAD_OF_LOG, what)


def error_text(problem: BaseException) -> str:
    """Returns an error's name and text for a message, without repeating the name: aiokafka's errors begin with theirs."""
    name, text = type(problem).__name__, str(problem)
    return text if text.startswith(name) else f"{name}: {text}" if text else name
