"""`notary submit`, from its arguments to its exit code, against workers on loopback."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from notary.cli import main
from payload import decode_submission
from tests.notary.cli.command import Command
from tests.notary.client.scripted import NAME, PARTY, VERIFIER_KEY, Notary, Worker, key_file, nobody, receipt_of, request, staged


@pytest.fixture
def key(tmp_path: Path) -> str:
    return key_file(tmp_path)


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Ten requests, a line each."""
    return write(tmp_path, [request(number) for number in range(10)])


def write(tmp_path: Path, requests: Sequence[Any]) -> str:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in requests))
    return str(path)


def command(file: str, key: str, urls: Sequence[str], *more: str) -> list[str]:
    return ["submit", file, "--key", key, "--party", PARTY, "--url", ",".join(urls), "--verifier-key", VERIFIER_KEY, *more]


@pytest.fixture
def submit(key: str, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `notary submit` with that key."""
    return Command(capfd, "submit", "--key", key, "--party", PARTY, "--verifier-key", VERIFIER_KEY)


def decisions(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def counts(worker: Worker) -> list[int]:
    """Returns the number of requests in each submission."""
    return [len(decode_submission(body, NAME).requests) for body in worker.bodies]


def test_decisions_with_receipts_in_the_order_of_the_requests(submit: Command, lines: str) -> None:
    """Each decision is a JSON line with its receipt, in the order of the file, for any order of the answers."""
    notary = Notary()
    worker = Worker(notary, ["503 overloaded", "reset", "202 some"])
    with staged(worker) as [url]:
        printed = decisions(submit.run(lines, "--url", url, "--batch", "3", "--in-flight", "4"))
    contents = [notary.decisions[each["transaction_id"]] for each in printed]
    assert [{name: each[name] for name in each if name != "receipt"} for each in printed] == contents
    assert [each["receipt"] for each in printed] == [receipt_of(content) for content in contents]
    order = [each.transaction_id.hex() for each in decode_submission(worker.bodies[0], NAME).requests]
    assert [each["transaction_id"] for each in printed[:3]] == order
    assert submit.err == "notary submit: 10 requests decided: 10 committed, 0 rejected\n"


@pytest.mark.parametrize("content", ["", "\n \n", "[]"])
def test_an_empty_file_is_an_error(submit: Command, tmp_path: Path, content: str) -> None:
    """Its producer failed, or its name is wrong: the error names the file, and a script detects it by the exit code."""
    file = tmp_path / "requests.jsonl"
    file.write_text(content)
    worker = Worker(Notary(), [])
    with staged(worker) as [url]:
        assert submit.run(str(file), "--url", url, code=2) == ""
    first, *_ = submit.err.splitlines()
    assert first == f"notary submit: {file} has no request: give one JSON object a line, or a JSON array of them"
    assert worker.bodies == []


def test_an_array_is_read_too(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with one JSON array over many lines works too, also when stdout is no file."""
    path = tmp_path / "requests.json"
    path.write_text("\n " + json.dumps([request(number) for number in range(3)], indent=2))
    with staged(Worker(Notary(), [])) as urls:
        assert main(command(str(path), key, urls, "--json", "--notary-name", NAME)) == 0
    assert [each["position"] for each in decisions(capsys.readouterr().out)] == [0, 1, 2]


def test_rejections_are_data_unless_they_are_to_fail(submit: Command, tmp_path: Path) -> None:
    """A double spend exits with 0, and with 1 under --fail-on-rejection; the decision is written in both cases."""
    file = write(tmp_path, [request(1), request(2, state=1)])
    with staged(Worker(Notary(), [])) as [url]:
        for flags, code in (([], 0), (["--fail-on-rejection"], 1)):
            printed = submit.run(file, "--url", url, *flags, code=code)
            assert [each["outcome"] for each in decisions(printed)] == ["committed", "rejected"]
            assert "2 requests decided: 1 committed, 1 rejected" in submit.err


def test_the_same_transaction_twice_is_decided_once(submit: Command, tmp_path: Path) -> None:
    """A file may repeat a request: both lines get the same decision, though one submission may not hold it twice."""
    with staged(Worker(Notary(), [])) as [url]:
        printed = submit.run(write(tmp_path, [request(1), request(1), request(2)]), "--url", url)
    assert [each["position"] for each in decisions(printed)] in ([0, 0, 1], [1, 1, 0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"inputs": ["x:0"], "content_hash": "' + "00" * 32 + '"}', "line 6, inputs[0]: expected a state reference"),
        ('{"inputs": []', "line 6: not JSON"),
        (
            "{",
            "line 6: not JSON: its 1 bytes end inside a value, or a string inside an escape;"
            " give each JSON object on a line of its own, or all in one JSON array",
        ),
        ("[]", "line 6: expected an object"),
        ('{"content_hash": "' + "00" * 32 + '", "color": 1}', "line 6: unknown member 'color'; leave it out"),
        ("x" * (2 * 1024 * 1024 + 1), "line 6: longer than 2097152 bytes"),
    ],
)
def test_a_bad_line_is_named(bad: str, message: str, submit: Command, tmp_path: Path) -> None:
    """A bad line is named, with the field; decisions of earlier submissions are written; exit 2."""
    requests: list[Any] = [request(number) for number in range(4)]
    with staged(Worker(Notary(), [])) as [url]:
        printed = submit.run(write(tmp_path, [*requests, "", bad, request(9)]), "--url", url, "--batch", "2", code=2)
    assert len(decisions(printed)) == 4
    assert f"requests.jsonl {message}" in submit.err
    assert "4 requests decided" in submit.err


