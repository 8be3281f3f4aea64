"""The error and the exit codes of all commands. This module imports nothing of Spark, so `__main__` can use it where Spark is missing."""

from typing import Final

CLEAN: Final = 0
"""The verifier found no violation, or the log was archived or restored."""
VIOLATED: Final = 1
"""The verifier found violations."""
COULD_NOT: Final = 2
"""The command failed, or there is no result; stderr has the reason."""


def visible(text: str) -> str:
    """Spells out control and direction characters, which could make a text look like another text, or command a terminal."""
    return "".join([each if each.isprintable() else f"\\u{ord(each):04x}" for each in text])


class CouldNotVerify(Exception):
    """The command cannot be carried out, and there is no result about this log.

    The message states the obstacle, the value, and a remedy.
    """
