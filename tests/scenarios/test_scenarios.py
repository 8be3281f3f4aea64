"""Scenarios for the joiner's core in text files, with golden output (as etcd raft's datadriven tests).

A file is blocks, one blank line between them: commands, a line `----`, and the joiner's output. `#` starts a comment.
`WRITE_SCENARIOS=1 pytest tests/scenarios` rewrites the output: read the difference before keeping it.

| command | effect |
|---|---|
| `register NAME [NONCE] [version V]` | appends a register record |
| `entry I/S LABEL... [in P] [at MS] [sent MS]` | appends an entry; each label is a request; a clock ticks 1 ms a record without `at` |
| `payload I/S LABEL... [in P]` | appends the payload with those requests |
| `fill I/S [LABEL...] [in P]` | appends a fill for the entry of that name, for those requests if there is none yet |
| `fence I LAST`, `checkpoint I SIZE` | append a fence, a checkpoint |
| `key NAME` | appends a key record; later records are signed with that key |
| `partitions N`, `retire I`, `activate V`, `settle` | append the owner's records; `settle` names the reader's own history |
| `junk I/S [in P]`, `garbage` | append a payload that no entry names, an ordering record that does not decode |
| ... `by NAME` | signs the record with that key instead: `notary` is the first one of the log, `nobody` and the like are strangers |
| ... `view own`, `view N` | sets the record's view to the reader's present one, or to one of another history after N records |
| `read [PARTITION [COUNT]]` | passes the next records of a topic-partition to the joiner: `ordering`, a partition's number, or all |
| `wait MS` | lets that time pass and steps |
| `fills` | appends the fills that the last step wanted |
| `examined` | reports that the driver found all of the reader's history in the log, after a foreign view |
| `live` | makes the reader ready |
| `restart` | starts a new process: all unpersisted state is lost, reading resumes by R8 |
| `another [version V]` | a worker that starts from nothing takes over; its software reads that version |
| `state` | shows the persisted state and the number of buffered records |
"""

import os
from pathlib import Path
from typing import Any

import pytest

from joiner import JoinerLimits, Ready, RootSeen
from ordering.log import ORDERING
from ordering.records import View, batch_key
from tests.joiner.history import KEY, T0, History, Reading, signing_key

FILES = sorted(Path(__file__).parent.glob("*.txt"))
LIMITS = JoinerLimits(fence_bytes_min=0)
"""Fences are proposed although memory is free."""


