"""One Spark session for all tests here, and one broker: they take seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_join.engine.session import open_session
from spark_join.log.client import jar_settings
from tests.spark.broker import Broker, one_broker

# Spark starts a process, `chmod`, for each file that it writes, and for its checksum's: here without another process in between to start
# it, and without checksums. And what a long session compiles is more than the 48 MiB that the first compiler has when it is alone: what is
# dropped then is compiled again and again.
JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",  # what is small needs no plan made anew
    # Nothing here runs long enough to be worth compiling. `test_command.py` runs as everyone does.
    "spark.driver.extraJavaOptions": JAVA,
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.autoBroadcastJoinThreshold": "10m",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    work: Path = tmp_path_factory.mktemp("spark")
    session = open_session(work, master="local[2]", memory="1g", settings=SMALL | jar_settings())
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with one_broker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
