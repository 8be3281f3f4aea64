"""Foreign views: views in workers' records that differ from our own history (R10). Pure.

A foreign view shows that the log lost records, or that a worker is wrong. Before the reader applies a record with a foreign view, it
compares its own history with the log (`joiner.recheck`). If a record is missing, the reader stops. If all are there, a reader that was
ready continues. But a reader that is still replaying becomes *suspected* and does not serve: another worker saw another history, and
answers may have been given from either one.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ordering.records import View

EXAMINED_MAX: Final = 4096
"""The number of views remembered as examined. A view that was forgotten is examined again."""


class Evidence(msgspec.Struct, frozen=True):
    """A foreign view in the record at the head, not examined yet."""

    offset: int
    """The offset of the ordering record that carries it."""
    view: View
    writer: str
    """The worker's name, empty when its incarnation is unknown here."""
    seen_here: int
    """The number of records that had taken effect for this reader at that offset."""


class Suspicions:
    """The suspicions that a reader's history is wrong, and the last point at which another worker's view agreed with it."""

    def __init__(self, agreed: int = 0, suspicions: Mapping[str, int] | None = None) -> None:
        self.agreed = agreed
        """The largest number of records at which the view of a worker with another name was the same as ours."""
        self.open: dict[str, int] = dict(suspicions or {})
        """Per worker name with a foreign view during our replay: the number of records that had taken effect here at that point.

        The index stores it: a reader that restarts later is still suspected.
        """
        self.live = False
        """True once this process has been ready. From then on a foreign view raises no suspicion if the log has all of our history."""
        self._examined: set[View] = set()

    def restore(self, agreed: int, suspicions: Iterable[tuple[str, int]], examined: Iterable[View], *, live: bool) -> None:
        """Replace the state by these suspicions and examined views."""
        self.agreed, self.open, self.live, self._examined = agreed, dict(suspicions), live, set(examined)

    def snapshot(self) -> tuple[int, tuple[tuple[str, int], ...], frozenset[View]]:
        """Returns (agreed, suspicions by worker name, views that were examined)."""
        return self.agreed, tuple(sorted(self.open.items())), frozenset(self._examined)

    def examined(self, view: View) -> None:
        """Remember that the log was compared because of this view, and still holds all of our history."""
        if len(self._examined) >= EXAMINED_MAX:
            self._examined.clear()
        self._examined.add(view)

    def is_examined(self, view: View) -> bool:
        """Returns True if this view has been examined."""
        return view in self._examined

    def foreign(self, writer: str, seen_here: int) -> None:
        """Record that a foreign view was examined and its record is applied now. If we are still replaying, suspect our history."""
        if not self.live:
            self.open[writer] = max(seen_here, self.open.get(writer, 0))

    def own(self, view: View, writer: str, reader: str) -> None:
        """Record that a worker's view is our own history. It ends earlier suspicions that other workers raised.

        A record with the reader's own name proves nothing: this incarnation or an earlier one wrote it from this index.
        """
        if writer == reader:
            return
        self.agreed = max(self.agreed, view.seen)
        self.open = {name: seen for name, seen in self.open.items() if name == writer or view.seen <= seen}

    def settle(self, seen: int) -> None:
        """Clear the suspicions up to `seen`: the owner confirms our history that far."""
        self.open = {name: at for name, at in self.open.items() if at > seen}

    def describe(self) -> str:
        """Returns the reason for the suspicion, for the operator; empty when there is none."""
        if not self.open:
            return ""
        names = ", ".join(sorted(repr(name) for name in self.open)[:10])
        return (
            f"while this worker replayed the log, {names} saw another history of it than the log has now: records may be lost. It becomes"
            " ready when a record of another worker shows this worker's history, or when the owner settles it."
            " See docs/runbook.md, 'A worker has seen another history'"
        )
