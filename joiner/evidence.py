"""Views that are not our own history: evidence that the log lost records, or that somebody is wrong (R10). Pure.

A foreign view never decides whether its record counts. It makes the reader compare its history with the log before it judges that record
(`joiner.look`). If a record is missing, the reader stops. If all are there, a reader that was ready goes on, and one that is still
replaying stays in doubt: the log shows that somebody knew another history, and the reader cannot know which of the two was answered from.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from ordering.records import View

EXAMINED_MAX: Final = 4096
"""The number of views that are remembered as looked into. A view that was forgotten is looked into again."""


class Evidence(msgspec.Struct, frozen=True):
    """A foreign view in the record at the head, which nobody here has looked into yet."""

    offset: int
    """The offset of the ordering record that carries it."""
    view: View
    writer: str
    """The worker's name, empty when its incarnation is unknown here."""
    seen_here: int
    """The number of records that had taken effect for the reader at that place."""


class Doubts:
    """The doubts of one reader, and where others last agreed with it."""

    def __init__(self, agreed: int = 0, doubts: Mapping[str, int] | None = None) -> None:
        self.agreed = agreed
        """The most records of which another incarnation's view was the same as ours."""
        self.open: dict[str, int] = dict(doubts or {})
        """Per worker name that had a foreign view while we replayed: how many records we had there. Kept in the index: a reader that
        restarts behind that place is as much in doubt as before."""
        self.live = False
        """Whether this process has been ready once: then a foreign view that the log does not confirm raises no doubt here."""
        self._examined: set[View] = set()

    def examined(self, view: View) -> None:
        """The log still holds all that we have, whatever this view says."""
        if len(self._examined) >= EXAMINED_MAX:
            self._examined.clear()
        self._examined.add(view)

    def is_examined(self, view: View) -> bool:
        """Whether this view has been looked into."""
        return view in self._examined

    def foreign(self, writer: str, seen_here: int) -> None:
        """A foreign view was looked into, and its record is judged now."""
        if not self.live:
            self.open[writer] = max(seen_here, self.open.get(writer, 0))

    def own(self, view: View, writer: str, reader: str) -> None:
        """A worker's view is our own history: it ends the doubts that other workers raised before it."""
        self.agreed = max(self.agreed, view.seen)
        if self.open and writer != reader:
            self.open = {name: seen for name, seen in self.open.items() if name == writer or view.seen <= seen}

    def settle(self, seen: int) -> None:
        """The owner says that our history up to `seen` stands."""
        self.open = {name: at for name, at in self.open.items() if at > seen}

    def describe(self) -> str:
        """Why this reader is in doubt, for the operator; empty when it is not."""
        if not self.open:
            return ""
        names = ", ".join(sorted(repr(name) for name in self.open)[:10])
        return (
            f"while this worker replayed the log, {names} knew another history of it than the log has now: records may be lost. It becomes"
            " ready when another worker is seen to have this worker's history, or when the owner settles it."
            " See docs/runbook.md, 'Somebody knew another history'"
        )
