"""A check of each step of one process: after an interruption it applies and answers nothing before it has checked the log (R10).

- Records that an interrupted reader returned are not applied, nor are records that were read before the process was suspended.
- A record that takes effect is in the log on which the process's reader was opened. A record that was lost before that is never applied,
  however it was kept.
- While a topic-partition is paused because so much of it is buffered, nothing is applied that it lost more than two seconds ago.
- A process that was suspended, or that read another record in the place of one that took effect, answers nothing before it has checked
  the log.
"""

from collections.abc import Iterator, Sequence

from joiner import Joiner, Ready
from joiner.history import NO_CONTENT, Effect, fingerprint_of
from ordering.log import ORDERING, Record
from tests.simulation.cluster import Cluster, SimulatedReader

INTERRUPTED_AFTER_S = 2.0
"""A process that did not run for longer than this must notice it (docs/rules.md, R10)."""


class LogChecks:
    """One process's checks of the log. `paused_s`: the times at which it was paused and resumed, alternating."""

    def __init__(self, cluster: Cluster, paused_s: Sequence[float]) -> None:
        self._cluster = cluster
        self._paused_s = paused_s
        self._places: dict[tuple[int, int], bytes] | None = None
        """The fingerprints of all records that took effect, by topic-partition and offset."""
        self._interrupted: SimulatedReader | None = None
        self._contradicted = ""
        self._read_s: dict[int, float] = {}
        """The time, by topic-partition, at which the reader was last asked for its records, whether it had any or not."""

    def polled(self, reader: SimulatedReader, joiner: Joiner, records: Sequence[Record]) -> None:
        """Note the records that this reader is about to return."""
        if reader.interruptions:
            self._interrupted = reader
        for partition in self._cluster.by_partition:
            if not reader.is_paused(partition):
                self._read_s[partition] = self._cluster.loop.time()
        if self._places is None:
            self._places = {}
            self._keep(joiner.history.since(0))
        for record in records if self._cluster.damages else ():
            known = self._places.get((record.partition, record.offset))
            if known is not None and known != fingerprint_of(record):
                self._contradicted = f"record {record.offset} of partition {record.partition} is another"

    def applied(self, reader: SimulatedReader, ready: Ready) -> str:
        """Check a step that was applied to the index; returns the violation, empty for none."""
        self._keep(ready.effects)
        if not ready.advanced:
            return ""
        if reader is self._interrupted:
            return "it applies what its reader returned, which was interrupted"
        if self._did_not_run(reader):
            return "it applies what it read before it was paused"
        for effect in ready.effects:
            for place in _places(effect):
                if self._lost_unseen(*place):
                    return f"it applies record {place[1]} of partition {place[0]}, which was lost while it did not read that"
            for partition, offset, fingerprint in _places(effect):
                if not self._is_held(reader, partition, offset, fingerprint):
                    return f"it applies record {offset} of partition {partition}, which was lost before its reader was opened"
        return ""

    def answers(self, reader: SimulatedReader | None) -> str:
        """Check that the process may answer from its index; returns the violation, empty for none."""
        if self._contradicted:
            return f"it answers, although it knows that the log is another: {self._contradicted}"
        if self._did_not_run(reader):
            return "it answers, was paused before, and has not checked the log since"
        return ""

    def _did_not_run(self, reader: SimulatedReader | None) -> bool:
        """Returns whether the process was suspended for long since that reader was opened."""
        opened_s = float("-inf") if reader is None else reader.opened_s
        pauses = zip(self._paused_s[::2], self._paused_s[1::2], strict=False)
        return any(resumed_s > opened_s and resumed_s - max(paused_s, opened_s) > INTERRUPTED_AFTER_S for paused_s, resumed_s in pauses)

    def _is_held(self, reader: SimulatedReader, partition: int, offset: int, fingerprint: bytes) -> bool:
        """Returns whether the log has that record, or lost it only after that reader was opened."""
        cluster = self._cluster
        lost_since = [damage.lost for damage in cluster.damages[reader.damages_before :] if damage.partition == partition]
        there = [
            *cluster.by_partition[partition][offset : offset + 1],
            *(record for lost in lost_since for record in lost if record.offset == offset),
        ]
        return any(fingerprint_of(record) == fingerprint for record in there)

    def _lost_unseen(self, partition: int, offset: int, fingerprint: bytes) -> bool:
        """Returns whether the log lost that record and its topic-partition was not read since, for longer than a look may be old."""
        cluster = self._cluster
        if not cluster.damages:
            return False
        there = any(fingerprint_of(record) == fingerprint for record in cluster.by_partition[partition][offset : offset + 1])
        if there or not cluster.takes(partition):
            return False
        seen_until_s = cluster.loop.time() - INTERRUPTED_AFTER_S
        lost_s = [
            damage.at_s
            for damage in cluster.damages
            if damage.partition == partition and any(fingerprint_of(record) == fingerprint for record in damage.lost)
        ]
        return any(max(at_s, self._read_s.get(partition, at_s)) < seen_until_s for at_s in lost_s)

    def _keep(self, effects: Sequence[Effect]) -> None:
        if self._places is not None:
            for effect in effects:
                self._places.update({(partition, offset): fingerprint for partition, offset, fingerprint in _places(effect)})


def _places(effect: Effect) -> Iterator[tuple[int, int, bytes]]:
    yield ORDERING, effect.offset, effect.fingerprint
    if effect.partition != NO_CONTENT:
        yield effect.partition, effect.content_offset, effect.content_fingerprint
