"""The command as people run it: a process of its own, with Spark's own settings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from ordering.records import Checkpoint
from tests.checkers.replay import replay
from tests.joiner.history import NOTARY
from tests.spark.archived import archive
from tests.spark.exported import edited, exported
from tests.spark.test_verify import DECIDED, PARTITIONS, _honest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "spark_join", "verify", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _submitted(*arguments: object) -> "subprocess.CompletedProcess[str]":
    spark_submit = Path(pyspark.__file__).parent / "bin/spark-submit"
    settings = ["--master", "local[2]", "--driver-memory", "1g", "--conf", "spark.sql.shuffle.partitions=3"]
    command = [spark_submit, *settings, ROOT / "spark_join/__main__.py", "verify", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_clean_log(tmp_path: Path) -> None:
    """Exit code 0, the report with its numbers, no violation; each stage is told. So is a worker's index that is as the log says."""
    notary = _honest(tmp_path)
    parties = tmp_path / "parties.json"
    parties.write_text(json.dumps({notary.party.name: notary.party.public_pem.decode()}))
    folder = archive(notary.log.streams, tmp_path / "archive")
    export = exported(notary.index.directory, tmp_path / "export", notary.read)
    given = ["--archive", folder, "--parties", parties, "--index", export, "--out", tmp_path / "out"]
    done = _run(*given, "--master", "local[2]", "--memory", "1g")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    root = replay(notary.log.streams, NOTARY, PARTITIONS).root(DECIDED).hex()
    assert (report["decisions"], report["root"], report["violations"]) == (DECIDED, root, {})
    assert report["checkpoints"] == {"compared": 3, "passed_over": 1}
    assert report["ranges"]["ordering"] == {"0": [0, len(notary.log.streams[-1])]}
    assert report["signatures_checked"]
    assert report["exports"] == {str(export): DECIDED}
    assert {"entries that count", "contents", "decisions", "leaves"} <= report["stages_s"].keys()
    assert json.loads(done.stdout)["root"] == root
    assert "spark_join verify: decisions\n" in done.stderr
    again = _run("--archive", folder, "--out", tmp_path / "out")
    assert again.returncode == 2
    assert "has a report already" in again.stderr


def test_log_with_a_violation(tmp_path: Path) -> None:
    """Exit code 1, through `spark-submit` too, and a violation is a row of the Parquet files, with what it is found in."""
    notary = _honest(tmp_path)
    sound = exported(notary.index.directory, tmp_path / "sound", notary.read)
    changed = edited(sound, tmp_path / "export", decisions=lambda rows: rows[0].update(outcome=3))
    wrong = notary.log.ordering(Checkpoint(3, 1, bytes(32)))
    folder = archive(notary.log.streams, tmp_path / "archive")
    done = _submitted("--archive", folder, "--index", sound, "--index", changed, "--out", tmp_path / "out", "--quiet")
    assert done.returncode == 1, done.stderr
    row, of_export = pq.read_table(tmp_path / "out/violations").to_pylist()
    root = replay(notary.log.streams, NOTARY, PARTITIONS).root(1).hex()
    assert row == {
        "type": "root-mismatch",
        "position": 1,
        "offset": wrong.offset,
        "id": None,
        "found": "00" * 32,
        "expected": root,
        "source": "log",
    }
    id_ = replay(notary.log.streams, NOTARY, PARTITIONS).decisions[0]["transaction_id"]
    assert of_export == {
        "type": "wrong-outcome",
        "position": 0,
        "offset": None,
        "id": id_,
        "found": "outside-time-window",
        "expected": "committed",
        "source": str(changed),
    }
    assert json.loads((tmp_path / "out/report.json").read_text())["violations"] == {"root-mismatch": 1, "wrong-outcome": 1}


def test_what_cannot_be_verified(tmp_path: Path) -> None:
    """Exit code 2, one line that says why, and no report; the same from the notary's own command."""
    command = [sys.executable, "-m", "notary", "verify-log", "--archive", tmp_path, "--out", tmp_path / "out", "--memory", "1g"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"spark_join verify: {tmp_path} is no archive: there is no ranges/00000001.json\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/report.json").exists()
