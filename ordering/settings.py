"""The types of settings with their ranges, and the settings of the log (`[log]`). Pure.

A package declares its settings as structs of its own. `notary.config` composes them into sections and loads their values. The field has
the only default and the range. Times are in milliseconds, sizes in bytes. A field marked `Fixed` cannot be set by an operator: only tests
and simulations give it another value.
"""

from typing import Annotated, Final, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

INTEGER_MAX: Final = 1 << 40
PAYLOAD_PARTITIONS_DEFAULT: Final = 16
"""The payload partitions of a new log, unless its creator gives another number. `notary partitions` adds more later."""
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
NotNegative: TypeAlias = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Fixed: TypeAlias = Annotated[T, Meta(extra={"fixed": True})]


class Seconds:
    """Reads a millisecond field of a settings struct in seconds, the unit of monotonic clocks and timers."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __get__(self, settings: object, owner: type) -> float:
        return float(getattr(settings, self.field) / 1000)


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`[log]`: the kind of the log, and its place. Its owner, keys and payload partitions are in the log itself (R10)."""

    kind: Literal["embedded", "kafka"] = "embedded"
    directory: str = "log"
    bootstrap: str = ""
    topic_prefix: str = "notary"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password_file: str = ""
    append_timeout_ms: Positive = 20_000
    """The time after which an unacknowledged append has an unknown outcome; longer than a leader election takes."""
