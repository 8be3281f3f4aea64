"""The Spark session that everything here runs in."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_join.engine.java import java_home
from spark_join.errors import CouldNotVerify

ARROW_BYTES_MAX = 16 << 20
"""That go to Python at once: Spark itself counts records, and a payload record may have 8 MiB."""

LISTING_TASKS = 32

PARTITIONS_A_CORE = 4
"""Of each shuffle under a local master."""


def open_session(work: Path, *, master: str = "local[*]", memory: str = "2g", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session whose temporary files are in `work`. Under `spark-submit` what was given there stands; `master` and `memory` do nothing.

    `memory` is the driver's, which under a local master is everyone's, as Spark writes sizes.
    """
    submitted = _submitted()
    if submitted is None:
        os.environ.setdefault("JAVA_HOME", str(java_home(work / "java")))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the executors' Python must have what the driver's has
    chosen = {
        "spark.local.dir": str(work / "spark"),
        # Spark starts Python with -m, which would import from the working directory first.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES_MAX),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Files are named one by one. Spark would look for each of them in a task of its own, up to 10,000 of these.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(LISTING_TASKS),
        # Else each expression tells where in Python it was made, in four calls to the JVM.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
    }
    if submitted is None:
        chosen |= {"spark.master": master, "spark.driver.memory": memory}
        if master.startswith("local"):
            # Spark's own 200 are for clusters: here each would be a task of a few rows.
            partitions = str(PARTITIONS_A_CORE * (os.cpu_count() or 1))
            chosen |= {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": partitions,
            }
    builder = SparkSession.builder.appName("spark_join")
    for name, value in (chosen | dict(settings or {})).items():
        if submitted is None or not submitted.contains(name):
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def refuse_folder_of_its_own(master: str) -> None:
    """Raise `CouldNotVerify` where executors are on other machines: a temporary folder of this one they do not reach.

    `master` as for `open_session`; none is needed before.
    """
    submitted = _submitted()
    runs_at = master if submitted is None else submitted.get("spark.master", master)
    if not str(runs_at).startswith("local"):
        raise CouldNotVerify(
            f"the executors of {runs_at} do not reach a temporary folder of this machine, and each reads what others wrote: name a folder"
            " with --work that all of them and the driver reach"
        )


def _submitted() -> SparkConf | None:
    """What was given to the `spark-submit` that has started this process; None for a process that nothing but itself has started."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()  # until the JVM is reached Python knows nothing of it
    return SparkConf()
