"""Tests the command as users run it: in a process of its own, with Spark's default settings, on this machine and on a cluster.

Its findings about a log do not depend on that: those tests run it in the shared session.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from notary.archive.archived import ArchivedLog
from ordering.log import ORDERING
from spark_join.arguments import parser
from spark_join.commands import main
from tests.clients.party import spend, state
from tests.planted import Planted
from tests.spark.archived import archive
from tests.spark.conftest import JAVA, SMALL
from tests.spark.exported import export_of
from tests.spark.standalone import HOME, MEMORY, cluster
from tests.spark.test_verify import DECIDED, honest, lose_an_entry
from tests.spark.writing import Writer

ROOT = Path(__file__).parents[2]
MOVED = "aside/ordering/partition=0/00000002.parquet"
UNLISTED = "payload/partition=0/00000009-x-0.parquet"
VERIFY = [sys.executable, "-P", "-m", "spark_join", "verify"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def _run(folder: Path, command: Sequence[object], cwd: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    (folder / "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {JAVA}\n")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(folder), **environment}
    return subprocess.run([*map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True, check=False)


def _submitted(folder: Path, master: str, executors: Mapping[str, object], *arguments: object) -> "subprocess.CompletedProcess[str]":
    settings = {**SMALL, **executors, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    returned = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = [HOME / "bin/spark-submit", "--master", master, "--driver-memory", "1g", *returned, ROOT / "spark_join/__main__.py"]
    return _run(folder, [*submit, "verify", *arguments], PYSPARK_PYTHON=sys.executable)


class Clean(msgspec.Struct):
    """A log without violations, and its verification."""

    writer: Writer
    archive: Path
    export: Path
    parties: Path
    out: Path
    planted: Planted
    done: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    folder = tmp_path_factory.mktemp("clean")
    writer = honest()
    parties, out = folder / "parties.json", folder / "out"
    parties.write_text(json.dumps({writer.party.name: writer.party.public_pem.decode()}))
    longer = deepcopy(writer)
    longer.batch(3, 0, spend(state("archived in a range that is lost")))
    archived = archive(longer.log.by_partition, folder / "archive", ends=[writer.ends, longer.ends])
    (archived / "ranges/00000002.json").unlink()
    lost = archived / MOVED
    lost.parent.mkdir(parents=True)
    (archived / "ordering/partition=0/00000002.parquet").rename(lost)
    (archived / UNLISTED).write_bytes(b"half")
    export = export_of(writer.replayed, folder / "export", writer.last.offset + 1)
    settings = ["--index", export, "--parties", parties, "--keep-state", "--master", "local[2]", "--memory", "1g"]
    planted = Planted(folder / "planted")
    done = _run(folder, [*VERIFY, "--archive", archived, "--out", out, *settings], planted.folder)
    return Clean(writer, archived, export, parties, out, planted, done)


def test_a_clean_log_has_a_complete_report(clean: Clean, capsys: pytest.CaptureFixture[str]) -> None:
    """A clean log gives exit code 0, a report without violations, a line per stage, and one about files that no range lists.

    These are a crash's leftover and files of a lost range, which alone show that the log went on, in their folders or elsewhere.
    The report includes a worker's index that agrees with the log.
    """
    writer, done = clean.writer, clean.done
    assert done.returncode == 0, done.stderr
    report = json.loads((clean.out / "report.json").read_text())
    root = writer.replayed.root(DECIDED).hex()
    assert (report["decisions"], report["root"], report["violations"]) == (DECIDED, root, {})
    assert report["checkpoints"] == {"compared": 3, "not_compared": 0, "skipped": 1}
    assert {reason: each["records"] for reason, each in report["skipped"].items()} == {"incarnation": 1, "sequence": 1}
    assert report["notary"] == "O=Notary,L=London,C=GB"
    assert report["log_id"] == json.loads(done.stdout)["log_id"] == writer.replayed.log_id.hex()
    assert report["archive"] == {"ranges": 1, "sha256": ArchivedLog(clean.archive).digest(1)}
    assert report["ranges"]["ordering"] == {"0": [0, len(writer.log.by_partition[ORDERING])]}
    assert report["signatures_checked"]
    assert (report["undecided_entries"], report["undecided_because"]) == (0, None)
    assert report["exports"] == {str(clean.export): {"decisions": DECIDED, "violations": {}}}
    assert f">{clean.export}</td>" in (clean.out / "report.html").read_text()
    assert {"effects", "contents", "decisions", "leaf hashes"} <= report["stages_s"].keys()
    assert report["state_sha256"] == sha256((clean.out / "state/state.json").read_bytes()).hexdigest()
    assert json.loads(done.stdout)["root"] == root
    assert root in (clean.out / "report.html").read_text()
    assert "spark_join verify: decisions\n" in done.stderr
    unlisted = [UNLISTED, MOVED, *(str(file.relative_to(clean.archive)) for file in clean.archive.glob("payload/*/00000002.parquet"))]
    assert f"no range lists {len(unlisted)} of the files in {clean.archive}, {min(unlisted)} first" in report["unlisted"]
    assert json.loads(done.stdout)["unlisted"] == report["unlisted"]
    assert f"spark_join verify: {report['unlisted']}" in done.stderr
    assert main(["verify", "--archive", str(clean.archive), "--out", str(clean.out)]) == 2
    assert "has a report already" in capsys.readouterr().err


def test_nothing_is_imported_from_the_working_directory(clean: Clean) -> None:
    """Modules that are planted in the working directory are imported neither by the command nor by Spark's Python processes."""
    assert clean.done.returncode == 0, clean.done.stderr
    assert clean.planted.imported == []


