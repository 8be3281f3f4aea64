"""Decides whether the log is the one from which this worker's index was made: only then does the worker serve (R10). Pure.

    suspended --a comparison of the log with the index finds no difference--> trusted
    trusted --an interruption, a foreign view, a contradiction--> suspended
    suspended --contradictions last for `contradiction_s`--> the worker stops

The driver compares, and reports each result here.
"""

from typing import Final

from joiner.evidence import Evidence
from ordering.errors import Fatal, FatalCode

NOT_COMPARED: Final = "the log has not been compared with this worker's index yet"
INTERRUPTED: Final = "reading was interrupted: the log is compared with this worker's index before anything more is applied or answered"
EXAMINED: Final = "a record shows another history: this worker's is compared with the log"


class LogTrust:
    """One worker's trust in the log that it reads. Times are seconds of one clock that never runs backwards."""

    def __init__(self, contradiction_s: float) -> None:
        """`contradiction_s`: the time for which contradictions must last, since a broker may lag behind for a moment."""
        self._contradiction_s = contradiction_s
        self.suspicion = NOT_COMPARED
        """The reason why the log is not trusted, for the operator; empty while it is."""
        self.refuted = False
        """True from a contradiction between the log and the index until a comparison finds them to agree."""
        self.examining: Evidence | None = None
        """The foreign view for which our history is compared with the log. Serving stays suspended until that comparison succeeds."""
        self._next_is_deleted = False
        """True if, at the last check of offsets, the log started after an offset to read next. A comparison does not change it."""
        self._contradicted_since_s: float | None = None
        self._contradicted_last_s = 0.0

    def suspend(self) -> None:
        """Suspend serving until the log has been compared again."""
        self.suspicion = self.suspicion or INTERRUPTED

    def examine(self, evidence: Evidence) -> None:
        """Suspend serving until our history was compared with the log because of this foreign view."""
        self.examining, self.suspicion = evidence, self.suspicion or EXAMINED

    def agreed(self) -> bool:
        """A comparison found no difference: trust the log, unless a foreign view must be examined. Returns True if it is trusted."""
        if self.examining is not None:
            return False
        self.suspicion, self.refuted = "", False
        if not self._next_is_deleted:
            self._contradicted_since_s = None
        return True

    def offsets_checked(self, *, next_is_deleted: bool) -> None:
        """The log returned its offsets; `next_is_deleted`: it starts after an offset to read next."""
        self._next_is_deleted = next_is_deleted

    def unreachable(self) -> None:
        """The log returned no offsets. A contradiction in its next reply counts as the first."""
        self._contradicted_since_s = None

    def contradicted(self, why: str, began_s: float, now_s: float) -> bool:
        """Suspend serving until the log agrees again. Raises `Fatal` once the contradiction has lasted for `contradiction_s`.

        `began_s`: the time when the comparison began. If that was long after the last contradiction, this is another one. Returns True for
        the first report of a contradiction.
        """
        limit_s = self._contradiction_s
        self.refuted = True
        self.suspicion = f"the log contradicts this worker's index, and the worker stops if that lasts {limit_s:g} s: {why}"
        last_s, self._contradicted_last_s = self._contradicted_last_s, now_s
        if self._contradicted_since_s is None or began_s - last_s > limit_s:
            self._contradicted_since_s = now_s
            return True
        if now_s - self._contradicted_since_s >= limit_s:
            raise Fatal(FatalCode.INDEX_AHEAD_OF_LOG, why)
        return False
