"""A standalone Spark cluster: a master and workers, from the distribution in the package pyspark."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from spark_join.engine.session import java_home

HOME = Path(pyspark.__file__).parent
MEMORY = "512m"
"""The memory of each executor; Spark needs at least 450 MiB."""
_CLASS = "org.apache.spark.deploy"
_PORTS = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
_WAIT_S = 120


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Yields the URL of a master with two workers, which have one core each. Logs and executors' files are in `folder`."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(java_home(folder / "java")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    environment.pop("PYTHONPATH", None)  # the command under test passes everything that executors need

    with contextlib.ExitStack() as stack:

        def start(name: str, *arguments: str) -> Path:
            log = folder / f"{name}.log"
            with log.open("w") as out:
                command = [str(HOME / "bin/spark-class"), *arguments]
                process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=folder)
            stack.callback(_stop, process)
            return log

        (master,) = _said(start("master", f"{_CLASS}.master.Master", *_PORTS), r"Starting Spark master at (spark://\S+)")
        shape = ["--cores", "1", "--memory", MEMORY, "--work-dir", str(folder / "executors")]
        logs = [start(f"worker-{number}", f"{_CLASS}.worker.Worker", *_PORTS, *shape, master) for number in (0, 1)]
        for log in logs:
            _said(log, r"Successfully registered with master (\S+)")
        yield master


def _said(log: Path, pattern: str) -> tuple[str, ...]:
    give_up_at = time.monotonic() + _WAIT_S
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < give_up_at, f"no {pattern!r} in {log.read_text()}"
        time.sleep(0.1)
    return found.groups()


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a worker in order, so that it ends its executors."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
