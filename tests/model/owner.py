"""The operator's commands, as steps with a crash possible between any two: `salvage` and `trim`."""

from collections.abc import Generator, Iterable

from tests.model.log import OWNER, Content, Log, Record
from tests.model.plan import THE_LOG, Index, Plan, Receipt, Refused, plan
from tests.model.reader import Reader
from tests.model.tree import root

ATTEMPTS = 40
ITEMS_MAX = 3
ANOTHER_IS_SETTLED = "the owner has settled another history there"


class NoBase(AssertionError):
    """No index, snapshot or empty index can read this log."""


def base_of(log: Log, snapshots: Iterable[Reader], broken: frozenset[str]) -> Reader:
    """Returns a reader at the log's end, or at its first hole. A trimmed log needs a snapshot."""
    if not any(log.start):
        reader = Reader(broken)
    else:
        fit = [one for one in snapshots if all(to >= start for to, start in zip(one.read_to, log.start, strict=True))]
        if not fit:
            raise NoBase("the log is trimmed, and no snapshot continues from where it begins")
        reader = max(fit, key=lambda one: one.seen).persisted()
    reader.read(log)
    return reader


class Salvage:
    """One run of `notary salvage`. `steps` yields after every record that it appends; `done` is the plan that took effect."""

    def __init__(self, log: Log, snapshots: list[Reader], survivors: Iterable[Index | Receipt], key: str, broken: frozenset[str]) -> None:
        self.log, self.snapshots, self.survivors, self.key, self.broken = log, snapshots, list(survivors), key, broken
        self.done: Plan | None = None

    def _read(self) -> Reader:
        reader = base_of(self.log, self.snapshots, self.broken)
        if reader.stopped:
            raise Refused(reader.size, ANOTHER_IS_SETTLED, THE_LOG)
        return reader

    def steps(self, time: list[int]) -> Generator[str, None, None]:
        """Run it. Raises `Refused` before anything is written. `time` holds the broker's clock."""

        def append(kind: str, *body: object) -> str:
            record = Record(kind, body, OWNER) if kind == "key" else Record(kind, body, f"{OWNER} for {reader.key}", reader.view)
            self.log.order.append((time[0], record))
            return kind

        for _ in range(ATTEMPTS):
            reader = self._read()
            planned = plan(reader, self.survivors, self.broken)
            while reader.hole is not None:
                partition, batch, hash_ = reader.hole
                filled = "lost contents are filled" in self.broken
                signer = reader.key if filled else f"{OWNER} for {reader.key}"
                self.log.pay[partition].append(Content(batch, "fill" if filled else "seal", hash_, (), signer))
                yield "seal"
                reader = self._read()
            again = "a key for all attempts" in self.broken and reader.sealed == "open"
            if not again and "no key" not in self.broken:
                yield append("key", self.key, reader.key)
                reader = self._read()
                if reader.hole is not None or reader.key != self.key:
                    self.key += "'"  # another key took effect, so ours names the wrong one before it: it is written anew
                    continue
            yield append("begin", reader.size)
            reader = self._read()
            if (reader.sealed != "open" or reader.key != self.key or reader.pending) and not self.broken & {
                "no key",
                "a key closes nothing",
            }:
                self.key += "'"  # the log lost our key or `begin`, or somebody else began
                continue
            planned = plan(reader, self.survivors, self.broken)
            sent, first = 0, reader.size
            hashes = reader.hashes + [item.leaf(first + n) for n, item in enumerate(planned.items)]
            while sent < len(planned.items):
                yield append("items", first + sent, tuple(planned.items[sent : sent + ITEMS_MAX]))
                sent += ITEMS_MAX
                reader = self._read()
                if reader.sealed != "open" and "items count at once" not in self.broken:
                    break
            if reader.pending != planned.items and not self.broken & {"done from what the log has", "items count at once", "done unread"}:
                self.key += "'"  # a rival's items stand where ours were: our root is not theirs, and a reader without a tree believes it
                continue
            if "done from what the log has" in self.broken:
                hashes = reader.hashes + [item.leaf(reader.size + n) for n, item in enumerate(reader.pending)]
            yield append("done", len(hashes), root(hashes))
            took = reader.seen + 1
            reader = self._read()
            if not reader.sealed and not reader.hole and reader.size == len(hashes) and reader.seen >= took and reader.hashes == hashes:
                self.done = planned
                return
            self.key += "'"
        raise AssertionError("a salvage does not come to an end")


def trim(log: Log, snapshots: list[Reader], archived: list[int] | None, time: int, broken: frozenset[str]) -> bool:
    """Free payloads that neither of the two newest snapshots needs, if the archive covers both. Returns True if some were freed."""
    two = snapshots[-2:]
    if len(two) < 2:
        return False
    for one in two:
        needs = [one.offset, *one.joined_to]
        if "trimmed beyond the archive" not in broken and (archived is None or any(n > a for n, a in zip(needs, archived, strict=True))):
            return False
    older = min(two, key=lambda one: one.size)
    # Per partition: the one of the smaller position may have read further ahead somewhere.
    ends = [
        min(pair) for pair in zip(*[one.joined_to if "trimmed by what was joined" in broken else one.read_to for one in two], strict=True)
    ]
    if older.size == 0 or not any(end > start for end, start in zip(ends, log.start, strict=True)):
        return False
    base = base_of(log, snapshots, broken)
    log.order.append((time, Record("trim", (older.size, root(older.hashes)), f"{OWNER} for {base.key}", base.view)))
    log.start = [max(pair) for pair in zip(ends, log.start, strict=True)]
    return True
