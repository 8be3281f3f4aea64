"""Fixtures: one Spark session and one broker for all tests of this folder, because each takes seconds to start."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_join import commands
from spark_join.engine import stages
from spark_join.engine.session import open_session
from spark_join.engine.stages import Stages
from spark_join.exports import read_exports
from spark_join.log.archive import read_archive
from spark_join.order.payloads import Keys
from spark_join.state import start
from spark_join.verify import Verified, verify
from tests.checkers.replay import RecordsByPartition
from tests.spark.archived import archive
from tests.spark.broker import Broker, one_broker

# Spark starts the process `chmod` for each file that it writes, and for its checksum's. Here it does so without another process in between,
# and without checksums. A long session also compiles more than the 48 MiB that the first compiler has when it is alone: code that is
# dropped then is compiled again and again.
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",  # small plans need no second optimization
    # Nothing here runs long enough to be worth compiling. One command of `test_commands.py` runs with the default settings.
    "spark.driver.extraJavaOptions": JAVA,
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.autoBroadcastJoinThreshold": "10m",
    # One task reads the rows that a plan contains, which are few. In the product this would give small files one task, too.
    "spark.sql.leafNodeDefaultParallelism": "1",
    # Nobody reads the texts of these plans, and Spark's own tests check its optimizer.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "100",
    "spark.sql.lightweightPlanChangeValidation": "false",
}
LARGE = {"spark.sql.shuffle.partitions": "2", "spark.sql.leafNodeDefaultParallelism": "2"}


def settings_folder(folder: Path) -> Path:
    """Create a folder for SPARK_CONF_DIR, with which another process runs Spark as the session of these tests does."""
    folder.mkdir()
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in SMALL.items()))
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work: Path = tmp_path_factory.mktemp("spark")
    session = open_session(work, master="local[2]", memory="1g", settings=SMALL)
    yield session
    session.stop()


@pytest.fixture
def as_large(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small logs are verified as large ones are: the results of all stages stay in files, and each shuffle has two partitions."""
    monkeypatch.setattr(stages, "SMALL_ROWS_MAX", -1)
    before = {name: str(spark.conf.get(name)) for name in LARGE}
    for name, value in LARGE.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture(autouse=True)
def _large_at_night(request: pytest.FixtureRequest) -> None:
    """Each test of the night that shares the session verifies its log as a large one."""
    if "spark" in request.fixturenames and request.node.get_closest_marker("nightly"):
        request.getfixturevalue("as_large")


def run_in(session: SparkSession, *words: object) -> int:
    """Runs a `spark_join` command line in that session, which stays open; returns the exit code."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commands, "open_session", lambda *_, **__: session)
        patched.setattr(SparkSession, "stop", lambda _: None)
        return commands.main([str(word) for word in words])


def verify_log(
    spark: SparkSession,
    folder: Path,
    by_partition: RecordsByPartition,
    keys: Keys,
    exports: Sequence[Path],
) -> Verified:
    """Verify a complete log, from an archive in `folder`, and compare it with these exports."""
    log = read_archive(spark, archive(by_partition, folder / "archive"))
    compared = read_exports(spark, exports) if exports else None
    return verify(spark, log, start(spark), keys, Stages(spark, folder / "stages"), compared)


@pytest.fixture
def command(spark: SparkSession) -> Callable[..., int]:
    """Returns a function that runs a `spark_join` command line in the shared session and returns its exit code.

    A process and a session of its own take half a minute of a core: `test_commands.py` has the tests that need them.
    """
    return partial(run_in, spark)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with one_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
