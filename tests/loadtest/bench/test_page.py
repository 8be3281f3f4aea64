"""Tests the page of results: the tables at their markers, the pictures, and that only commits on a quiet machine are published."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.figures import all_figures
from loadtest.bench.figures.stages import workers_full_at
from loadtest.bench.page import main, put_into, refusal, tables
from loadtest.bench.report import Report, ResultLine, last_of_each, read
from loadtest.bench.stage_map import STAGES

pytestmark = pytest.mark.seconds

COMMIT = "0123456789" * 4
MOMENTS = [{"seconds": at, "requests_per_s": 10.0 * at, "rejected_requests_per_s": 5.0, "worker_mib": 100.0} for at in range(1, 5)]
TENTH = {
    "requests_per_s": 1e4,
    "latency_ms_p50": 1.0,
    "latency_ms_p99": 2.0,
    "worker_mib": 1.0,
    "worker_mib_max": 1.0,
    "index_mib": 1.0,
    "log_mib": 1.0,
}
ANY: dict[str, dict[str, Any]] = {
    "end-to-end": {"requests_per_s": 1_234.0, "latency_ms_p50": 1.0, "latency_ms_p99": 2.0, "others_cores": 0.1},
    "apply": {"requests_per_s": 5_678.0, "inputs_per_s": 9.0},
    "stages": {
        "cpu_s_per_1000": dict.fromkeys(STAGES, 0.01),
        "beside_cpu_s_per_1000": {"verify": 0.01},
        "looks": 100,
        **{f"{name}_cpu_s_per_1000": 0.2 for name in ("all_stages", "process", "worker", "main_thread")},
    },
    "curve": {
        **dict.fromkeys(("due_requests_per_s", "goodput_requests_per_s", "latency_ms_p50", "latency_ms_p99", "worker_cores"), 10.0),
        **{"rejected_share": 0.0, "unsent_share": 0.0},
    },
    "overload": {"capacity_requests_per_s": 10.0, "goodput_requests_per_s": 9.0, "by_time": MOMENTS},
    "long": {"requests_per_s": 9_999.0, "tenths": [TENTH] * 10, "by_time": MOMENTS, "load_cores": 0.1, "last_to_first_tenth": 1.0},
}


def _lines(file: Path, *, failed: bool = False, others_share: float | None = 0.0, commit: str = COMMIT, **replaced: dict[str, Any]) -> None:
    """Write results as the bench does, and then the share of the machine that others took, and the commit."""
    written = io.StringIO()
    report = Report(written, io.StringIO())
    for figure, figures in (ANY | replaced).items():
        report.add(figure, f"case of {figure}, at 50%", figures, {"processes": 1}, failed=failed)
    with file.open("a") as lines:
        for text in written.getvalue().splitlines():
            line = json.loads(text)
            line |= {"others_share": others_share, "machine": line["machine"] | {"git": commit}}
            lines.write(json.dumps(line) + "\n")


RATE = ANY["end-to-end"]


def _line(case: str, time: str = "2026-11-28T00:00:00Z", load_average: float = 1.0, *, cpu: str = "A", **figures: Any) -> ResultLine:
    """Returns a result of `end-to-end`."""
    machine = {"cores": 2, "cpu": cpu, "memory_bytes": 1 << 34, "python": "3.11", "kafka": "4", "git": COMMIT}
    return ResultLine("end-to-end", case, RATE | figures, {}, machine, time, load_average=load_average, others_share=0.0)


def test_the_newest_line_of_a_case_counts() -> None:
    """The newest line counts, wherever it is: the files are read in the order of their names, not of their ages."""
    old = _line("a", "2026-11-01T00:00:00Z", requests_per_s=1_111.0)
    new = _line("a", "2026-11-28T00:00:00Z", requests_per_s=2_222.0)
    for lines in ([old, new], [new, old]):
        assert last_of_each(lines, "end-to-end") == [new]
    assert "2,222" in tables([new, old])["end-to-end"]


def test_a_table_names_all_machines() -> None:
    """Results of one machine and commit have one line below them, with all days and load averages; those of several have one each."""
    lines = [_line("a", "2026-11-01T00:00:00Z", 1.5), _line("b", load_average=0.5), _line("c", load_average=1.0)]
    one = tables(lines)["end-to-end"].splitlines()[-1]
    assert one == f"2 cores of A, 16 GiB, Python 3.11, Kafka 4; {COMMIT[:10]}, 2026-11-01 to 2026-11-28, load average 0.5 to 1.5"
    *_, first, _, second = tables([*lines, _line("d", cpu="B")])["end-to-end"].splitlines()
    assert first == f"a; b; c: {one}"
    assert second == one.replace("2 cores of A", "d: 2 cores of B").replace("2026-11-01 to ", "").replace("0.5 to 1.5", "1.0")


def test_a_load_that_ran_out_is_marked() -> None:
    """The table shows which loads had no submissions left: they were shorter than the others."""
    rows = tables([_line("a", ran_out=True), _line("b", ran_out=False), _line("c")])["end-to-end"].splitlines()
    assert [row.split(" | ")[0] for row in rows[2:5]] == ["| a (no submissions left before the end)", "| b", "| c"]


def test_a_failed_line_does_not_count(tmp_path: Path) -> None:
    """A line of a load with errors does not count, though it is the newest."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    _lines(file, apply={"requests_per_s": 3.0, "inputs_per_s": 3.0}, failed=True)
    (line,) = last_of_each(read(file), "apply")
    assert line.figures["requests_per_s"] == ANY["apply"]["requests_per_s"]


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    """The message about an invalid line has the file and the line's number."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    with file.open("a") as lines:
        lines.write('{"figure": 1}\n')
    with pytest.raises(ValueError, match=f"line {len(ANY) + 1} is not a result"):
        read(file)


def test_tables_go_to_their_markers_and_the_others_stay(tmp_path: Path) -> None:
    """Measured tables replace the old ones, the others and the rest of the page stay; a second time changes nothing."""
    file, page = tmp_path / "bench.jsonl", tmp_path / "page.md"
    _lines(file)
    page.write_text(
        "before\n<!-- figures: apply -->\nold\n<!-- end -->\nbetween\n<!-- figures: decode -->\nkept\n<!-- end -->\n"
        "<!-- figures: long -->\n<!-- end -->\nafter\n"
    )
    assert main([str(file), "--into", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- figures: apply -->\n\n| case |")
    assert "5,678" in text
    assert "9,999" in text
    assert "old" not in text
    assert "kept" in text
    assert "between" in text
    assert text.endswith("<!-- end -->\nafter\n")
    main([str(file), "--into", str(page)])
    assert page.read_text() == text


def test_every_table_can_be_made(tmp_path: Path) -> None:
    """Each table has a head, and as many cells in each row; tables without figures are left out."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    made = tables(read(file))
    assert set(made) == {"end-to-end", "stages", "cores", "workers", "apply", "curve", "overload", "long"}
    for table in made.values():
        rows = [row for row in table.splitlines() if row.startswith("|")]
        assert len({row.count("|") for row in rows}) == 1
    assert "| the main thread's part of it; the rest is of other threads | 200 |" in made["stages"]
    # 0.2 s of CPU time for a thousand requests: two cores for ten thousand a second, and one is fully used at five thousand.
    # Five parallel stages of 0.01 s each, five in order, and the rest.
    assert "| 2.00 | 0.50 | 0.50 | 1.00 |" in made["cores"]
    assert "5,000/s | 20,000/s |" in made["cores"]


