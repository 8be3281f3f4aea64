"""Tests the result page: the progress bar, the tables in their places, the pictures."""

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import CannotRun
from loadtest.bench import markdown, plot
from loadtest.bench.program import FIGURES, Part, Step, parts_of, run
from loadtest.bench.report import Bar, Report, last_of_each, lines_to, read
from loadtest.bench.stages.places import STAGES

MOMENTS = [{"seconds": at, "requests_per_s": 10.0 * at, "refused_requests_per_s": 5.0, "worker_mib": 100.0} for at in range(1, 5)]
TENTH = {"requests_per_s": 1e4, "latency_ms_p50": 1.0, "latency_ms_p99": 2.0, "worker_mib": 1.0, "index_mib": 1.0, "log_mib": 1.0}
ANY: dict[str, dict[str, Any]] = {
    "end-to-end": {"requests_per_s": 1_234.0, "latency_ms_p50": 1.0, "latency_ms_p99": 2.0, "others_cores": 0.1},
    "apply": {"requests_per_s": 5_678.0, "inputs_per_s": 9.0},
    "stages": {
        "cpu_s_per_1000": dict.fromkeys(STAGES, 0.01),
        "beside_cpu_s_per_1000": {"verify": 0.01},
        "looks": 100,
        **{f"{name}_cpu_s_per_1000": 0.2 for name in ("all_stages", "process", "worker", "intake", "serial", "main_thread")},
    },
    "curve": {
        **dict.fromkeys(("due_requests_per_s", "goodput_requests_per_s", "latency_ms_p50", "latency_ms_p99", "worker_cores"), 10.0),
        **{"refused_share": 0.0, "unsent_share": 0.0},
    },
    "overload": {"capacity_requests_per_s": 10.0, "goodput_requests_per_s": 9.0, "by_time": MOMENTS},
    "long": {"requests_per_s": 9_999.0, "tenths": [TENTH] * 10, "by_time": MOMENTS, "load_cores": 0.1, "last_to_first_tenth": 1.0},
}


def _lines(file: Path, *, failed: bool = False, **replaced: dict[str, Any]) -> None:
    with lines_to(str(file), append=True) as lines:
        report = Report(lines, io.StringIO())
        for figure, figures in (ANY | replaced).items():
            report.add(figure, f"case of {figure}, at 50%", figures, {"processes": 1}, failed=failed)


@pytest.mark.seconds
def test_the_last_line_of_a_case_counts_and_failed_ones_do_not(tmp_path: Path) -> None:
    """The last line counts if a case was measured several times; one of a load with errors does not count."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    _lines(file, apply={"requests_per_s": 2.0, "inputs_per_s": 2.0})
    _lines(file, apply={"requests_per_s": 3.0, "inputs_per_s": 3.0}, failed=True)
    (line,) = last_of_each(read(file), "apply")
    assert line.figures["requests_per_s"] == 2.0


@pytest.mark.seconds
def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    """The message about an invalid line has the file and the line's number."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    with file.open("a") as lines:
        lines.write('{"figure": 1}\n')
    with pytest.raises(ValueError, match=f"line {len(ANY) + 1} is not a result"):
        read(file)


