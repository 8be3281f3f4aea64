"""`notary verify-log`: the exit code of a verifier that has no result. `tests/spark/test_commands.py` runs it."""

import subprocess
from argparse import Namespace

import pytest

from notary.cli import verify_log


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (2, 2), (-9, 2)])
def test_the_verifiers_code_is_returned(
    code: int, expected: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code of the verifier is the command's. If a signal ends it, as when memory runs out, that is a failure with a message."""
    monkeypatch.setattr(subprocess, "call", lambda command: code)
    assert verify_log.run(Namespace(arguments=[])) == expected
    assert ("signal 9 ended the verifier" in capsys.readouterr().err) == (code < 0)
