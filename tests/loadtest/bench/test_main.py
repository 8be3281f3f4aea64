"""Tests the benchmark command without brokers; only the presence of its figures is checked."""

import contextlib
import gc
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from deploy.local import CannotRun
from loadtest.bench import figures
from loadtest.bench.__main__ import main, measurable, parts_of, run
from loadtest.bench.figure import Part, RunOptions, Step, exit_code
from loadtest.bench.figures import all_figures
from loadtest.bench.page import put_into, tables
from loadtest.bench.report import Report, read
from loadtest.rig.progress import Bar
from notary.memory import GARBAGE_OBJECTS

pytestmark = pytest.mark.seconds


ROOT = Path(__file__).parents[3]


def test_apply_writes_json_lines(tmp_path: Path) -> None:
    """`--only apply --quick` writes one JSON object a line, with figures, parameters and the machine."""
    out = tmp_path / "bench.jsonl"
    command = [sys.executable, "-m", "loadtest.bench", "--only", "apply", "--quick", "--seconds", "0.1", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [result["parameters"]["inputs"] for result in results] == [1, 4, 1_000]
    for result in results:
        assert result["figure"] == "apply"
        assert not result["failed"]
        assert result["figures"]["requests_per_s"] > 0
        assert {"cores", "memory_bytes", "kernel", "python", "kafka", "aiokafka", "rocksdict", "msgspec", "git"} <= set(result["machine"])
    assert all(result["case"] in done.stdout for result in results)


def test_a_bench_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no figure has a part on that log, the exit code is 2, with a sentence, and the results of earlier runs stay."""
    out = tmp_path / "bench.jsonl"
    out.write_text("results of an hour\n")
    assert main(["--only", "raw", "--brokers", "0", "--out", str(out)]) == 2
    assert out.read_text() == "results of an hour\n"
    assert "nothing to measure" in capsys.readouterr().err


def test_the_command_lists_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    """The help has every figure of the registry that the command can measure, with its question."""
    with pytest.raises(SystemExit):
        main(["--help"])
    help_text = " ".join(capsys.readouterr().out.split())
    assert set(measurable()) < set(all_figures())
    assert all(f"{name} {all_figures()[name].question}" in help_text for name in measurable())


NEW_FIGURE = """
from loadtest.bench.figure import Figure, part_alone


def measure(report, seconds, seed):
    report.add("answer", "of everything", {"value": 42}, {"seed": seed})


def rows(lines):
    return [("case", "value"), *[(line.case, str(line.figures["value"])) for line in lines]]


FIGURES = (Figure("answer", "what is the answer?", part_alone("answer", measure, 1.0), {"answer": rows}),)
"""


def test_a_new_figure_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the registry's folder is enough: the command measures its figure, and the page has its table."""
    (tmp_path / "answer.py").write_text(NEW_FIGURE)
    monkeypatch.setattr(figures, "__path__", [*figures.__path__, str(tmp_path)])
    all_figures.cache_clear()
    try:
        assert main(["--only", "answer", "--quick", "--seconds", "0.1", "--out", str(tmp_path / "bench.jsonl")]) == 0
        assert "| of everything | 42 |" in tables(read(tmp_path / "bench.jsonl"))["answer"]
        assert "answer" in put_into("<!-- figures: answer -->\n<!-- end -->\n", {})
    finally:
        all_figures.cache_clear()


def test_the_program_has_every_figure_and_a_share_of_the_time_for_each() -> None:
    """The program has every figure, with a share of the time for each; `--brokers` leaves out those with other broker counts."""
    report = Report(io.StringIO(), io.StringIO())
    names = measurable()
    assert names
    for name in names:
        parts = parts_of(report, [name], RunOptions(3.0))
        assert parts
        assert all(step.seconds > 0 for part in parts for step in part.steps)
    complete, embedded = [parts_of(report, names, RunOptions(3.0, brokers=brokers)) for brokers in (None, 0)]
    assert len(embedded) < len(complete)
    assert not [part.text for part in embedded if "broker" in part.text]
    texts = [step.text for part in complete for step in part.steps]
    assert len(texts) == len(set(texts))


def test_parts_of_a_worker_run_as_in_a_worker(tmp_path: Path) -> None:
    """Measurements in this process have the garbage collector of a worker, by either command, and the code after them has its own."""
    before, seen = gc.get_threshold(), []
    part = Part("first", contextlib.nullcontext, [Step("a", 1.0, lambda opened: seen.append(gc.get_threshold()[0]))])
    report = Report(io.StringIO(), io.StringIO())
    assert run([part], report, Bar(Console(file=io.StringIO()))) == []
    assert exit_code(lambda report: seen.append(gc.get_threshold()[0]), str(tmp_path / "lines")) == 0
    assert seen == [GARBAGE_OBJECTS] * 2
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_a_part_that_cannot_be_measured_does_not_end_the_others() -> None:
    """A part that fails is stopped there, its resources are closed, and it is reported; the next part runs."""
    done: list[str] = []

    @contextlib.contextmanager
    def opened() -> Iterator[str]:
        try:
            yield "it"
        finally:
            done.append("closed")

    def fail(it: str) -> None:
        raise CannotRun("no brokers")

    parts = [
        Part("first", opened, [Step("a", 1.0, fail), Step("b", 1.0, done.append)]),
        Part("second", opened, [Step("c", 1.0, done.append)]),
    ]
    out = io.StringIO()
    assert run(parts, Report(io.StringIO(), io.StringIO()), Bar(Console(file=out))) == ["first cannot be measured: no brokers"]
    assert done == ["closed", "it", "closed"]
    assert "3/3 c" in out.getvalue()
