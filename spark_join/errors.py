"""What this room raises, and what it tells of what others raise."""

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException


class CouldNotVerify(Exception):
    """What was asked cannot be done, and nothing can be said of this log. The message says what stands in the way, which value, and what
    to do about it."""


def cause(problem: Py4JJavaError | PySparkException) -> str:
    """The first line of what Java says at the bottom of it."""
    found = getattr(problem, "java_exception", None) or getattr(problem, "_origin", None)
    if found is None:
        return str(problem).strip().partition("\n")[0]
    while (deeper := found.getCause()) is not None:
        found = deeper
    lines = str(found.getMessage()).strip().splitlines()
    # A task that failed in Python has a traceback for a message, and says what it is in its end.
    return f"{found.getClass().getSimpleName()}: {lines[-1 if 'Traceback' in lines[0] else 0] if lines else ''}"