def test_a_bad_item_of_an_array_is_named(submit: Command, tmp_path: Path) -> None:
    """In an array the error names the item, counted from 1; an unfinished array is reported."""
    path = tmp_path / "requests.json"
    with staged(Worker(Notary(), [])) as [url]:
        path.write_text(json.dumps([request(1), {**request(2), "content_hash": "x"}]))
        message = "requests.json item 2, content_hash: expected 64 lower-case hex digits, got 'x'"
        assert message in submit.refuses(path, "--url", url)
        path.write_text(json.dumps([request(1)])[:-1])
        assert "requests.json, a JSON array: not JSON" in submit.refuses(path, "--url", url)


def test_unknown_outcomes_are_named(submit: Command, lines: str) -> None:
    """At the deadline each request without an answer is listed with its id, and with the advice to run the command again; exit 2."""
    worker = Worker(Notary(), ["answer", "202 some"], then="503 not-ready 86400")
    with staged(worker) as [url]:
        printed = submit.run(lines, "--url", url, "--batch", "4", "--in-flight", "1", code=2)
        assert [each["position"] for each in decisions(printed)] == [0, 1, 2, 3, 4, 6]
        unknown = [line for line in submit.err.splitlines() if "outcome unknown" in line]
        assert [line.partition("requests.jsonl ")[2].partition(",")[0] for line in unknown] == ["line 6", "line 8"]
        assert decode_submission(worker.bodies[1], NAME).requests[1].transaction_id.hex() in unknown[0]
        for words in ("because of not-ready", "the same command again is safe", "6 requests decided: 6 committed, 0 rejected, 2 unknown"):
            assert words in submit.err
        # The same command again is safe: earlier decisions stay.
        worker.then = "answer"
        assert decisions(submit.run(lines, "--url", url, "--batch", "4"))[4]["position"] == 4


def test_a_rejection_stops_the_run(submit: Command, lines: str) -> None:
    """After a rejected submission no more is sent, earlier decisions are written, and the error is reported; exit 2."""
    worker = Worker(Notary(), ["answer"], then="403 bad-signature")
    with staged(worker) as [url]:
        printed = submit.run(lines, "--url", url, "--batch", "2", "--in-flight", "1", code=2)
    assert len(decisions(printed)) == 2
    assert counts(worker)[:2] == [2, 2]
    assert len(worker.bodies) <= 3
    assert "403 bad-signature: because of bad-signature" in submit.err
    assert "not admitted: " in submit.err
    assert "the written decisions are final: correct the cause, and run the command again" in submit.err  # the requests may be in order