class Player:
    """One log, one joiner, and its output."""

    def __init__(self) -> None:
        self.history = History()
        self.now_ms = 0
        self.wanted: list[Any] = []
        self.begin(Reading(LIMITS))

    def begin(self, reading: Reading) -> None:
        self.reading = reading
        self.next = dict(self.reading.state.offsets_next)
        self.evidence: Any = None
        if not self.reading.state.effects:
            self.reading.step(*self.take(ORDERING, 1))

    def play(self, line: str) -> list[str]:
        command, *words = line.split()
        options: dict[str, str] = {}
        while len(words) > 1 and words[-2] in ("in", "at", "sent", "by", "view", "version"):
            options[words[-2]] = words[-1]
            words = words[:-2]
        partition, version = int(options.get("in", 0)), int(options.get("version", 1))
        key = {"": None, "notary": KEY}.get(by := options.get("by", ""), signing_key(by))
        view = {"": None, "own": self.reading.view}.get(of := options.get("view", ""), View(int(of) if of.isdigit() else 0, b"?" * 32))
        incarnation, _, sequence = words[0].partition("/") if words and "/" in words[0] else ("0", "/", "0")
        name = int(incarnation), int(sequence)
        match command:
            case "register":
                self.history.register(words[0], words[1] if len(words) > 1 else None, version=version, view=view)
            case "entry":
                at, sent_at = (T0 + int(options[end]) if end in options else None for end in ("at", "sent"))
                self.history.entry(*name, *words[1:], partition=partition, at=at, sent_at=sent_at, view=view, key=key)
            case "payload":
                self.history.payload(*name, *words[1:], partition=partition)
            case "fill":
                self.history.fill(*name, *words[1:], partition=partition, key=key)
            case "junk":
                self.history.put(partition, batch_key(*name), b"[junk")
            case "key":
                self.history.rotate(signing_key(words[0]))
            case "partitions":
                self.history.partitions(int(words[0]))
            case "retire":
                self.history.retire(int(words[0]))
            case "activate":
                self.history.activate(int(words[0]))
            case "settle":
                self.history.settle(view or self.reading.view)
            case "checkpoint":
                self.history.checkpoint(int(words[0]), int(words[1]), view=view or self.reading.view)
            case "examined":
                self.reading.joiner.examined(self.evidence)
                return self.step([])
            case "live":
                self.reading.joiner.suspicions.live = True
            case "fence":
                self.history.fence(int(words[0]), int(words[1]))
            case "garbage":
                self.history.put(ORDERING, None, b"garbage")
            case "fills":
                for fill in self.wanted:
                    self.history.fill(fill.incarnation, fill.sequence, partition=fill.partition)
            case "wait":
                self.now_ms += int(words[0])
                return self.step([])
            case "read":
                partitions = list(self.history.by_partition) if not words else [ORDERING if words[0] == "ordering" else int(words[0])]
                return self.step([record for partition in partitions for record in self.take(partition, *map(int, words[1:]))])
            case "restart" | "another":
                self.begin(self.reading.restarted() if command == "restart" else Reading(LIMITS, format_version=version))
            case "state":
                return self.state()
            case _:
                raise AssertionError(f"no such command: {line}")
        return []

    def take(self, partition: int, count: int = 1000) -> list[Any]:
        start = self.next.get(partition, 0)
        records = self.history.by_partition[partition][start : start + count]
        self.next[partition] = start + len(records)
        return records

    def step(self, records: list[Any]) -> list[str]:
        ready = self.reading.step(*records, now=self.now_ms)
        self.wanted, self.evidence = ready.fills, ready.evidence
        return self.describe(ready) or ["nothing"]

    def describe(self, ready: Ready) -> list[str]:
        lines = [f"registered {state.incarnation} {state.name}" for state in ready.registered]
        for batch in ready.batches:
            content = "filled" if batch.filled else f"{len(batch.requests)} requests"
            lines.append(f"batch {batch.incarnation}/{batch.sequence} {content}, log time {batch.log_time_ms - T0}")
        lines += [
            f"fenced {f.state.incarnation} {f.state.name} by {f.by.incarnation if f.by else 'the owner' if f.retired else 'a peer'}"
            for f in ready.fenced
        ]
        lines += [
            f"root of {one.name} at {one.size}" if isinstance(one, RootSeen) else f"vote of {one.name} void" for one in ready.roots_seen
        ]
        lines += [f"wants fill {fill.incarnation}/{fill.sequence} in {fill.partition}" for fill in ready.fills]
        lines += [f"wants fence {fence.incarnation} {fence.sequence_last}" for fence in ready.fences]
        lines += [f"anomaly {anomaly.kind}: {anomaly.text}" for anomaly in ready.anomalies]
        if ready.evidence is not None:
            lines.append(f"evidence in record {ready.evidence.offset}: {ready.evidence.writer} has seen {ready.evidence.view.seen}")
        lines += [f"stops: {ready.stop}"] * (ready.stop is not None)
        lines += [f"suspected because of {name} since {seen} records" for name, seen in self.reading.joiner.suspicions.open.items()]
        hole = self.reading.joiner.hole
        return lines + ([f"hole {hole.incarnation}/{hole.sequence} in {hole.partition}"] if hole else [])

    def state(self) -> list[str]:
        offsets = ", ".join(
            f"{'ordering' if s == ORDERING else s} {offset}" for s, offset in sorted(self.reading.state.offsets_next.items())
        )
        incarnations = [
            f"incarnation {state.incarnation} {state.name} last {state.sequence_last}{' fenced' * state.fenced}"
            for state in self.reading.state.incarnations
        ]
        log = self.reading.joiner.log_state
        assert log is not None
        rules = f"{len(log.keys)} keys, {log.payload_partitions} partitions, formats {', '.join(map(str, log.formats))}"
        seen = f"seen {self.reading.view.seen}, {rules}"
        return [f"reads from {offsets}", *incarnations, seen, f"buffered {self.reading.joiner.buffered_records}"]


def _played(text: str) -> str:
    player = Player()
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.partition("\n----")[0]
        lines: list[str] = []
        for line in commands.splitlines():
            if not line.startswith("#"):
                lines += player.play(line)
        blocks.append("\n".join([commands, "----", *lines]) if lines or "\n----" in block else commands)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_joiner_prints_the_scenario(file: Path) -> None:
    """The joiner's output is that in the scenario's file."""
    text = file.read_text()
    played = _played(text)
    if os.environ.get("WRITE_SCENARIOS"):
        file.write_text(played)
    else:
        assert played == text


def test_scenarios_are_found_from_any_folder() -> None:
    """The scenarios are found, whatever directory the tests are started from."""
    assert len(FILES) >= 8
