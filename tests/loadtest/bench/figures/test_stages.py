"""Tests the report about a worker's CPU time: all of it is attributed, and to the right stages."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

from loadtest.bench.figures.stages import measure, sampled
from loadtest.bench.loads import Case
from loadtest.bench.report import Report
from loadtest.bench.sampler import Sampler, StageMap
from loadtest.bench.stage_map import CALLED_FROM, CODE, PARALLEL, SERIAL, STAGES, stage_map
from notary.gate import Gate
from notary.http.in_flight import InFlight

pytestmark = pytest.mark.seconds

ROOT = Path(__file__).parents[4]
LOOKS_MIN = 100
"""Samples of a worker's CPU time. On a busy machine a second of load has fewer."""


def test_the_stages_of_a_real_worker_add_up() -> None:
    """Under a load every stage of a request has some time, and their sum is the kernel's figure for the process."""
    figures: dict[str, Any] = {"looks": 0}
    seconds = 0.5
    with sampled(0) as notary:
        while figures["looks"] < LOOKS_MIN:
            lines, seconds = io.StringIO(), 2 * seconds
            measure(Report(lines, io.StringIO()), notary, Case(20, 2), seconds, 1)
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
        ("notary/http/app.py", "App.take", "http"),
        ("notary/index/index.py", "Index.apply", "index"),
        ("notary/index/tiles.py", "Tiles.append", "tree"),
        ("notary/something/new.py", "f", "other"),
        ("joiner/core.py", "Joiner.step", "join"),
        ("ordering/records.py", "decode", None),
        ("asyncio/tasks.py", "wait", None),
    ],
)
def test_the_most_exact_line_counts(file: str, function: str, stage: str | None) -> None:
    """A module's own line takes precedence over its package's; a library without one counts for its caller."""
    assert StageMap(**stage_map()).of_function(file, function) == stage


@pytest.mark.parametrize(("code", "file"), [(AIOKafkaClient.send, "aiokafka/client.py"), (Gate.admit, "notary/gate.py")])
def test_libraries_may_be_installed_in_the_checkout(code: Callable[..., Any], file: str, tmp_path: Path) -> None:
    """A library's code counts for the library, also if its directory is below the notary's, as with `.venv`."""
    sampler = Sampler(tmp_path / "accounts", StageMap(**stage_map()))
    assert sampler.file_of(code.__code__) == file


def test_a_function_takes_precedence_over_its_module() -> None:
    """A frame of a function that has a line counts for that line, as the sampler finds it: by file and qualified name."""
    stages = StageMap(**stage_map())
    for code, stage in ((InFlight._answer.__code__, "answer"), (Gate.admit.__code__, "verify")):
        assert stages.of_function(str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname) == stage


def test_every_stage_exists() -> None:
    """All lines of the map name stages that the table of results has."""
    assert {stage for stage in CODE.values() if stage is not None} <= set(STAGES)
    assert {*PARALLEL, *SERIAL, *[stage for _, _, stage in CALLED_FROM]} <= set(STAGES)
