"""The errors of this project, distinguished by what the caller may conclude.

Domain outcomes (a rejected transaction, a filled batch) are values, never exceptions. All else is one of these errors; the message names
what happened, the value and what to do. Library exceptions are mapped to these once, at the edge.
"""


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

    def __init__(self, what: str, retry_after_s: int = 2) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(what)


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


class Fatal(NotaryError):
    """Our view of durable state is uncertain or contradicted: the process must stop; a restart recovers, or fails with the reason."""


class Condemned(Fatal):
    """This worker's index is quarantined, known to be wrong (R9): it answers nothing more, and no restart repairs that."""


class OutOfRange(Fatal):
    """The log lacks an offset that it had before: records were deleted, or the broker is behind."""
