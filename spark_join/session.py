"""The Spark session that everything here runs in."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from spark_join.java import java_home

ARROW_BYTES_MAX = 16 << 20
"""That go to Python at once: Spark itself counts records, and a payload record may have 8 MiB."""


def open_session(
    work: Path, *, master: str = "local[*]", memory: str = "2g", progress: bool = False, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session whose temporary files are in `work`. Under `spark-submit` its settings stand, and `master` and `memory` do nothing.

    `memory` is the driver's, which under a local master is everyone's, as Spark writes sizes. `progress`: Spark's bar of stages on stderr.
    """
    os.environ.setdefault("JAVA_HOME", str(java_home(work / "java")))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the executors' Python must have what the driver's has
    chosen = {
        "spark.driver.memory": memory,
        "spark.local.dir": str(work / "spark"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(progress).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES_MAX),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        **(settings or {}),
    }
    if master.startswith("local"):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName("spark_join").master(master)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
