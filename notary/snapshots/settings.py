"""`[snapshots]`. Needs only msgspec."""

import msgspec

from ordering.settings import NotNegative


class SnapshotSettings(msgspec.Struct, frozen=True):
    """`[snapshots]`: their folder or URL (empty: none), the interval between two (0: never), and the number to keep (0: all)."""

    url: str = ""
    every_s: NotNegative = 0
    keep: NotNegative = 7
