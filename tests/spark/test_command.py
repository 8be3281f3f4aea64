"""The command as people run it: a process of its own, with Spark's own settings, on this machine and on a cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ordering.records import Checkpoint
from spark_join.archive import read_archive
from spark_join.exports import read_exports
from spark_join.report import write_report
from spark_join.stages import Stages
from spark_join.state import start
from spark_join.verify import verify
from tests.checkers.honest import Honest
from tests.checkers.replay import replay
from tests.joiner.history import NOTARY
from tests.spark.archived import archive, ends_of
from tests.spark.conftest import JAVA, SMALL
from tests.spark.exported import edited, exported
from tests.spark.standalone import HOME, MEMORY, cluster
from tests.spark.test_verify import DECIDED, PARTITIONS, _honest

VERIFY = (sys.executable, "-m", "spark_join", "verify")
LOCAL = ("--master", "local[2]", "--memory", "1g")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _run(folder: Path, command: Sequence[object], **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {JAVA}\n")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(folder), **environment}
    return subprocess.run([*map(str, command)], cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


class Clean(msgspec.Struct):
    """A log in which nothing is wrong, as it was verified."""

    notary: Honest
    archive: Path
    export: Path
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
    export = exported(notary.index.directory, folder / "export", notary.read)
    told = ["--archive", archived, "--index", export, "--parties", parties, "--out", out, "--keep-state"]
    return Clean(notary, archived, export, parties, out, _run(folder, [*VERIFY, *told, *LOCAL]))


def test_clean_log(clean: Clean, tmp_path: Path) -> None:
    """Exit code 0, the report with its numbers, no violation; each stage is told. So is a worker's index that is as the log says."""
    notary, done = clean.notary, clean.done
    assert done.returncode == 0, done.stderr
    report = json.loads((clean.out / "report.json").read_text())
    root = replay(notary.log.streams, NOTARY, PARTITIONS).root(DECIDED).hex()
    assert (report["decisions"], report["root"], report["violations"]) == (DECIDED, root, {})
    assert report["checkpoints"] == {"compared": 3, "passed_over": 1}
    assert report["ranges"]["ordering"] == {"0": [0, len(notary.log.streams[-1])]}
    assert report["signatures_checked"]
    assert report["exports"] == {str(clean.export): DECIDED}
    assert {"entries that count", "contents", "decisions", "leaf hashes"} <= report["stages_s"].keys()
    assert report["state_sha256"] == sha256((clean.out / "state/state.json").read_bytes()).hexdigest()
    assert json.loads(done.stdout)["root"] == root
    assert "spark_join verify: decisions\n" in done.stderr
    again = _run(tmp_path, [*VERIFY, "--archive", clean.archive, "--out", clean.out])
    assert again.returncode == 2
    assert "has a report already" in again.stderr


def test_violation_after_an_earlier_run(clean: Clean, tmp_path: Path) -> None:
    """Exit code 1: the violation is a row of the Parquet files, no state is kept."""
    log = deepcopy(clean.notary.log)
    wrong = log.ordering(Checkpoint(3, 1, bytes(32)))
    folder = archive(log.streams, tmp_path / "archive", ends=[ends_of(clean.notary.log.streams), ends_of(log.streams)])
    told = ["--archive", folder, "--checkpoint-from", clean.out, "--keep-state", "--out", tmp_path / "out", "--quiet"]
    done = _run(tmp_path, [*VERIFY, *told, *LOCAL])
    assert done.returncode == 1, done.stderr
    (row,) = pq.read_table(tmp_path / "out/violations").to_pylist()
    root = replay(log.streams, NOTARY, PARTITIONS).root(1).hex()
    named = {"type": "root-mismatch", "position": 1, "offset": wrong.offset, "id": None, "source": "log"}
    assert row == {**named, "found": "00" * 32, "expected": root}
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


def test_on_a_cluster(spark: SparkSession, tmp_path: Path) -> None:
    """`spark-submit` to a master with two workers: exit code 1 for a violation of the log and one of an index, and one machine's report."""
    notary = _honest(tmp_path)
    sound = exported(notary.index.directory, tmp_path / "sound", notary.read)
    changed = edited(sound, tmp_path / "export", decisions=lambda rows: rows[0].update(outcome=3))
    wrong = notary.log.ordering(Checkpoint(3, 1, bytes(32)))
    folder = archive(notary.log.streams, tmp_path / "archive")
    with cluster(tmp_path) as master:
        executors = {"spark.executor.memory": MEMORY, "spark.executor.extraJavaOptions": JAVA, "spark.executorEnv.PYTHONPATH": ROOT}
        settings = {**SMALL, **executors, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        told = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        submit = [HOME / "bin/spark-submit", "--master", master, "--driver-memory", "1g", *told, ROOT / "spark_join/__main__.py"]
        verify_ = [
            "verify",
            "--archive",
            folder,
            "--index",
            sound,
            "--index",
            changed,
            "--out",
            tmp_path / "out",
            "--work",
            tmp_path,
            "--quiet",
        ]
        done = _run(tmp_path, [*submit, *verify_], PYSPARK_PYTHON=sys.executable)
        assert done.returncode == 1, done.stderr
        assert all(list((tmp_path / "executors").glob("app-*/" + number)) for number in "01")
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
    log = read_archive(spark, folder)
    exports = read_exports(spark, [sound, changed])
    verified = verify(spark, log, start(spark), None, Stages(spark, tmp_path / "stages"), exports)
    here = write_report(tmp_path, log, verified, signatures=False, stages_s={}, state=start(spark), state_sha256=None)
    assert here["violations"] == {"root-mismatch": 1, "wrong-outcome": 1}
    there = json.loads((tmp_path / "out/report.json").read_text())
    assert {**there, "stages_s": {}} == here


def test_what_cannot_be_verified(tmp_path: Path) -> None:
    """Exit code 2, one line that says why, and no report; the same from the notary's own command."""
    command = [sys.executable, "-m", "notary", "verify-log", "--archive", tmp_path, "--out", tmp_path / "out", "--memory", "1g"]
    done = _run(tmp_path, command)
    assert done.returncode == 2
    assert f"spark_join verify: {tmp_path} is no archive: there is no ranges/00000001.json\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/report.json").exists()
