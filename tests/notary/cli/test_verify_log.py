"""`notary verify-log`: the exit code of a verifier that has no result. `tests/spark/test_commands.py` runs it."""

import subprocess
from argparse import Namespace

import pytest

from notary.cli import verify_log


def test_a_killed_verifier_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If a signal ends the verifier, as when memory runs out, the exit code is 2, and the message names the signal."""
    monkeypatch.setattr(subprocess, "call", lambda command: -9)
    assert verify_log.run(Namespace(arguments=[])) == 2
    assert "signal 9 ended the verifier" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_verifiers_code_is_returned(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The exit code of the verifier is the command's."""
    monkeypatch.setattr(subprocess, "call", lambda command: code)
    assert verify_log.run(Namespace(arguments=[])) == code
