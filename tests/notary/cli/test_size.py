"""`notary size` compared with the tables of docs/performance.md, from which its numbers come."""

import json
import re
from pathlib import Path

import pytest

from notary.cli import main
from notary.cli.size import Load, size_of
from ordering.errors import ConfigurationError

PERFORMANCE = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()


def _rows(figures: str) -> list[list[str]]:
    table = PERFORMANCE.split(f"<!-- figures: {figures} -->")[1].split("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines() if line.startswith("|")]


def _load(case: str, tps: float = 10_000) -> Load:
    found = re.match(r"([\d,]+) a submission, ([\d,]+) inputs?, 1 broker", case)
    assert found is not None, case
    per_submission, inputs = (int(number.replace(",", "")) for number in found.groups())
    return Load(tps, inputs, per_submission)


def _number(cell: str) -> float:
    return float(cell.removesuffix("/s").replace(",", ""))


def test_cores_of_a_worker_are_those_of_the_table() -> None:
    """CPU of parallel work, of work in order and in total, for 10,000 requests a second, match within a tenth and a twentieth of a core."""
    for case, cores, parallel, in_order, *_ in _rows("cores")[2:]:
        load = _load(case)
        assert load.worker_us(1) * 0.01 == pytest.approx(float(cores), rel=0.1, abs=0.05)
        assert load.parallel_us * 0.01 == pytest.approx(float(parallel), rel=0.1, abs=0.05)
        assert load.in_order_us * 0.01 == pytest.approx(float(in_order), rel=0.1, abs=0.05)


def test_where_workers_are_full_is_that_of_the_table() -> None:
    """The maximum rate matches within a fifth for 4 inputs: the main thread's share varies by that much."""
    head, _, *rows = _rows("workers")
    for workers, *cells in rows:
        for name, cell in zip(head[1:3], cells[:2], strict=False):
            if "4 inputs" in name:
                assert _load(name).full_at(int(workers)) == pytest.approx(_number(cell), rel=0.2), (name, workers)


def test_more_of_anything_takes_more() -> None:
    """A larger load never needs less of anything; a larger submission never more."""
    small, large = size_of(Load(1_000, 4, 1)), size_of(Load(8_000, 4, 1))
    assert large.workers > small.workers == 3
    assert large.cores > small.cores
    assert large.log_gib_a_year == pytest.approx(8 * small.log_gib_a_year, rel=0.01)
    assert size_of(Load(8_000, 4, 100)).workers < large.workers
    assert size_of(Load(1_000, 8, 1)).index_gib_a_year > small.index_gib_a_year


def test_a_centre_may_be_gone() -> None:
    """The workers of two centres carry the load."""
    for tps in (1_000, 5_000, 8_000):
        assert size_of(Load(tps, 4, 1)).left_full_at_tps > tps


def test_more_than_any_number_of_workers_can() -> None:
    """Every worker decides everything, so there is a maximum rate, which the error names."""
    with pytest.raises(ConfigurationError, match="more than any number of workers can decide"):
        size_of(Load(100_000, 4, 1))


def test_the_command_prints_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is lines, or JSON with --json; disks are computed from the mean rate."""
    assert main(["size", "--tps", "10000", "--inputs", "4", "--per-submission", "10"]) == 0
    assert "three centres" in capsys.readouterr().out
    assert main(["size", "--tps", "1000", "--mean-tps", "100", "--json"]) == 0
    size = json.loads(capsys.readouterr().out)
    assert size["log_gib_a_year"] == pytest.approx(size_of(Load(100, 4, 1)).log_gib_a_year, rel=0.01)


@pytest.mark.parametrize(
    "flags",
    [
        ["--tps", "0"],
        ["--tps", "nan"],
        ["--tps", "10", "--inputs", "0"],
        ["--tps", "10", "--per-submission", "1001"],
        ["--tps", "1", "--mean-tps", "2"],
    ],
)
def test_a_bad_number_is_named_with_its_flag(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the flag and the value."""
    assert main(["size", *flags]) == 2
    assert flags[-2] in capsys.readouterr().err
