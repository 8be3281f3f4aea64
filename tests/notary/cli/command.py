"""A command of `notary` that a test runs in its own process."""

import json
from pathlib import Path
from typing import Any

import pytest

from notary import cli


class Command:
    """Runs a command, some words of which stay the same, and returns its output."""

    def __init__(self, captured: pytest.CaptureFixture[str], *words: object, config: Path | None = None) -> None:
        self._captured, self._words = captured, words
        self._config = [] if config is None else ["--config", config]
        self.err = ""

    def run(self, *words: object, code: int = 0) -> str:
        """Run it with these words; it should exit with that code. Returns its stdout; `err` is its stderr."""
        self._captured.readouterr()
        found = cli.main([str(word) for word in (*self._words, *words, *self._config)])
        out, self.err = self._captured.readouterr()
        assert found == code, out + self.err
        return out

    def refuses(self, *words: object, code: int = 2) -> str:
        """Run it where it should fail. Returns its stderr."""
        self.run(*words, code=code)
        return self.err

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        """Run it with `--json`. Returns its object."""
        printed: dict[str, Any] = json.loads(self.run(*words, "--json", code=code))
        return printed
