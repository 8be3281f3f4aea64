"""`[archive]`, and the lines between a worker and the process that seals segments. Needs nothing but msgspec."""

import msgspec

from ordering.settings import NotNegative


class ArchiveSettings(msgspec.Struct, frozen=True):
    """`[archive]`: the folder or URL that keeps segments (empty: none), and how often one is sealed."""

    url: str = ""
    every_s: NotNegative = 5


class Order(msgspec.Struct, frozen=True):
    """Seal the ordering records below `head`, which the worker has applied, and all contents. `key`: the key in force, hex."""

    head: int
    key: str
    leave_ms: int = 0
    """0: it is this worker's turn. Otherwise read the place's manifests first, and seal nothing if another worker sealed that recently."""


class Sealed(msgspec.Struct, frozen=True):
    """The answer to an order: the number of new segments and of their records, or the problem."""

    segments: int = 0
    records: int = 0
    left: bool = False
    """Nothing was sealed: another worker does it."""
    problem: str = ""
