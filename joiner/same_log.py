"""Whether the log is still the one that this index was made from (R8, R9).

A log that ends before what was read, or begins after what is still needed, was cut, or is another one. One that was cut and has grown
again looks right from outside; there the last ordering record that was applied is another than before. That can happen while no reader is
open, so a reader that follows one that failed begins with that record (`driver.py`).

A single look may mislead. A client that knows of an election late, or a broker that does, asks or answers for a leader that is none any
more, and what comes back is older than what was read. So nothing is read and nothing is taken in from the first contradiction on, but
the worker stops only when it lasts.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from ordering.errors import Fatal, NotReady
from ordering.log import ORDERING, Bounds, Log

RUNBOOK: Final = "docs/runbook.md"
REREAD_S_MAX: Final = 20


class Trust:
    """What a worker thinks of its log: nothing yet, then well of it, until it contradicts. Times come in."""

    def __init__(self, contradiction_s: float) -> None:
        self._contradiction_s = contradiction_s
        self._since_s: float | None = None
        self._given = asyncio.Event()
        self.doubt = "the log has not been held against this worker's index yet"
        """Why the log is not trusted now; empty when it is."""

    def __bool__(self) -> bool:
        return self._given.is_set()

    async def wait(self) -> None:
        """Return when the log is trusted."""
        await self._given.wait()

    def agreed(self) -> None:
        """The log is the one that it was."""
        self._since_s, self.doubt = None, ""
        self._given.set()

    def interrupted(self) -> None:
        """The log could not be asked: what it says next counts as said for the first time."""
        self._since_s = None

    def contradicted(self, why: str, now_s: float) -> bool:
        """The log is not the one that it was; whether that is new. Raises `Fatal` when it has said so for the whole time."""
        self._given.clear()
        self.doubt = f"the log contradicts this worker's index, and the worker stops if that lasts {self._contradiction_s:g} s: {why}"
        if self._since_s is None:
            self._since_s = now_s
            return True
        if now_s - self._since_s >= self._contradiction_s:
            raise Fatal(why)
        return False


def contradiction(read_next: Mapping[int, int], bounds: Mapping[int, Bounds]) -> str:
    """How the log's bounds contradict what was read: it ends before that, or begins after what comes next. Empty when they do not."""
    for stream, bound in bounds.items():
        offset = read_next[stream]
        where = "the ordering topic" if stream == ORDERING else f"payload partition {stream}"
        if offset > bound.offset_end:
            return (
                f"the index is ahead of its log: it has read {where} up to offset {offset}, and the log ends at {bound.offset_end}."
                f" The log was cut or is another one: see {RUNBOOK}, 'The index is ahead of its log'"
            )
        if offset < bound.offset_first:
            return (
                f"the log lost records that this index needs: {where} begins at offset {bound.offset_first}, needed from {offset}."
                f" See {RUNBOOK}, 'Records are missing from the log'"
            )
    return ""


async def regrown(log_: Log, read_next: Mapping[int, int], offset_last: int, judged_digest: bytes | None) -> str:
    """How the log differs at the last ordering record applied; empty when that is there still. Raises what opening or polling raises."""
    if judged_digest is None or offset_last < 0:
        return ""
    reader = await log_.open_reader({**read_next, ORDERING: offset_last})
    try:
        reader.pause([stream for stream in read_next if stream != ORDERING])
        async with asyncio.timeout(REREAD_S_MAX):
            while not (records := [record for record in await reader.poll(1_000) if record.stream == ORDERING]):
                pass
    except TimeoutError:
        raise NotReady(f"the log did not give ordering record {offset_last} again within {REREAD_S_MAX} s") from None
    finally:
        await reader.close()
    return "" if records[0].digest() == judged_digest else another(offset_last)


def another(offset_last: int) -> str:
    """What is told when another ordering record stands where the last one applied was."""
    return (
        f"ordering record {offset_last} is not the one that this index has applied: the log was cut and has grown again, or is another"
        f" one. See {RUNBOOK}, 'The index is ahead of its log'"
    )
