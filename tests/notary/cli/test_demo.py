"""`notary demo`, as a new user runs it."""

import json
import subprocess
import sys


def test_demo() -> None:
    """The demo plays to its end: a double spend is rejected, a retry and a killed worker change nothing, exit code 0."""
    done = subprocess.run([sys.executable, "-m", "notary", "demo", "--json"], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    paid, refused, again, still = [line for line in told if "position" in line]
    assert (paid["outcome"], paid["position"]) == ("committed", 0)
    assert (refused["outcome"], refused["reason"], refused["position"]) == ("rejected", "input-conflict", 1)
    assert again == paid
    assert still == refused