def test_a_rejection_of_one_request_names_its_line(submit: Command, tmp_path: Path) -> None:
    """One rejected request is named by its line alone; no decisions are mentioned if none was written."""
    with staged(Worker(Notary(), [], then="403 bad-signature")) as [url]:
        submit.refuses(write(tmp_path, [request(0)]), "--url", url)
    assert re.search(r"not admitted: \S+ line 1$", submit.err, re.MULTILINE)
    assert "notary submit: correct the cause, and run the command again" in submit.err


def test_a_contradiction_is_reported_with_both_answers(submit: Command, lines: str) -> None:
    """Two decisions that contradict each other are written to stderr completely, as evidence; exit 2."""
    with staged(Worker(Notary(), ["202 some", "contradict"])) as [url]:
        submit.refuses(lines, "--url", url)
    for words in ("keep this as evidence", '"position":0', '"position":1000'):
        assert words in submit.err


def test_each_urls_failure_is_listed(submit: Command, lines: str) -> None:
    """Without a reachable URL the command lists each URL's failure; exit 2, and nothing on stdout."""
    with nobody() as url:
        assert submit.run(lines, "--url", url, "--deadline", "0.3", code=2) == ""
        assert f"no worker returned the notary's name: {url}: ConnectError" in submit.err
        assert "(Connection refused): is a worker running there?" in submit.err
        assert submit.run(lines, "--url", url, "--deadline", "0.3", "--notary-name", NAME, code=2) == ""
        assert "10 unknown" in submit.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--key": "missing.pem"}, "cannot read the key missing.pem: No such file or directory. Give the private key's PEM file"),
        ({"--url": "nonsense"}, "'nonsense' is not a notary's URL"),
        ({"--url": "http://me:secret@127.0.0.1:1"}, "the URL of '127.0.0.1' has a user name"),
        ({"--url": "http://h:99999"}, "'http://h:99999' has the port 99999: give one of 1 to 65535"),
        ({"--url": "http://h:0"}, "has the port 0"),
        ({"--url": f"http://{'a' * 64}.example"}, "is not a URL"),
        ({"--url": ","}, "no URL"),
        ({"--party": ""}, "the party's name"),
        ({"file": "missing.jsonl"}, "missing.jsonl cannot be read: No such file"),
        ({"file": "."}, ". cannot be read: Is a directory"),
        ({"--batch": "1001"}, "'1001' is not an integer from 1 to 1000"),
        ({"--in-flight": "0"}, "'0' is not an integer from 1 to 64"),
        ({"--deadline": "nan"}, "'nan' is not a number of seconds above 0"),
    ],
)
def test_bad_arguments_are_named_with_their_value(
    change: dict[str, str], message: str, key: str, lines: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bad arguments are named, with their value; exit 2."""
    given = {"--key": key, "--party": PARTY, "--url": "http://127.0.0.1:9", "file": lines, **change}
    argv = ["submit", given.pop("file"), *(word for pair in given.items() for word in pair)]
    try:
        code = main(argv)
    except SystemExit as problem:
        code = problem.code  # type: ignore[assignment]
    assert code == 2
    assert message in capfd.readouterr().err


def process(*argv: str, **more: Any) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "PYTHONWARNINGS": "error"}
    return subprocess.Popen([sys.executable, "-m", "notary", *argv], env=environment, stdout=subprocess.PIPE, **more)


@pytest.mark.seconds
def test_a_pipe_is_answered_before_it_ends(key: str) -> None:
    """With --batch 1 each line of a pipe is answered while the pipe stays open."""
    with (
        staged(Worker(Notary(), [])) as urls,
        process(*command("-", key, urls, "--batch", "1"), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        for number in range(3):
            running.stdin.write(json.dumps(request(number)).encode() + b"\n")
            running.stdin.flush()
            assert json.loads(running.stdout.readline())["position"] == number
        running.stdin.close()
        assert b"3 requests decided" in running.stderr.read()
        assert running.wait() == 0


@pytest.mark.seconds
@pytest.mark.parametrize("how", ["rejection", "interrupt"])
def test_a_silent_pipe_does_not_keep_the_command_from_ending(how: str, key: str) -> None:
    """While the command waits for a pipe, an error or Ctrl-C ends it cleanly, with exit 2."""
    worker = Worker(Notary(), [], then="403 bad-signature" if how == "rejection" else "answer")
    with (
        staged(worker) as urls,
        process(*command("-", key, urls, "--batch", "1"), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running,
    ):
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdin.write(json.dumps(request(1)).encode() + b"\n")
        running.stdin.flush()
        if how == "interrupt":
            running.stdout.readline()
            running.send_signal(signal.SIGINT)
        printed = running.stderr.read().decode()
        assert running.wait() == 2
        assert ("interrupted" if how == "interrupt" else "403 bad-signature") in printed
        assert "Traceback" not in printed
        assert "Fatal" not in printed


def test_an_interrupt_while_a_result_is_set(
    submit: Command, lines: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A signal handler may run between any two steps of a callback, for example of one that sets the result of a thread."""
    interrupted: list[Any] = []

    def set_result(source: Any, future: Any) -> None:
        """Sets the result as asyncio's own function does, and is interrupted if the command's first task awaits it."""
        if not future.done():
            first: Any = min(asyncio.all_tasks(), key=lambda task: int(task.get_name().removeprefix("Task-")))
            if first._fut_waiter is future:
                signal.raise_signal(signal.SIGINT)
                interrupted.append(future)
            future.set_result(source.result())

    monkeypatch.setattr(asyncio.futures, "_copy_future_state", set_result)
    with staged(Worker(Notary(), [])) as [url]:
        submit.run(lines, "--url", url, code=2)
    assert interrupted
    assert submit.err == "notary submit: interrupted\n"
    assert caplog.records == []


@pytest.mark.seconds
def test_a_reader_that_leaves_ends_the_command(key: str, tmp_path: Path) -> None:
    """If the reader of the output leaves, as `head` does, the command ends without a traceback."""
    file = write(tmp_path, [request(number) for number in range(200)])
    with staged(Worker(Notary(), [])) as urls, process(*command(file, key, urls, "--batch", "1"), stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert b"Traceback" not in running.stderr.read()
        assert running.wait() == 2


@pytest.mark.seconds
def test_progress_is_for_terminals(key: str, lines: str) -> None:
    """On a terminal a line of counts is rewritten in place, without colours, and cleared before the summary."""
    ours, theirs = pty.openpty()
    with staged(Worker(Notary(), [])) as urls:
        with process(*command(lines, key, urls, "--batch", "1"), stderr=theirs) as running:
            os.close(theirs)
            printed = b""
            try:
                while piece := os.read(ours, 4096):
                    printed += piece
            except OSError:  # Linux raises this when the other side is closed
                pass
        assert running.wait() == 0
    os.close(ours)
    assert b"\r1 requests decided: 1 committed, 0 rejected" in printed
    assert printed.endswith(b"\rnotary submit: 10 requests decided: 10 committed, 0 rejected\r\n")
    assert b"\x1b" not in printed


@pytest.mark.seconds
def test_a_file_larger_than_what_is_in_flight_is_streamed(submit: Command, tmp_path: Path) -> None:
    """Many submissions pass through a bounded number in flight; each request is sent once and answered once."""
    file = write(tmp_path, [request(number) for number in range(1000)])
    worker = Worker(Notary(), [])
    with staged(worker) as [url]:
        printed = submit.run(file, "--url", url, "--batch", "30", "--in-flight", "3")
    assert counts(worker) == [30] * 33 + [10]
    assert len({each["position"] for each in decisions(printed)}) == 1000
