"""Compares two joiners attribute by attribute, so that nothing of a joiner's state can be left out of its snapshot."""

from collections.abc import Iterator
from typing import Any

from joiner import Buffer, Incarnations, Joiner
from joiner.applied import Applied
from joiner.due import DueProposals
from joiner.evidence import Suspicions
from joiner.history import History
from joiner.payloads import Payloads
from joiner.queued import OrderingQueue, Queued
from ordering.errors import CorruptRecord

PARTS = (Joiner, Applied, Buffer, Payloads, DueProposals, Incarnations, History, OrderingQueue, Suspicions)


def differences(one: Joiner, other: Joiner) -> list[str]:
    """Returns the paths of the attributes that differ.

    Prepared work is no state, nor is the reader's tree, with which a joiner is made.
    """
    return [path for path in _differences(one, other, "joiner") if path not in ("joiner.applied.prepared", "joiner.applied._tree")]


def _differences(one: Any, other: Any, path: str) -> Iterator[str]:
    if isinstance(one, PARTS):
        mine, others = vars(one), vars(other)
        if isinstance(one, Joiner):  # it has some members of `applied` under the same names
            mine = {name: part for name, part in mine.items() if part is not getattr(one.applied, name, None)}
            others = {name: part for name, part in others.items() if part is not getattr(other.applied, name, None)}
        yield from [f"{path}.{name}" for name in sorted(mine.keys() ^ others.keys())]
        for name in sorted(mine.keys() & others.keys()):
            yield from _differences(mine[name], others[name], f"{path}.{name}")
    elif path == "joiner._queue._records":
        if [_plain(queued) for queued in one] != [_plain(queued) for queued in other]:
            yield path
    elif path == "joiner.applied.payloads.buffer._by_incarnation":
        # A heap returns its elements in order in any layout.
        if {key: sorted(heap) for key, heap in one.items()} != {key: sorted(heap) for key, heap in other.items()}:
            yield path
    elif type(one) is not type(other) or one != other:
        yield path


def _plain(queued: Queued) -> list[object]:
    fields = [getattr(queued, name) for name in queued.__struct_fields__ if name != "has_content"]  # it only saves work
    # Two errors are never equal, and what does not decode is decoded again at the head.
    return ["corrupt" if isinstance(field, CorruptRecord) else field for field in fields]


def restored(joiner: Joiner, other: Joiner) -> list[str]:
    """Restore `other` to the state of `joiner`; returns the differences that remain. Both are made with the same limits and name."""
    other.restore(joiner.snapshot())
    found = differences(joiner, other)
    if joiner.hole is not None and (any(each._queue.head is None or each.hole is not each._queue.head.record for each in (joiner, other))):
        found.append("the hole is not the record at the head")
    return found