def test_workers_share_their_own_requests_and_all_do_what_is_in_order(tmp_path: Path) -> None:
    """One worker is limited by its main thread; many approach the cost that each has for every request in the order, and never reach it."""
    file = tmp_path / "bench.jsonl"
    spent = {"http": 0.2, "decode": 0.1, "verify": 0.3, "index": 0.4, "sampler": 5.0, "native threads": 0.5}
    _lines(file, stages=ANY["stages"] | {"cpu_s_per_1000": spent, "beside_cpu_s_per_1000": {"verify": 0.3}})
    (line,) = last_of_each(read(file), "stages")
    alone, two, many = [workers_full_at(line, workers)[0] for workers in (1, 2, 1_000_000)]
    assert alone == pytest.approx(1_000 / 0.7)
    assert two == pytest.approx(1_000 / (0.4 + (0.2 + 0.1) / 2 + 0.1 / 2))
    assert many == pytest.approx(1_000 / (0.4 + 0.1), rel=1e-4)
    # Threads besides the main one use cores too, and RocksDB's do in every worker.
    assert workers_full_at(line, 1)[1] == pytest.approx(alone * (0.7 + 0.3 + 0.5) / 1_000)


def test_a_marker_without_a_table_is_an_error() -> None:
    """A misspelt table name in the page is an error: otherwise its place would stay empty for ever."""
    with pytest.raises(ValueError, match="no table applied"):
        put_into("<!-- figures: applied -->\n<!-- end -->\n", {})


