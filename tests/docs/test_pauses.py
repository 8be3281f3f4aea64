"""Tests that a failed test is repeated after a pause of its process, and only then."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.seconds

PAUSED = """
import os, subprocess, time
from pathlib import Path
def test_passes_in_its_second_run():
    runs = Path(__file__).with_suffix(".runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    if len(runs.read_text()) == 1:
        subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 1.5; kill -CONT {os.getpid()}"]).wait()
    assert len(runs.read_text()) == 2
"""
BROKEN = "def test_broken():\n    assert False\n"
CONFTEST = "from tests.pauses import Repeating\ndef pytest_configure(config):\n    config.pluginmanager.register(Repeating())\n"


@pytest.mark.parametrize(("text", "code", "repeated"), [(PAUSED, 0, True), (BROKEN, 1, False)], ids=["paused", "broken"])
def test_a_failure_counts_unless_the_machine_paused(tmp_path: Path, text: str, code: int, repeated: bool) -> None:
    """A test that fails while its process is paused runs again, and the summary says so. Any other failure counts."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(text)
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("REPEATED test_one.py::test_passes_in_its_second_run: the machine paused for " in done.stdout) is repeated
