"""The error that this package raises, and the text that it prints for errors of Spark and Java."""

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException


class CouldNotVerify(Exception):
    """The command cannot be carried out, and there is no result about this log.

    The message states the obstacle, the value, and a remedy.
    """


def cause(problem: Py4JJavaError | PySparkException) -> str:
    """Returns one line for a failure in Spark: class and message of the innermost Java cause; without one, the error's first line."""
    found = getattr(problem, "java_exception", None) or getattr(problem, "_origin", None)
    if found is None:
        return str(problem).strip().partition("\n")[0]
    while (deeper := found.getCause()) is not None:
        found = deeper
    lines = str(found.getMessage()).strip().splitlines()
    # For a task that failed in Python the message is a traceback, and its last line is the error.
    return f"{found.getClass().getSimpleName()}: {lines[-1 if 'Traceback' in lines[0] else 0] if lines else ''}"