@pytest.mark.seconds
def test_tables_go_into_their_places_and_what_was_not_measured_stays(tmp_path: Path) -> None:
    """Measured tables replace the old ones, the others and the rest of the page stay; a second time changes nothing."""
    file, page = tmp_path / "bench.jsonl", tmp_path / "page.md"
    _lines(file)
    page.write_text(
        "before\n<!-- figures: apply -->\nold\n<!-- end -->\nbetween\n<!-- figures: decode -->\nkept\n<!-- end -->\n"
        "<!-- figures: long -->\n<!-- end -->\nafter\n"
    )
    assert markdown.main([str(file), "--into", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- figures: apply -->\n\n| case |")
    assert "5,678" in text
    assert "9,999" in text
    assert "old" not in text
    assert "kept" in text
    assert "between" in text
    assert text.endswith("<!-- end -->\nafter\n")
    markdown.main([str(file), "--into", str(page)])
    assert page.read_text() == text


@pytest.mark.seconds
def test_every_table_can_be_made(tmp_path: Path) -> None:
    """Each table has a head, and as many cells in each row; tables without figures are left out."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    made = markdown.tables(read(file))
    assert set(made) == {"end-to-end", "stages", "cores", "workers", "apply", "curve", "overload", "long"}
    for table in made.values():
        rows = [row for row in table.splitlines() if row.startswith("|")]
        assert len({row.count("|") for row in rows}) == 1
    # 0.2 s of CPU time for a thousand requests: two cores for ten thousand a second, and one is fully used at five thousand.
    assert "| 2.00 |" in made["cores"]
    assert "5,000/s | 5,000/s |" in made["cores"]


@pytest.mark.seconds
def test_workers_share_their_own_requests_and_all_do_what_is_in_order(tmp_path: Path) -> None:
    """One worker is limited by its main thread; many approach the cost that each has for every request in the order, and never reach it."""
    file = tmp_path / "bench.jsonl"
    spent = {"http": 0.2, "decode": 0.1, "verify": 0.3, "index": 0.4, "sampler": 5.0, "native threads": 0.5}
    _lines(file, stages=ANY["stages"] | {"cpu_s_per_1000": spent, "beside_cpu_s_per_1000": {"verify": 0.3}})
    (line,) = last_of_each(read(file), "stages")
    alone, two, many = [markdown.workers_full_at(line, workers)[0] for workers in (1, 2, 1_000_000)]
    assert alone == pytest.approx(1_000 / 0.7)
    assert two == pytest.approx(1_000 / (0.4 + (0.2 + 0.1) / 2 + 0.1 / 2))
    assert many == pytest.approx(1_000 / (0.4 + 0.1), rel=1e-4)
    # Threads besides the main one use cores too, and RocksDB's do in every worker.
    assert markdown.workers_full_at(line, 1)[1] == pytest.approx(alone * (0.7 + 0.3 + 0.5) / 1_000)


def test_a_place_of_no_table_is_an_error() -> None:
    """A misspelt table name in the page is an error: otherwise its place would stay empty for ever."""
    with pytest.raises(ValueError, match="no table applied"):
        markdown.put_into("<!-- figures: applied -->\n<!-- end -->\n", {})


@pytest.mark.seconds
def test_pictures_are_drawn_and_are_the_same_again(tmp_path: Path) -> None:
    """Each figure has its PNG; the same lines give the same bytes, so a picture changes in git only when a figure did."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    for folder in ("first", "second"):
        assert plot.main([str(file), "--to", str(tmp_path / folder)]) == 0
    first, second = [{png.name: png.read_bytes() for png in (tmp_path / folder).iterdir()} for folder in ("first", "second")]
    assert set(first) == {f"{name}.png" for name in plot.PICTURES}
    assert all(content.startswith(b"\x89PNG") for content in first.values())
    assert first == second


def test_nothing_measured_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without lines there is no picture, and the exit code reports it."""
    (tmp_path / "bench.jsonl").touch()
    assert plot.main([str(tmp_path / "bench.jsonl"), "--to", str(tmp_path)]) == 1
    assert "curve.png is not drawn" in capsys.readouterr().out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar is one overwritten line, with its progress and an estimate of the remaining time."""
    monkeypatch.setenv("COLUMNS", "60")
    out, times = _Terminal(), iter([0.0, 10.0, 20.0, 21.0])
    bar = Bar(out, lambda: next(times))
    bar.show(0.25, "first")
    bar.show(0.5, "second")
    bar.show(0.5, "third" * 50)
    bar.end()
    assert "\n" not in out.getvalue()
    assert max(len(row) for row in out.getvalue().split("\r")) <= 60 + len("\x1b[K")
    assert " 25% first, 30 s left" in out.getvalue()
    assert "[############............] 50% second, 20 s left" in out.getvalue()


def test_without_a_terminal_there_are_lines_and_not_too_many() -> None:
    """Without a terminal there is a line when the text changes, and otherwise one in ten seconds."""
    out, times = io.StringIO(), iter([0.0, 1.0, 2.0, 12.0, 13.0])
    bar = Bar(out, lambda: next(times))
    for share, text in ((0.1, "a"), (0.2, "a"), (0.3, "a"), (0.4, "b")):
        bar.show(share, text)
    assert [line.split()[2] for line in out.getvalue().splitlines()] == ["a,", "a,", "b,"]


def test_the_program_has_every_figure_and_a_share_of_the_time_for_each() -> None:
    """The program has every figure, with a share of the time for each; `--brokers` leaves out those with other broker counts."""
    report = Report(io.StringIO(), io.StringIO())
    for figure in FIGURES:
        parts = parts_of(report, [figure], 3.0, 1)
        assert parts
        assert all(step.seconds > 0 for part in parts for step in part.steps)
    whole, embedded = [parts_of(report, FIGURES, 3.0, 1, brokers_only=brokers) for brokers in (None, 0)]
    assert len(embedded) < len(whole)
    assert not [part.text for part in embedded if "broker" in part.text]
    told = [json.dumps(step.text) for part in whole for step in part.steps]
    assert len(told) == len(set(told))


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
        Part("first", 1.0, opened, [Step("a", 1.0, fail), Step("b", 1.0, done.append)]),
        Part("second", 1.0, opened, [Step("c", 1.0, done.append)]),
    ]
    out = io.StringIO()
    assert run(parts, Bar(out)) == ["first cannot be measured: no brokers"]
    assert done == ["closed", "it", "closed"]
    assert "3/3 c" in out.getvalue()
