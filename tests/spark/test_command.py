"""The command as people run it: a process of its own, with Spark's own settings."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pyspark
import pytest

from ordering.records import Checkpoint
from tests.checkers.honest import Honest
from tests.checkers.replay import replay
from tests.joiner.history import NOTARY
from tests.spark.archived import archive, ends_of
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


class Clean(msgspec.Struct):
    """A log in which nothing is wrong, as it was verified."""

    notary: Honest
    archive: Path
    parties: Path
    out: Path
    done: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    notary = _honest(folder)
    parties, out = folder / "parties.json", folder / "out"
    parties.write_text(json.dumps({notary.party.name: notary.party.public_pem.decode()}))
    archived = archive(notary.log.streams, folder / "archive")
    settings = ["--keep-state", "--master", "local[2]", "--memory", "1g"]
    return Clean(notary, archived, parties, out, _run("--archive", archived, "--parties", parties, "--out", out, *settings))


def test_clean_log(clean: Clean) -> None:
    """Exit code 0, the report with its numbers, no violation; each stage is told."""
    notary, done = clean.notary, clean.done
    assert done.returncode == 0, done.stderr
    report = json.loads((clean.out / "report.json").read_text())
    root = replay(notary.log.streams, NOTARY, PARTITIONS).root(DECIDED).hex()
    assert (report["decisions"], report["root"], report["violations"]) == (DECIDED, root, {})
    assert report["checkpoints"] == {"compared": 3, "passed_over": 1}
    assert report["ranges"]["ordering"] == {"0": [0, len(notary.log.streams[-1])]}
    assert report["signatures_checked"]
    assert {"entries that count", "contents", "decisions", "leaf hashes"} <= report["stages_s"].keys()
    assert report["state_sha256"] == sha256((clean.out / "state/state.json").read_bytes()).hexdigest()
    assert json.loads(done.stdout)["root"] == root
    assert "spark_join verify: decisions\n" in done.stderr
    again = _run("--archive", clean.archive, "--out", clean.out)
    assert again.returncode == 2
    assert "has a report already" in again.stderr


def test_log_with_a_violation(clean: Clean, tmp_path: Path) -> None:
    """Exit code 1, through `spark-submit` and from an earlier run too: the violation is a row of the Parquet files, no state is kept."""
    log = deepcopy(clean.notary.log)
    wrong = log.ordering(Checkpoint(3, 1, bytes(32)))
    folder = archive(log.streams, tmp_path / "archive", ends=[ends_of(clean.notary.log.streams), ends_of(log.streams)])
    done = _submitted("--archive", folder, "--checkpoint-from", clean.out, "--keep-state", "--out", tmp_path / "out", "--quiet")
    assert done.returncode == 1, done.stderr
    (row,) = pq.read_table(tmp_path / "out/violations").to_pylist()
    root = replay(log.streams, NOTARY, PARTITIONS).root(1).hex()
    assert row == {"type": "root-mismatch", "position": 1, "offset": wrong.offset, "id": None, "found": "00" * 32, "expected": root}
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (report["violations"], report["state_sha256"]) == ({"root-mismatch": 1}, None)
    assert (report["decisions"], report["outcomes"]["committed"]) == (DECIDED, 0)
    assert report["ranges"]["ordering"] == {"0": [wrong.offset, wrong.offset + 1]}
    before = json.loads((clean.out / "report.json").read_text())
    assert report["continued_from"] == {
        "ordering_offset": wrong.offset,
        "decisions": DECIDED,
        "root": before["root"],
        "signatures_checked": True,
    }
    assert not (tmp_path / "out/state").exists()


def test_what_cannot_be_verified(tmp_path: Path) -> None:
    """Exit code 2, one line that says why, and no report; the same from the notary's own command."""
    command = [sys.executable, "-m", "notary", "verify-log", "--archive", tmp_path, "--out", tmp_path / "out", "--memory", "1g"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"spark_join verify: {tmp_path} is no archive: there is no ranges/00000001.json\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/report.json").exists()
