"""Signals to a running worker: SIGHUP reads files again, SIGTERM drains, a second signal ends at once, with acceptor processes too."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loadtest.rig.machine import family
from tests.notary.http.checked_client import CheckedClient, Wire, post_head
from tests.notary.party import Bank, spend
from tests.notary.process import EXIT_S_MAX, NotaryDirectory, NotaryProcess, is_running, killed_at_the_end, wait_until

Start = Callable[..., NotaryProcess]

ACCEPTORS = pytest.mark.parametrize("acceptors", [2], ids=["acceptors"])
"""The worker itself does what it does alone, and its acceptor processes too."""
BOTH = pytest.mark.parametrize("acceptors", [0, 2], ids=["alone", "acceptors"])


def set_setting(directory: NotaryDirectory, line: str) -> None:
    """Write this line under `[worker]`, in place of an earlier one."""
    text = directory.config.read_text().partition("\n[worker]")[0]
    directory.config.write_text(f"{text}\n[worker]\n{line}\n")


@ACCEPTORS
def test_sighup_interrupts_nothing(own_directory: NotaryDirectory, bank: Bank, notary_process: Start, acceptors: int) -> None:
    """A SIGHUP to all processes of a busy worker, as from a closed terminal, interrupts no call and no process."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    processes = family([process.process.pid])
    assert len(processes) == 1 + acceptors
    with contextlib.ExitStack() as open_ones:
        wires = [open_ones.enter_context(Wire(process.url)) for _ in range(8)]
        for wire in wires:
            body = bank.body(*(spend() for _ in range(200)))
            wire.send(post_head(len(body), "Prefer: wait=60") + body)
        for pid in processes:
            os.kill(pid, signal.SIGHUP)
        assert [wire.answer()[0] for wire in wires] == [200] * len(wires)
    with CheckedClient(process.url) as client:
        client.decide(bank, spend())
    assert family([process.process.pid]) == processes
    assert process.stop() == 0


@ACCEPTORS
def test_sighup_reads_the_log_level_again(own_directory: NotaryDirectory, notary_process: Start, acceptors: int) -> None:
    """The log level in the file now applies to the worker and to its acceptor processes, also to those that it starts later."""
    set_setting(own_directory, 'log_level = "error"')
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    assert process.stderr() == ""
    set_setting(own_directory, 'log_level = "info"')
    process.signal(signal.SIGHUP)
    other = Bank("O=Bank B,L=Paris,C=FR")
    own_directory.register(other)
    wait_until(lambda: process.stderr().count("parties=2") == 1 + acceptors)
    for killed in family([process.process.pid])[1:]:
        os.kill(killed, signal.SIGKILL)
    wait_until(lambda: process.stderr().count("parties=2") == 1 + 2 * acceptors)
    assert process.stop() == 0


@ACCEPTORS
def test_sighup_reads_the_parties_at_once(own_directory: NotaryDirectory, notary_process: Start, acceptors: int) -> None:
    """A problem with the parties file is logged at each signal; without a signal it is logged once."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    (own_directory.path / "parties.json").write_text("garbage")
    for times in (1, 2, 3):
        process.signal(signal.SIGHUP)
        # The regular checks of the worker and the processes may have come first.
        wait_until(lambda least=times * (1 + acceptors): process.stderr().count("the present parties stay in use") >= least)  # type: ignore[misc]
    assert process.stop() == 0


@ACCEPTORS
def test_sighup_names_what_is_for_a_start(own_directory: NotaryDirectory, notary_process: Start, acceptors: int) -> None:
    """Another changed setting is named, a bad configuration is reported, and the worker continues with its settings."""
    process = notary_process(own_directory.config, settings={"HTTP_ACCEPTOR_PROCESSES": acceptors})
    set_setting(own_directory, "drain_ms_max = 7")
    process.signal(signal.SIGHUP)
    wait_until(lambda: "setting=worker.drain_ms_max" in process.stderr())
    assert process.stderr().count("setting=") == 1
    set_setting(own_directory, "drain_ms_max = ")
    process.signal(signal.SIGHUP)
    wait_until(lambda: "the new log level is rejected, the present one stays in use" in process.stderr())
    assert httpx.get(process.url + "/readyz", trust_env=False, timeout=60).text == "ok\n"
    assert process.stop() == 0


HANGING = """
import asyncio
import sys
from pathlib import Path
from notary.cli import main
from ordering.embedded import EmbeddedWriter
append = EmbeddedWriter.append
async def append_or_hang(self, *record):
    if Path(sys.argv[-1]).with_name("hang").exists():
        await asyncio.get_running_loop().create_future()
    await append(self, *record)
EmbeddedWriter.append = append_or_hang
sys.exit(main(sys.argv[1:]))
"""
"""A worker on a disk that hangs as soon as there is a file `hang` beside the configuration."""


@BOTH
@pytest.mark.seconds
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(
    own_directory: NotaryDirectory, bank: Bank, tmp_path: Path, acceptors: int, second: signal.Signals
) -> None:
    """A draining worker that cannot make progress is ended by the next signal, with its acceptor processes."""
    settings = {
        "NOTARY_HTTP_ACCEPTOR_PROCESSES": str(acceptors),
        "NOTARY_WORKER_DRAIN_MS_MAX": "600000",
        "NOTARY_WORKER_APPEND_WAIT_MS_MAX": "600000",
    }
    command = [sys.executable, "-c", HANGING, "serve", "--json", "--listen", "127.0.0.1:0", "--config", str(own_directory.config)]
    with (tmp_path / "stderr").open("w") as stderr:
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=os.environ | settings)
    with killed_at_the_end(worker):
        assert worker.stdout is not None
        url = json.loads(worker.stdout.readline())["url"]
        processes = family([worker.pid])
        (own_directory.path / "hang").touch()
        with Wire(url) as wire:
            body = bank.body(spend())
            wire.send(post_head(len(body), "Prefer: wait=600") + body)
            with CheckedClient(url) as client:
                wait_until(lambda: client.metric("notary_pending_requests") == 1)
            worker.send_signal(signal.SIGTERM)
            wait_until(lambda: "answering the admitted submissions" in (tmp_path / "stderr").read_text())
            assert worker.poll() is None
            worker.send_signal(second)
            assert worker.wait(EXIT_S_MAX) == -second
            wait_until(lambda: not any(is_running(pid) for pid in processes))
