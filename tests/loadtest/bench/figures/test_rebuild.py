"""Tests that the time to ready is measured of workers that have all decisions of the generated log."""

import json
from pathlib import Path

import pytest

from loadtest.bench.figures.rebuild import main

pytestmark = pytest.mark.seconds


def test_a_replay_and_a_snapshot_have_all_decisions(tmp_path: Path) -> None:
    """A worker that replays the log, and one that restores a snapshot of it, are ready with every decision of it."""
    out = tmp_path / "ready.jsonl"
    assert main(["--requests", "1000", "--out", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["case"] for line in lines] == ["replay", "own index", "snapshot"]
    assert {line["failed"] for line in lines} == {False}
    assert all(line["figures"]["decisions"] >= 1_000 for line in lines)
    assert lines[-1]["figures"]["bytes"] > 0
