"""Tests the benchmark command without brokers; only the presence of its figures is checked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.__main__ import main
from loadtest.bench.report import percentile

pytestmark = pytest.mark.seconds


ROOT = Path(__file__).parents[2]


def test_apply_writes_json_lines(tmp_path: Path) -> None:
    """`--only apply --quick` writes one JSON object a line, with figures, parameters and the machine."""
    out = tmp_path / "bench.jsonl"
    command = [sys.executable, "-m", "loadtest.bench", "--only", "apply", "--quick", "--out", str(out)]
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


def test_receipts_tell_what_each_stage_costs(tmp_path: Path) -> None:
    """`--only receipts` reports the cost of hashing, tree, signing and text per decision, and the tree's share of applying."""
    out = tmp_path / "bench.jsonl"
    assert main(["--only", "receipts", "--quick", "--out", str(out)]) == 0
    results = [json.loads(line)["figures"] for line in out.read_text().splitlines()]
    assert len(results) == 3
    for figures in results:
        stages = ("hash_us_per_decision", "tree_us_per_decision", "sign_us_per_decision", "text_us_per_decision")
        assert all(figures[stage] > 0 for stage in stages)
        assert 0 < figures["tree_share_of_apply"] < 1


def test_an_unknown_figure_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt `--only` measures nothing and lists the valid names."""
    with pytest.raises(SystemExit) as stopped:
        main(["--only", "everything"])
    assert stopped.value.code == 2
    assert "end-to-end" in capsys.readouterr().err


@pytest.mark.parametrize(("percent", "wanted"), [(50, 6), (99, 10), (0, 1)])
def test_percentile(percent: float, wanted: float) -> None:
    """A percentile is the lowest value that at least this share of the values does not exceed."""
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == wanted
