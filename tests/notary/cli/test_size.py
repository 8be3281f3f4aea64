"""`notary size` compared with the tables of docs/performance.md, from which its numbers come, by the formulas of the bench."""

import re
from pathlib import Path

import pytest

from loadtest.bench.figures.stages import workers_full_at
from loadtest.bench.report import ResultLine
from notary.cli.size import FILTER_BYTES, IN_ORDER_US, PARALLEL_US, ROCKSDB_US, Load, Size, size_of
from notary.index import IndexSettings
from ordering.errors import ConfigurationError
from tests.notary.cli.command import Command

PERFORMANCE = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()


def _rows(figures: str) -> list[list[str]]:
    table = PERFORMANCE.split(f"<!-- figures: {figures} -->")[1].split("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table.splitlines() if line.startswith("|")]


def _load(case: str, tps: float = 10_000) -> Load:
    found = re.match(r"([\d,]+) a submission, ([\d,]+) inputs?, 1 broker", case)
    assert found is not None, case
    per_submission, inputs = (int(number.replace(",", "")) for number in found.groups())
    return Load(tps, inputs, per_submission)


def _size(tps: float, inputs: int, per_submission: int) -> Size:
    """Returns the size for a load that never pauses."""
    return size_of(Load(tps, inputs, per_submission), tps)


def _number(cell: str) -> float:
    return float(cell.replace(",", ""))


def _stages() -> dict[str, dict[str, float]]:
    """Returns the published CPU microseconds a request, by case and stage."""
    (_, _, *cases), _, *rows = _rows("stages")
    return {case: {stage: _number(cells[at]) for stage, _, *cells in rows if stage} for at, case in enumerate(cases)}


def test_cores_of_a_worker_are_those_of_the_table() -> None:
    """CPU of parallel work and of work in order, for 10,000 requests a second, match within a tenth and a twentieth of a core."""
    for case, _, parallel, in_order, *_ in _rows("cores")[2:]:
        load = _load(case)
        assert load.cost(PARALLEL_US) * 0.01 == pytest.approx(float(parallel), rel=0.1, abs=0.05)
        assert load.cost(IN_ORDER_US) * 0.01 == pytest.approx(float(in_order), rel=0.1, abs=0.05)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_workers_are_full_where_the_stages_of_the_main_thread_fill_a_core(workers: int) -> None:
    """The rate is that of the bench's formula, by the table of stages: all but RocksDB's threads run on the main thread."""
    for case, us in _stages().items():
        figures = {"cpu_s_per_1000": {stage: each / 1_000 for stage, each in us.items()}, "beside_cpu_s_per_1000": {}}
        rate, _ = workers_full_at(ResultLine("stages", case, figures, {}, {}, ""), workers)
        assert _load(case).full_at(workers) == pytest.approx(rate, rel=0.1), case


def test_threads_of_rocksdb_need_cores_of_their_own() -> None:
    """They take what the page has for a load with a flush of four inputs, no less than the table, and do not count for the main thread."""
    seen = {case: us["native threads"] for case, us in _stages().items()}
    with_a_flush = re.search(r"had 0 and (\d+) µs a request in RocksDB's threads", PERFORMANCE)
    assert with_a_flush is not None
    for case, us in seen.items():
        load = _load(case)
        assert load.cost(ROCKSDB_US) >= 0.9 * us
        assert load.worker_us(2) == load.main_thread_us(2) + load.cost(ROCKSDB_US)
        if load.inputs == 4:
            assert load.cost(ROCKSDB_US) == pytest.approx(float(with_a_flush[1]), rel=0.15)


def test_more_of_anything_takes_more() -> None:
    """A larger load never needs less of anything; a larger submission never more."""
    small, large = _size(1_000, 4, 1), _size(6_000, 4, 1)
    assert large.workers > small.workers == 3
    assert large.cores > small.cores
    assert large.log_gib_a_year == pytest.approx(6 * small.log_gib_a_year, rel=0.01)
    assert _size(6_000, 4, 100).workers < large.workers
    assert _size(1_000, 8, 1).index_gib_a_year > small.index_gib_a_year


def test_bloom_filters_have_the_bits_of_the_index() -> None:
    """A request of three inputs has four keys in filters."""
    assert Load(1, 3, 1).cost(FILTER_BYTES) == 4 * IndexSettings().bloom_bits_per_key / 8


def test_a_centre_may_be_gone() -> None:
    """The workers of two centres carry the load."""
    for tps in (1_000, 5_000, 6_000):
        assert _size(tps, 4, 1).left_full_at_tps > tps


def test_more_than_any_number_of_workers_can() -> None:
    """Every worker decides everything, so there is a maximum rate, which the error names."""
    with pytest.raises(ConfigurationError, match="more than any number of workers can decide"):
        _size(100_000, 4, 1)


def test_the_command_prints_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is lines, or JSON with --json; disks are computed from the mean rate."""
    size = Command(capsys, "size")
    assert "three centres" in size.run("--tps", 10_000, "--inputs", 4, "--per-submission", 10)
    found = size.json("--tps", 1_000, "--mean-tps", 100)
    assert found["log_gib_a_year"] == pytest.approx(_size(100, 4, 1).log_gib_a_year, rel=0.01)


@pytest.mark.parametrize("flags", ["--tps 0", "--tps nan", "--tps 10 --inputs 0", "--tps 10 --per-submission 1001", "--tps 1 --mean-tps 2"])
def test_a_bad_number_is_named_with_its_flag(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the flag and the value."""
    assert flags.split()[-2] in Command(capsys, "size").refuses(*flags.split())
