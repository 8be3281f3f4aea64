"""Histories of the joiner's core told in text files, with golden output (as etcd raft's datadriven tests).

A file is blocks, one blank line between them: commands, a line `----`, and what they made the joiner say. `#` begins a comment.
`WRITE_SCENARIOS=1 pytest tests/scenarios` writes the output anew: read the difference before keeping it.

| command | does |
|---|---|
| `register NAME [NONCE]` | appends a register record |
| `entry I/S LABEL... [in P] [at MS] [sent MS]` | appends an entry; each label is a request; a clock ticks 1 ms a record unless told |
| `payload I/S LABEL... [in P]` | appends the payload that asks those requests |
| `fill I/S [in P]`, `fence I LAST` | append what they say |
| `forged I/S [in P]`, `garbage` | append a payload that does not decode, an ordering record that is none |
| `read [STREAM [COUNT]]` | hands the next records of a stream to the joiner: `ordering`, a partition's number, or all of every stream |
| `wait MS` | lets that time pass and steps |
| `fills` | appends the fills that the last step wanted |
| `restart` | a new process: all that was not persisted is lost, reading goes on where R8 says |
| `another` | a worker that starts from nothing takes over |
| `state` | shows what is persisted and what is buffered |
"""

import os
from pathlib import Path
from typing import Any

import pytest

from joiner import Ready
from ordering.log import ORDERING
from ordering.records import batch_key
from tests.joiner.history import T0, History, Reading

FILES = sorted(Path(__file__).parent.glob("*.txt"))


class Player:
    """One log, one joiner, and what it said."""

    def __init__(self) -> None:
        self.history = History()
        self.reading = Reading()
        self.next = dict(self.reading.state.offsets_next)
        self.now_ms = 0
        self.wanted: list[Any] = []

    def play(self, line: str) -> list[str]:
        command, *words = line.split()
        options = {}
        while len(words) > 2 and words[-2] in ("in", "at", "sent"):
            options[words[-2]] = int(words[-1])
            words = words[:-2]
        partition = options.get("in", 0)
        name = tuple(map(int, words[0].split("/"))) if words and "/" in words[0] else (0, 0)
        match command:
            case "register":
                self.history.register(words[0], words[1] if len(words) > 1 else None)
            case "entry":
                at, sent_at = (None if options.get(end) is None else T0 + options[end] for end in ("at", "sent"))
                self.history.entry(*name, *words[1:], partition=partition, at=at, sent_at=sent_at)
            case "payload":
                self.history.payload(*name, *words[1:], partition=partition)
            case "fill":
                self.history.fill(*name, partition=partition)
            case "forged":
                self.history.put(partition, batch_key(*name), b"[forged")
            case "fence":
                self.history.fence(int(words[0]), int(words[1]))
            case "garbage":
                self.history.put(ORDERING, None, b"garbage")
            case "fills":
                for fill in self.wanted:
                    self.history.fill(fill.incarnation, fill.sequence, fill.partition)
            case "wait":
                self.now_ms += int(words[0])
                return self.step([])
            case "read":
                streams = list(self.next) if not words else [ORDERING if words[0] == "ordering" else int(words[0])]
                return self.step([record for stream in streams for record in self.take(stream, *map(int, words[1:]))])
            case "restart" | "another":
                self.reading = self.reading.restarted() if command == "restart" else Reading()
                self.next = dict(self.reading.state.offsets_next)
            case "state":
                return self.state()
            case _:
                raise AssertionError(f"no such command: {line}")
        return []

    def take(self, stream: int, count: int = 1000) -> list[Any]:
        start = self.next[stream]
        records = self.history.streams[stream][start : start + count]
        self.next[stream] += len(records)
        return records

    def step(self, records: list[Any]) -> list[str]:
        ready = self.reading.step(*records, now=self.now_ms)
        self.wanted = ready.fills
        return self.told(ready) or ["nothing"]

    def told(self, ready: Ready) -> list[str]:
        said = [f"registered {life.incarnation} {life.name}" for life in ready.registered]
        for batch in ready.batches:
            content = "filled" if batch.filled else f"{len(batch.requests)} requests"
            said.append(f"batch {batch.incarnation}/{batch.sequence} {content}, log time {batch.log_time_ms - T0}")
        said += [f"fenced {f.life.incarnation} {f.life.name} by {f.by.incarnation if f.by else 'a peer'}" for f in ready.fenced]
        said += [f"wants fill {fill.incarnation}/{fill.sequence} in {fill.partition}" for fill in ready.fills]
        said += [f"wants fence {fence.incarnation} {fence.sequence_last}" for fence in ready.fences]
        said += [f"notice {notice.kind}: {notice.text}" for notice in ready.notices]
        hole = self.reading.joiner.hole
        return said + ([f"hole {hole.incarnation}/{hole.sequence} in {hole.partition}"] if hole else [])

    def state(self) -> list[str]:
        offsets = ", ".join(f"{'ordering' if s == ORDERING else s} {offset}" for s, offset in self.reading.state.offsets_next.items())
        lives = [
            f"life {life.incarnation} {life.name} last {life.sequence_last}{' fenced' * life.fenced}" for life in self.reading.state.lives
        ]
        return [f"reads from {offsets}", *lives, f"buffered {self.reading.joiner.buffered_records}"]


def _played(text: str) -> str:
    player = Player()
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.partition("\n----")[0]
        said: list[str] = []
        for line in commands.splitlines():
            if not line.startswith("#"):
                said += player.play(line)
        blocks.append("\n".join([commands, "----", *said]) if said or "\n----" in block else commands)
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_scenario(file: Path) -> None:
    """The joiner says what the scenario's file holds."""
    text = file.read_text()
    played = _played(text)
    if os.environ.get("WRITE_SCENARIOS"):
        file.write_text(played)
    else:
        assert played == text


def test_there_are_scenarios() -> None:
    """The scenarios are found, whatever directory the tests are started from."""
    assert len(FILES) >= 8
