"""Tests the report about a worker's CPU time: all of it is attributed, and to the right stages."""

import io
import json
from pathlib import Path

import pytest

from loadtest.bench.end_to_end import Case
from loadtest.bench.report import Report
from loadtest.bench.stages import measure
from loadtest.bench.stages.places import CALLED_FROM, INTAKE, PLACES, SERIAL, STAGES, place_of

pytestmark = pytest.mark.seconds

ROOT = Path(__file__).parents[2]
LOOKS_MIN = 30
"""Samples of a worker's CPU time. On a busy machine a second of load has fewer."""


def test_the_stages_of_a_real_worker_add_up() -> None:
    """Under a load every stage of a request has some time, and their sum is the kernel's figure for the process."""
    figures, seconds = {"looks": 0}, 0.5
    with measure.watched(None) as watched:
        while figures["looks"] < LOOKS_MIN:
            lines, seconds = io.StringIO(), 2 * seconds
            measure.measure(Report(lines, io.StringIO()), watched, Case(20, 2), seconds, 1)
            result = json.loads(lines.getvalue())
            assert not result["failed"]
            figures = result["figures"]
    spent = figures["cpu_s_per_1000"]
    assert list(spent) == list(STAGES)
    # With so many samples the longest stages are certain to be seen.
    assert spent["index"] > 0
    assert spent["verify"] > 0
    assert len([stage for stage, cpu_s in spent.items() if cpu_s > 0]) > 5
    assert spent["other"] < sum(spent.values()) / 10
    # The kernel counts in hundredths of a second, of less than one second.
    assert sum(spent.values()) == pytest.approx(figures["worker_cpu_s_per_1000"], rel=0.25)


@pytest.mark.parametrize(
    ("file", "function", "stage"),
    [
        ("notary/http/app.py", "take", "http"),
        ("notary/http/in_flight.py", "_answer", "answer"),
        ("notary/index/index.py", "apply", "index"),
        ("notary/index/tiles.py", "append", "tree"),
        ("notary/something/new.py", "f", "other"),
        ("joiner/core.py", "step", "join"),
        ("ordering/records.py", "decode", None),
        ("asyncio/tasks.py", "wait", None),
    ],
)
def test_places(file: str, function: str, stage: str | None) -> None:
    """A function's own line takes precedence over its file's, a file's over its folder's; a library without one counts for its caller."""
    assert place_of(file, function) == stage


def test_every_place_is_there() -> None:
    """Every line of the table names existing code; one about moved code would have no effect."""
    for place, stage in PLACES.items():
        file, _, function = place.partition(":")
        assert stage is None or stage in STAGES
        if file.startswith("aiokafka"):
            continue
        assert (ROOT / file).exists(), place
        assert not function or f"def {function}(" in (ROOT / file).read_text(), place
    assert {*INTAKE, *SERIAL, *CALLED_FROM.values()} <= set(STAGES)
