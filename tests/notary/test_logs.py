"""Log lines as JSON: one object a line, with every field as a member, from a worker's start to its end."""

import json
import logging
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from notary import logs
from tests.notary.http.checked_client import CheckedClient
from tests.notary.party import Bank, spend
from tests.notary.process import EXIT_S_MAX, NotaryDirectory, NotaryProcess, serve

Start = Callable[..., NotaryProcess]


def lines_of(text: str) -> list[dict[str, Any]]:
    """Returns every line, after checking that each is an object with the common members."""
    found = [json.loads(line) for line in text.splitlines()]
    for line in found:
        at = datetime.fromisoformat(line["time"])
        assert at.utcoffset() is not None
        assert len(line["time"].partition(".")[2].partition("+")[0]) == 3, "milliseconds"
        assert line["level"] in ("debug", "info", "warning", "error", "critical")
        assert line["logger"]
        assert line["message"]
    return found


# ---- the formatter ----


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Returns a function that logs a line and reads it back."""
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logs._JsonFormatter())
    logger = logging.getLogger("tests.logs")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)

    def log(text: str, *given: object) -> dict[str, Any]:
        logger.error(text, *given)
        (line,) = lines_of(out.getvalue())
        out.seek(0)
        out.truncate()
        return {name: value for name, value in line.items() if name not in ("time", "level", "logger")}

    return log


def test_values_that_orjson_rejects_are_text() -> None:
    """A number of more than 64 bits, and a file name that is no Unicode, are members as text: no line is lost."""
    record = logging.LogRecord("notary", logging.ERROR, "", 0, "parties read file=%s requests=%d", ("a\udcff", 1 << 64), None)
    (line,) = lines_of(logs._JsonFormatter().format(record))
    assert (line["message"], line["file"], line["requests"]) == ("parties read", "a\\udcff", str(1 << 64))


@pytest.mark.parametrize(
    ("text", "given", "line"),
    [
        ("parties read file=%s parties=%d", (Path("/a b"), 3), {"message": "parties read", "file": "/a b", "parties": 3}),
        ("waits, requests=%d", (7,), {"message": "waits", "requests": 7}),
        ("%s partition=%d offset=%d: %s", ("bad", -1, 2, "x=1"), {"message": "bad: x=1", "partition": -1, "offset": 2}),
        ("lost: limit_s=%g", (2.5,), {"message": "lost", "limit_s": 2.5}),
        ("late limit_s=%g", (float("nan"),), {"message": "late", "limit_s": "nan"}),
        ("process %s ended with %d, again", ("w/1", -9), {"message": "process w/1 ended with -9, again"}),
        ("100%% of x=%s", ("y",), {"message": "100% of", "x": "y"}),
        ("no fields: 5%", (), {"message": "no fields: 5%"}),
        ("stopped: %s", ("a=1 b=2",), {"message": "stopped: a=1 b=2"}),
        ("one name=%s, name=%s", ("a", "b"), {"message": "one name=a, name=b"}),
        ("time=%s", ("now",), {"message": "time=now"}),
        ("two\nlines of=%s", ("a\nb",), {"message": "two\nlines", "of": "a\nb"}),
    ],
)
def test_fields_are_members(logged: Callable[..., dict[str, Any]], text: str, given: tuple[object, ...], line: dict[str, Any]) -> None:
    """A `name=%…` of the format becomes a member, and a number stays a number; text inside a value never becomes a field."""
    assert logged(text, *given) == line


# ---- a worker ----


def test_the_log_lines_of_a_worker(own_directory: NotaryDirectory, bank: Bank, notary_process: Start) -> None:
    """A worker from its start to its end: every line is an object, and each event is logged once."""
    process = notary_process(own_directory.config, flags=["--log-format", "json"], settings={"HTTP_ACCEPTOR_PROCESSES": 1})
    assert process.ready_line == f"notary worker worker-1 ready at {process.url}\n"
    with CheckedClient(process.url) as client:
        client.decide(bank, spend())
    process.signal(signal.SIGHUP)
    process.signal(signal.SIGTERM)
    assert process.process.wait(EXIT_S_MAX) == 0
    process.check_quiet()
    returned = lines_of(process.stderr())
    of = {line["message"]: line for line in returned}
    assert (of["registered"]["worker"], of["registered"]["incarnation"]) == ("worker-1", 1)
    assert of["parties read"]["parties"] == 1
    # An acceptor process reads the parties by itself.
    assert Counter((line["logger"], line["message"]) for line in returned if line["message"] != "parties read").most_common(1)[0][1] == 1


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("broken", "content", "message", "how"),
    [
        ("parties.json", "garbage", "should be a JSON object of party name", "file"),
        *(("notary.toml", "name = ", "is not TOML", how) for how in ("flag", "variable")),
    ],
)
def test_the_reason_for_not_starting(own_directory: NotaryDirectory, broken: str, content: str, message: str, how: str) -> None:
    """An error that ends a worker before it serves is logged once, in JSON, for each way to select JSON; also one of the configuration."""
    (own_directory.path / broken).write_text(content)
    if how == "file":
        with own_directory.config.open("a") as config:
            config.write('\n[worker]\nlog_format = "json"\n')
    flags = ["--log-format", "json"] if how == "flag" else []
    process = serve(own_directory.config, flags=flags, settings={"WORKER_LOG_FORMAT": "json"} if how == "variable" else {})
    _, stderr = process.communicate(timeout=EXIT_S_MAX)
    assert process.returncode == 2
    (line,) = [each for each in lines_of(stderr) if each["level"] == "error"]
    assert message in line["message"]


FAILING = """
import asyncio
import sys
import threading
import warnings
from notary.cli import main
from notary.parties import Parties
class Unruly:
    def __del__(self): raise ValueError("unraisable")
async def fail(self):
    warnings.warn("deprecated")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    Unruly()
    asyncio.get_running_loop().call_soon(lambda: {}["nobody catches it"])
    await asyncio.sleep(0.1)
    raise KeyError("pos")
Parties.follow = fail
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.seconds
def test_what_python_would_print_is_in_the_lines(own_directory: NotaryDirectory) -> None:
    """Warnings, and errors of threads, callbacks and finalizers, are each logged in one line with their traceback."""
    command = [sys.executable, "-W", "default", "-c", FAILING, "serve", "--config", str(own_directory.config), "--listen", "127.0.0.1:0"]
    done = subprocess.run([*command, "--log-format", "json"], capture_output=True, text=True, check=False, timeout=EXIT_S_MAX)
    assert done.returncode == 2, done.stderr
    returned = lines_of(done.stderr)
    for word in ("UserWarning: deprecated", "ZeroDivisionError", "unraisable", "nobody catches it", "KeyError('pos')"):
        assert len([line for line in returned if word in line["message"] or word in line.get("exception", "")]) == 1, word
