"""Tests that many seeds hold, that a seed is reproducible, and that a failure prints the command that repeats it."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from notary.salvage.choice import choose
from tests.simulation import salvaging
from tests.simulation import simulate as simulation
from tests.simulation.__main__ import main
from tests.simulation.broken import KINDS as KINDS_OF_BROKEN
from tests.simulation.broken import STOLEN
from tests.simulation.plan import AIMED, plan
from tests.simulation.simulate import simulate

ROOT = Path(__file__).parents[2]
SEEDS_A_NIGHT = 2_000
SEEDS = 100
"""The first seeds, which `make test` also runs."""
SEEDS_BESIDES = (
    111, 116, 128, 135, 140, 150, 154, 168, 197, 199, 225, 229, 252, 254, 279, 310, 461, 648, 667, 770, 1328,
    20261300, 20270840, 20430021,
)  # fmt: skip
"""The later seeds that noticed a mutant when it was last measured, or that meet a kind of fault that none of the first seeds meets."""


def test_the_first_seeds_hold() -> None:
    """The first five seeds hold."""
    for seed in range(1, 6):
        outcome = simulate(seed)
        assert not outcome.problems, f"{outcome.problems}; to repeat it: make simulate SEED={seed}"


@pytest.mark.seconds
def test_every_promise_holds_after_a_salvage(capsys: pytest.CaptureFixture[str]) -> None:
    """In ten systems the log loses its end, once or again, and every promise holds; together they have every form of item."""
    assert main(["--salvage", "--seeds", "10", "--processes", "1", "--json"]) == 0, capsys.readouterr().err
    counts = json.loads(capsys.readouterr().out.splitlines()[0])["counts"]
    assert counts["salvages"] == 10
    assert counts["salvages of a salvaged log"] > 2
    assert counts["salvages interrupted"] > 2
    assert counts["salvages: begins at another position"] > 2
    assert {f"salvages with items: {form}" for form in ("decided", "hashed", "lost")} <= set(counts)
    assert {f"salvages: {what}" for what in ("the order lost", "payloads lost", "both lost", "sealed entries")} <= set(counts)


@pytest.mark.seconds
def test_a_salvage_without_its_sources_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A salvage that puts nothing back, though it was given sources, breaks a promise."""
    monkeypatch.setattr(salvaging, "choose", lambda log, indexes, receipts: choose(log, [], []))
    assert any("a source of the salvage holds" in problem for seed in range(1, 6) for problem in simulate(seed, salvage=True).problems)


KINDS = {
    "altered indexes noticed", "altered rows", "altered states", "answers lost", "appends applied and failed", "appends late",
    "appends lost", "appends repeated", "batches of many", "checkpoints", "clock jumps", "holes filled", "incarnations fenced by peers",
    "stopped clocks", "crashes", "bursts", "cut logs", "cut logs noticed", "cut off", "deaths at a step",
    "diverged indexes quarantined", "forged records", "full disks", "full disks noticed", "late register records", "long plans",
    "clocks of brokers wrong by years", "clocks wrong by years", "suspicions settled", "answers from a lost log", "foreign views",
    "forged with a former key", "forged: copied control record", "forged: copied vote", "forged: copy", "forged: copy of what was lost",
    "forged: fill", "forged: junk", "forged: record", "former keys offered", "former keys put back",
    "losses behind a worker that is cut off", "losses behind a worker that is down", "losses behind a worker that is paused",
    "lost contents noticed", "lost ends of payload partitions", "lost ends of the order", "partitions added", "pauses",
    "payload partitions restored", "retired incarnations", "retired workers stopped", "rotations", "rotations of two at once",
    "slow payloads", "wrong decisions before quiet", "years passed",
    "machine crashes", "duplicate names", "duplicate names noticed", "new disks", "orderly ends", "regrown logs refused", "snapshots",
    "stalled readers", "partitions without a leader", "answers after a loss", "misnamed workers refused", "outvoted votes repeated",
    *(f"aimed losses: {kind}" for kind in AIMED),
    *(f"contents of a broken worker: {kind}" for kind in KINDS_OF_BROKEN),
    *(f"stolen names: {kind}" for kind in STOLEN),
    "activations", "activations that a worker cannot read", "floods", "keys before their files", "pauses at a step", "trims",
    "disks that begin with a snapshot", "freed payloads missed", "payloads freed",
    "workers without the key in force", "wrong roots ahead", "wrong roots behind",
    *(f"answered {status}" for status in (200, 202, 400, 401, 403, 404, 405, 413, 415, 429, 503)),
}  # fmt: skip
"""The kinds of faults and of their consequences that the seeds must meet."""


def _run(capsys: pytest.CaptureFixture[str], seeds: int, first: int = 1) -> Counter[str]:
    """Run the seeds, which must all hold; returns the sum of their counts."""
    assert main(["--seeds", str(seeds), "--first", str(first), "--json"]) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out.splitlines()[0])
    assert result["seeds"] == seeds
    return Counter(result["counts"])


def _hold(capsys: pytest.CaptureFixture[str], seeds: int) -> None:
    """Run the first seeds and `SEEDS_BESIDES`: they meet all kinds, and have more decisions and checkpoints than there are seeds."""
    counts = _run(capsys, seeds)
    for seed in SEEDS_BESIDES:
        if seed > seeds:
            counts += _run(capsys, 1, seed)
    assert not {kind for kind in KINDS if not counts[kind]}
    assert counts["decisions"] > seeds
    assert counts["checkpoints"] > seeds


@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
def test_many_seeds_meet_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """Hundreds of systems, each with faults of its own, keep every promise; together they meet every kind of fault."""
    _hold(capsys, SEEDS)


@pytest.mark.nightly
@pytest.mark.timeout(7_200)
def test_the_seeds_of_a_night_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """The nightly seeds hold, and together they meet every kind of fault."""
    _hold(capsys, SEEDS_A_NIGHT)


@pytest.mark.seconds
def test_a_seed_is_the_same_in_every_process() -> None:
    """A process with other hashes and other addresses produces the same log, answers and disks, to the byte."""
    seeds = (17, 33)
    code = f"from tests.simulation.simulate import simulate; print([simulate(seed).digest for seed in {seeds}])"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str([simulate(seed).digest for seed in seeds])


@pytest.mark.seconds
def test_tracing_changes_nothing() -> None:
    """A run with a trace has the same digest as the run without one."""
    lines: list[str] = []
    assert simulate(11, lambda at_s, who, what: lines.append(what)).digest == simulate(11).digest
    assert len(lines) > 10


@pytest.mark.seconds
def test_a_failure_says_how_to_repeat_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that fails ends the run with status 1 and prints its plan, its trace, its problems and the command."""
    monkeypatch.setattr(simulation, "violations", lambda simulation: ["a planted problem"])
    assert main(["--seeds", "3", "--first", "7", "--processes", "1"]) == 1
    printed = capsys.readouterr().err
    assert "seed 7 failed: a planted problem" in printed
    assert "make simulate SEED=7" in printed
    assert str(plan(7)) in printed


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--seeds", "many"], ["--nonsense"]])
def test_invalid_arguments_are_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Invalid arguments end with status 2 and the usage."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage:" in capsys.readouterr().err
