"""Tests that Spark gets a Java that its launcher can start, and that a failure in Spark is one line."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_join.engine.session import cause, java_home

POOR = """#!/bin/sh
case "$1" in
  -version) echo 'openjdk version "21.0.4"' >&2 ;;
  --list-modules) echo java.base@21.0.4 ;;
  *) printf '<%s>' "$@" ;;
esac
"""


def _java(folder: Path, script: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(script)
    java.chmod(0o755)
    return folder


@pytest.mark.seconds
def test_argument_that_a_java_does_not_know_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java without the vector module, such as the wheel's, runs without that argument; all other arguments stay the same."""
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path / "a java", POOR)))
    home = java_home(tmp_path / "wrapped")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "-Dx=--add-modules=jdk.incubator.vector", "Main", "*"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said == "<-cp><a b><><-Dx=--add-modules=jdk.incubator.vector><Main><*>"


@pytest.mark.seconds
def test_complete_java_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that has the module is used as it is."""
    complete = _java(tmp_path / "java", POOR.replace("java.base@21.0.4", "jdk.incubator.vector@21.0.4"))
    monkeypatch.setenv("JAVA_HOME", str(complete))
    assert java_home(tmp_path / "wrapped") == complete.resolve()
    assert not (tmp_path / "wrapped").exists()


class _JavaError:
    """A Java exception as Py4J shows it, with its class."""

    def __init__(self, message: str, cause: "_JavaError | None" = None) -> None:
        self._message, self._cause = message, cause

    def getCause(self) -> "_JavaError | None":  # noqa: N802 - Java's name
        return self._cause

    def getMessage(self) -> str:  # noqa: N802 - Java's name
        return self._message

    def getClass(self) -> Any:  # noqa: N802 - Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802 - Java's name
        return "PythonException"


FAILED_TASK = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/x/salvage.py", line 75, in _item
    position.to_bytes(8, "big")
OverflowError: int too big to convert
 SQLSTATE: 38000"""


@pytest.mark.seconds
def test_failed_task_is_named_by_its_error() -> None:
    """The line about a task that failed in Python ends with the error of Python, not with Spark's code for all such errors."""
    problem = PySparkException("Job aborted")
    problem._origin = _JavaError("Job aborted", _JavaError(FAILED_TASK))  # type: ignore[attr-defined]
    assert cause(problem) == "PythonException: OverflowError: int too big to convert"
