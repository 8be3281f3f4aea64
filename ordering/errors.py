"""What can go wrong, told apart by what the caller may conclude from it.

Domain outcomes (a rejected transaction, a filled batch) are values, never exceptions. These are the rest; a message says what
happened, which value it met and what to do. Library exceptions are mapped to these once, at the edge.
"""


class NotaryError(Exception):
    """The root of every error that this project raises on purpose."""


class Malformed(NotaryError):
    """Input from outside that breaks the contract; `where` names the place in it, such as `requests[3].inputs[0]`."""

    def __init__(self, what: str, where: str = "") -> None:
        self.what = what
        self.where = where
        super().__init__(f"{where}: {what}" if where else what)


class NotReady(NotaryError):
    """Surely not applied: this worker, or the log behind it, cannot take it now. The same again is safe."""

    def __init__(self, what: str, retry_after_s: int = 2) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(what)


class Overloaded(NotaryError):
    """Surely not applied: a bounded queue is full. The same again is safe after `retry_after_s` seconds."""

    def __init__(self, what: str, retry_after_s: int = 1) -> None:
        self.retry_after_s = retry_after_s
        self.ticket = b""
        super().__init__(what)


class OutcomeUnknown(NotaryError):
    """Applied or not, nobody here can tell. The same transaction ids again are safe (R7)."""


class CorruptRecord(NotaryError):
    """Bytes of a log record or an index row that do not decode to their last byte."""


class ConfigurationError(NotaryError):
    """What the operator gave cannot work: a flag, a setting, a file, a topic. The message says which, and what to do."""


class Fatal(NotaryError):
    """What has become durable is uncertain, or contradicts what we hold: the process must stop, and a restart recovers or refuses."""


class Condemned(Fatal):
    """What this worker made of the log is known to be wrong (R9): it says nothing more, and no restart makes that right."""


class OutOfRange(Fatal):
    """The log does not have an offset that it had: records are gone, or a broker that was asked is behind."""