def test_pictures_are_drawn_and_are_the_same_again(tmp_path: Path) -> None:
    """Each figure has its PNG; the same lines give the same bytes, so a picture changes in git only when a figure did."""
    file = tmp_path / "bench.jsonl"
    _lines(file)
    for name in ("first", "second"):
        (tmp_path / f"{name}.md").write_text("")
        assert main([str(file), "--into", str(tmp_path / f"{name}.md")]) == 0
    first, second = [{png.name: png.read_bytes() for png in (tmp_path / folder).iterdir()} for folder in ("first", "second")]
    assert set(first) == {f"{figure.name}.png" for figure in all_figures().values() if figure.draw is not None}
    assert all(content.startswith(b"\x89PNG") for content in first.values())
    assert first == second


def test_without_results_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without results there is no picture, and the exit code reports it."""
    (tmp_path / "bench.jsonl").touch()
    (tmp_path / "page.md").touch()
    assert main([str(tmp_path / "bench.jsonl"), "--into", str(tmp_path / "page.md")]) == 1
    assert "curve.png stays as it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("unfit", "reason"),
    [
        ({"others_share": 0.02}, "others took 2.0% of the machine"),
        ({"others_share": 0.5}, "others took 50.0% of the machine"),
        ({"others_share": None}, "others took an unknown share of the machine"),
        ({"commit": f"{COMMIT}-changed"}, "its tree had uncommitted changes"),
        ({"commit": None}, "it has no commit"),
    ],
)
def test_an_unfit_figure_is_not_published(tmp_path: Path, capsys: pytest.CaptureFixture[str], unfit: dict[str, Any], reason: str) -> None:
    """If others took 2 % of the machine, or the tree was no commit, the figure's tables and picture stay; the others are written."""
    quiet, busy, page = tmp_path / "quiet.jsonl", tmp_path / "busy.jsonl", tmp_path / "page.md"
    _lines(quiet)
    _lines(busy, **unfit)
    busy.write_text("".join([line for line in busy.read_text().splitlines(keepends=True) if '"figure": "curve"' in line]))
    page.write_text("<!-- figures: curve -->\nold\n<!-- end -->\n<!-- figures: apply -->\nold\n<!-- end -->\n")
    assert main([str(quiet), str(busy), "--into", str(page)]) == 1
    assert page.read_text().startswith("<!-- figures: curve -->\nold\n<!-- end -->\n<!-- figures: apply -->\n\n| case |")
    assert not (tmp_path / "page" / "curve.png").exists()
    assert (tmp_path / "page" / "overload.png").exists()
    message = capsys.readouterr().err
    assert "curve: not written; measure a commit again (`make bench ONLY=curve`)" in message
    assert f"case of curve, at 50%: {reason}\n" in message
    assert "--print" in message


def test_a_figure_that_no_page_has_is_not_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`raw` has neither table nor picture, so a busy machine spoils nothing on the page."""
    quiet, busy, page = tmp_path / "quiet.jsonl", tmp_path / "busy.jsonl", tmp_path / "page.md"
    _lines(quiet)
    _lines(busy, others_share=0.5, raw={"append_requests_per_s": 1.0})
    busy.write_text(busy.read_text().splitlines()[-1] + "\n")
    page.touch()
    assert main([str(quiet), str(busy), "--into", str(page)]) == 0
    assert "not written" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["peers", "limits", "long"])
def test_a_figure_with_a_command_of_its_own_names_no_other(name: str) -> None:
    """`make bench` does not measure it."""
    assert "make bench" not in refusal(name, [])


def test_a_busy_machine_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--print` shows all tables and writes nothing."""
    file, page = tmp_path / "bench.jsonl", tmp_path / "page.md"
    _lines(file, others_share=0.5)
    page.write_text("<!-- figures: apply -->\nold\n<!-- end -->\n")
    assert main([str(file), "--into", str(page), "--print"]) == 0
    assert "5,678" in capsys.readouterr().out
    assert "old" in page.read_text()
    assert not (tmp_path / "page").exists()