@pytest.mark.nightly
def test_a_cluster_reports_what_one_machine_does(clean: Clean, tmp_path: Path) -> None:
    """On a master with two workers the report equals that of one machine; each worker ran an executor."""
    with cluster(tmp_path) as master:
        executors = {"spark.executor.memory": MEMORY, "spark.executor.extraJavaOptions": JAVA, "spark.executorEnv.PYTHONPATH": ROOT}
        given = [
            "--archive",
            clean.archive,
            "--index",
            clean.export,
            "--parties",
            clean.parties,
            "--out",
            tmp_path / "out",
            "--work",
            tmp_path,
        ]
        done = _submitted(tmp_path, master, executors, *given)
        assert done.returncode == 0, done.stderr
        assert all(list((tmp_path / "executors").glob("app-*/" + number)) for number in "01")
    here, there = (json.loads((out / "report.json").read_text()) for out in (clean.out, tmp_path / "out"))
    differ: dict[str, Any] = {"stages_s": {}, "state_sha256": None, "verified_at": None}
    assert {**there, **differ} == {**here, **differ}


def test_log_with_a_violation(clean: Clean, tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """A violation gives exit code 1, also from an earlier run: it is a row of the Parquet files, and no state is kept.

    Records behind a hole, which are not decided, are reported.
    """
    writer = deepcopy(clean.writer)
    wrong = writer.checkpoint(3, 1, bytes(32))
    entry, _, _ = writer.send(3, 1, spend(state("on")), spend(state("its way")))
    hole = entry()
    folder = archive(writer.log.by_partition, tmp_path / "archive", ends=[clean.writer.ends, writer.ends])
    given = ["--archive", folder, "--checkpoint-from", clean.out, "--keep-state", "--out", tmp_path / "out", "--quiet"]
    assert command("verify", *given) == 1
    (row,) = pq.read_table(tmp_path / "out/violations").to_pylist()
    root = writer.replayed.root(1).hex()
    named = {"type": "root-mismatch", "position": 1, "offset": wrong.offset, "id": None, "source": "log"}
    assert row == {**named, "found": "00" * 32, "expected": root, "offset_last": None, "records": None}
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert (report["violations"], report["state_sha256"]) == ({"root-mismatch": 1}, None)
    assert (report["decisions"], report["outcomes"]["committed"]) == (DECIDED, 0)
    assert report["ranges"]["ordering"] == {"0": [wrong.offset, hole.offset + 1]}
    assert (report["undecided_from_offset"], report["undecided_entries"], report["undecided_requests"]) == (hole.offset, 1, 2)
    assert report["undecided_because"] == "no payload of batch (3, 2) is in payload partition 1"
    printed = capsys.readouterr().err
    assert f"from ordering offset {hole.offset} on, 1 entries with 2 requests: no payload of batch (3, 2)" in printed
    before = json.loads((clean.out / "report.json").read_text())
    earlier = clean.out / "report.json"
    assert report["continued_from"] == {
        "report": str(earlier),
        "report_sha256": sha256(earlier.read_bytes()).hexdigest(),
        "ordering_offset": wrong.offset,
        "decisions": DECIDED,
        "root": before["root"],
        "signatures_checked": True,
    }
    assert not (tmp_path / "out/state").exists()
    shown = (tmp_path / "out/report.html").read_text()
    assert f">{earlier}</td>" in shown
    assert ">root-mismatch</text>" in shown
    assert "so of no time" not in shown, "no batch came since, so the page has no times at all"


@pytest.mark.nightly
def test_a_settled_log_is_built_on(tmp_path: Path, command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """A log that lost a record, and whose history the owner has settled since, has no violation; the next run continues from it."""
    writer = honest()
    end = lose_an_entry(writer)
    writer.log.settle()
    first = writer.ends
    writer.batch(4, 0, spend(state("the next night")))
    monday, tuesday = (archive(writer.log.by_partition, tmp_path / str(len(ends)), ends) for ends in ([first], [first, writer.ends]))
    assert command("verify", "--archive", monday, "--out", tmp_path / "monday", "--keep-state") == 0
    printed = capsys.readouterr().err
    assert "spark_join verify: 6 records of 2 writers had another history; the owner declared this history valid (settle record)" in printed
    report = json.loads((tmp_path / "monday/report.json").read_text())
    assert (report["violations"], report["settled"]["writers"], report["settled"]["records"]) == ({}, 2, 6)
    shown = report["settled"]["shown"]
    assert [(each["offset"], each["offset_last"], each["records"]) for each in shown] == [(end - 6, end - 2, 3), (end - 5, end - 1, 3)]
    assert shown[0]["found"].endswith(f"; incarnation 3 wrote 3 such records, the last at offset {end - 2}")
    assert shown[0]["expected"].endswith(f"; the last that agreed is at offset {end - 7}")
    assert "Settled differences" in (tmp_path / "monday/report.html").read_text()
    assert command("verify", "--archive", tuesday, "--checkpoint-from", tmp_path / "monday", "--out", tmp_path / "tuesday") == 0
    later = json.loads((tmp_path / "tuesday/report.json").read_text())
    assert (later["violations"], later["settled"]) == ({}, {"writers": 0, "records": 0, "shown": []})
    assert (later["decisions"], later["root"]) == (report["decisions"] + 1, writer.replayed.root(report["decisions"] + 1).hex())


def test_what_cannot_be_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that cannot be verified gives exit code 2, one line with the reason, and no report; so does the notary's own command."""
    command = [sys.executable, "-m", "notary", "verify-log", "--archive", tmp_path, "--out", tmp_path / "out", "--memory", "1g"]
    done = _run(tmp_path, command)
    assert done.returncode == 2
    assert f"spark_join verify: {tmp_path} is no archive: there is no ranges/00000001.json\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/report.json").exists()
    for option, value in (("--prefix", "other"), ("--prefix", ""), ("--kafka-config", "none"), ("--kafka-option", "a=b")):
        assert main(["verify", "--archive", str(tmp_path), "--out", str(tmp_path / "out"), option, value]) == 2
        assert "an archive is read without brokers" in capsys.readouterr().err
    combined = ["--archive", tmp_path, "--out", tmp_path / "out", "--index", tmp_path, "--checkpoint-from", tmp_path]
    assert main(["verify", *map(str, combined)]) == 2
    assert "leave --checkpoint-from out where there is an --index" in capsys.readouterr().err
    done = _submitted(tmp_path, "spark://127.0.0.1:1", {}, "--archive", tmp_path, "--out", tmp_path / "out")  # knows spark-submit's flags
    assert done.returncode == 2
    assert "the executors of spark://127.0.0.1:1 do not reach a temporary folder of this machine" in done.stdout + done.stderr


def test_messages_cannot_command_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text from a hostile archive is escaped, and makes no second line."""
    (tmp_path / "ranges").mkdir()
    range_ = {"archive_version": 2, "payload_partitions": 1, "files": [], "\x1b[2J\u202e\nspark_join verify: clean": 1}
    (tmp_path / "ranges/00000001.json").write_text(json.dumps(range_))
    assert main(["verify", "--archive", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert "\\u001b[2J\\u202e\\u000aspark_join" in shown
    assert shown.removesuffix("\n").isprintable()


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ("ModuleNotFoundError('no', name='pyspark')", "pyspark is not installed: pip install"),
        ("ImportError('libarrow.so: cannot open shared object file')", "libarrow.so: cannot open shared object file"),
    ],
    ids=["missing", "damaged"],
)
def test_without_sparks_packages_the_exit_code_is_2(tmp_path: Path, problem: str, shown: str) -> None:
    """Missing or damaged packages give exit code 2 and the reason: 1 would mean violations. `--help` works, also by `notary`."""
    (tmp_path / "pyspark.py").write_text(f"raise {problem}\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = _run(tmp_path, [*VERIFY, "--archive", tmp_path, "--out", tmp_path / "out"], PYTHONPATH=path)
    assert done.returncode == 2
    assert shown in done.stderr
    done = _run(tmp_path, [sys.executable, "-m", "notary", "verify-log", "--help"], PYTHONPATH=path)
    assert done.returncode == 0
    assert "--checkpoint-from DIR" in done.stdout


def test_folders_are_those_of_this_process(tmp_path: Path) -> None:
    """Relative folders become absolute, because executors have working directories of their own."""
    chosen = parser().parse_args(["verify", "--archive", "a", "--out", "b", "--index", "c", "--checkpoint-from", "d", "--work", "e"])
    named = [chosen.archive, chosen.out, *chosen.index, chosen.checkpoint_from, chosen.work]
    assert named == [Path.cwd() / name for name in "abcde"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--master", "nonsense"), ("--memory", "lots"), ("--memory", "10m"), ("--memory", "g"), ("--memory", "511m"), ("--memory", "")],
)
def test_an_argument_that_spark_does_not_take_is_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark itself would print a stack trace, or a message that names neither the argument nor the value."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["verify", "--archive", "a", "--out", "b", option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {value!r} should be" in capsys.readouterr().err


@pytest.mark.parametrize(
    "value", ["local", "local[*]", "local[4]", "local-cluster[2,1,1024]", "spark://h:7077", "k8s://https://h:443", "yarn"]
)
def test_sparks_masters_are_taken(value: str) -> None:
    """Each form of Spark's documentation."""
    assert parser().parse_args(["verify", "--archive", "a", "--out", "b", "--master", value, "--memory", "2Gb"]).master == value


def test_a_malformed_properties_file_is_named(command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path of Windows has backslashes, which escape characters there."""
    file = tmp_path / "client.properties"
    file.write_text("ssl.truststore.location=C:\\users\\auditor\\ca.pem\n")
    assert command("verify", "--bootstrap", "127.0.0.1:9", "--kafka-config", file, "--out", tmp_path / "out", "--quiet") == 2
    assert f"--kafka-config {file} is no properties file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [("security.protocol", "should be NAME=VALUE"), ("=SSL", "should be NAME=VALUE"), ("acks=all", "acks would change nothing: it takes")],
)
def test_an_option_without_effect_is_refused(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    """A properties file may be of other tools too, but an option is for this command."""
    assert command("verify", "--bootstrap", "127.0.0.1:9", "--kafka-option", option, "--out", tmp_path / "out", "--quiet") == 2
    assert message in capsys.readouterr().err


def test_a_folder_with_a_comma_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark would write into several folders, also into the working directory."""
    log = archive(Writer().log.by_partition, tmp_path / "archive")
    work = tmp_path / "disk 1,big"
    work.mkdir()
    assert main(["verify", "--archive", str(log), "--out", str(tmp_path / "out"), "--work", str(work)]) == 2
    assert f"Spark takes {work} for several folders" in capsys.readouterr().err
    assert not any(work.iterdir())
