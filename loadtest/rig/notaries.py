"""Notaries under test, and the processes of loads: brokers, workers and loads are processes of their own, and all of them end here.

`make` and `worker` run a notary as its users do: `notary init`, `notary party add`, `notary serve`. `brokers_of` and `workers_on` give the
system under test for the length of a block; `run_module` runs a load and returns its result.
"""

import contextlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec

from deploy.local import Cluster
from deploy.local.process import tied
from loadtest.rig.generate import party_key_pem
from loadtest.rig.machine import environment, family
from loadtest.rig.progress import progress
from loadtest.rig.signing import NOTARY, PARTY

READY_S_MAX = 60.0
STOP_S_MAX = 40.0
COMMAND_S_MAX = 120.0


class Service(msgspec.Struct, frozen=True):
    """One running worker."""

    url: str
    pid: int


def make(directory: Path, bootstrap: str | None, topic_prefix: str, *options: str, parties: Sequence[str] = (PARTY,)) -> Path:
    """Create a notary with these parties registered, and no worker yet; returns its configuration. `options` are for `notary init`."""
    log = ["--kafka", bootstrap, "--topic-prefix", topic_prefix] if bootstrap else []
    notary("init", str(directory), "--name", NOTARY, "--origin", "bench.example/notary", *log, *options)
    key = directory / "party.pem"
    config = directory / "notary.toml"
    for party in parties:
        key.write_bytes(party_key_pem(party))
        notary("party", "add", party, "--public-key", str(key), "--config", str(config))
    return config


def verifier_key(config: Path) -> str:
    """Returns the notary's verifier key, from the operator and not from a worker."""
    return str(msgspec.json.decode(notary("key", "show", "--config", str(config), "--json"))["verifier_key"])


@contextlib.contextmanager
def worker(config: Path, name: str, added: Mapping[str, str] | None = None, *, ready_s_max: float = READY_S_MAX) -> Iterator[Service]:
    """Yields a running worker of that name for the length of a block; `added` is added to its environment."""
    log_file = config.parent / f"{name}.log"
    with log_file.open("wb") as errors:
        process = subprocess.Popen(
            [*tied(), *_COMMAND, "serve", "--config", str(config), "--name", name, "--listen", "127.0.0.1:0", "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment() | dict(added or {}),
            start_new_session=True,  # a Ctrl-C is for the parent process, which then stops this one in order
        )
    try:
        yield Service(_url_of(process, log_file, ready_s_max), process.pid)
    finally:
        _stop(process, log_file)


def notary(*arguments: str) -> str:
    """Run one short command; returns its output. Raises `RuntimeError` when it fails, with its error output, or does not end."""
    try:
        done = subprocess.run(
            [*_COMMAND, *arguments], capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False, env=environment()
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"notary {arguments[0]} did not end within {COMMAND_S_MAX:g} s") from None
    if done.returncode:
        raise RuntimeError(f"notary {arguments[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


_COMMAND = [sys.executable, "-P", "-m", "notary"]


def _url_of(worker: "subprocess.Popen[bytes]", log_file: Path, ready_s_max: float) -> str:
    assert worker.stdout is not None
    readable, _, _ = select.select([worker.stdout], [], [], ready_s_max)
    line = worker.stdout.readline() if readable else b""
    if not line:
        why = f"ended with {worker.wait(5)}" if readable else f"was not ready after {ready_s_max:g} s"
        raise RuntimeError(f"notary serve {why}: {_tail(log_file)}")
    return str(msgspec.json.decode(line)["url"])


def _stop(worker: "subprocess.Popen[bytes]", log_file: Path) -> None:
    started = time.monotonic()
    worker.terminate()
    try:
        code = worker.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        worker.kill()
        code = worker.wait(10)
    if worker.stdout is not None:
        worker.stdout.close()
    if code:
        progress(f"notary serve ended with {code} after {time.monotonic() - started:.1f} s: {_tail(log_file)}")


def _tail(log_file: Path) -> str:
    return " / ".join(log_file.read_text(errors="replace").splitlines()[-8:])


Result = TypeVar("Result")


def run_module(module: str, plan: Any, result: type[Result], seconds_max: float) -> Result:
    """Returns the output of the module's process for a plan. An interrupt ends it too.

    Raises `RuntimeError` when it fails, or does not end within `seconds_max`.
    """
    try:
        done = subprocess.run(
            [*tied(), sys.executable, "-P", "-m", module, msgspec.json.encode(plan).decode()],
            stdout=subprocess.PIPE,
            timeout=seconds_max,
            check=False,
            env=environment(),
            start_new_session=True,  # a Ctrl-C is for this process, which then ends the other
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the load did not end within {seconds_max:g} s") from None
    if done.returncode:
        raise RuntimeError(f"the load ended with {done.returncode}")
    return msgspec.json.decode(done.stdout, type=result)


class RunningNotary(msgspec.Struct, frozen=True):
    """A running notary under test."""

    urls: Sequence[str]
    pids: Mapping[str, list[int]]
    """`worker`: all workers, with the processes that each started; `brokers` where there are any."""
    index: Path
    """The directory of the workers' indexes."""
    log: Path
    """The directory of the embedded log, or of the brokers' data."""
    bootstrap: str | None
    brokers: int
    acceptors: int = 0
    """The number of acceptor processes of each worker."""

    @property
    def config(self) -> Path:
        """The configuration of its workers."""
        return self.index.parent / "notary.toml"

    @property
    def log_name(self) -> str:
        """The description of its log for a report."""
        return log_name(self.brokers)


def log_name(brokers: int) -> str:
    """Returns the description of a log with that many brokers; 0 is the embedded one."""
    return f"{brokers} brokers" if brokers > 1 else "1 broker" if brokers else "embedded log"


def notary_name(brokers: int, workers: int, acceptors: int) -> str:
    """Returns the description of a notary: its log, its workers if there are several, and the acceptor processes of each if it has any."""
    of_workers = "" if workers == 1 else f", {workers} workers"
    of_acceptors = f", {acceptors} acceptor {'process' if acceptors == 1 else 'processes'}" if acceptors else ""
    return f"{log_name(brokers)}{of_workers}{of_acceptors}"


@contextlib.contextmanager
def brokers_of(count: int) -> Iterator[Cluster | None]:
    """Yields a cluster of `count` brokers for the length of a block, then deletes their data; None for 0, the embedded log."""
    if not count:
        yield None
        return
    progress(f"starting {count} {'broker' if count == 1 else 'brokers'}")
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as directory, Cluster.create(Path(directory) / "cluster", count) as cluster:
        yield cluster


@contextlib.contextmanager
def workers_on(
    cluster: Cluster | None,
    workers: int = 1,
    added: Mapping[str, str] | None = None,
    *,
    acceptors: int = 0,
    parties: Sequence[str] = (PARTY,),
) -> Iterator[RunningNotary]:
    """Yields a new notary with `workers` workers for the length of a block, on these brokers or on an embedded log of its own.

    `added` is added to the workers' environment; `acceptors` is the number of acceptor processes of each.
    """
    assert cluster is not None or workers == 1, "an embedded log has one worker"
    with tempfile.TemporaryDirectory(prefix="bench-notary-") as directory, contextlib.ExitStack() as stack:
        bootstrap = cluster.bootstrap if cluster else None
        config = make(Path(directory) / "notary", bootstrap, f"bench-{uuid.uuid4().hex[:8]}", parties=parties)
        # All of the load comes from one address.
        settings = {"NOTARY_HTTP_ACCEPTOR_PROCESSES": str(acceptors), "NOTARY_HTTP_CONNECTIONS_PER_ADDRESS_MAX": "0"}
        added = settings | dict(added or {})
        running = [stack.enter_context(worker(config, f"w{number}", added)) for number in range(1, workers + 1)]
        pids = {"worker": family([service.pid for service in running])}
        if cluster is not None:
            pids["brokers"] = [broker.process.pid for broker in cluster.state.brokers if broker.process]
        yield RunningNotary(
            urls=[service.url for service in running],
            pids=pids,
            index=config.parent / "index",
            log=cluster.directory if cluster is not None else config.parent / "log",
            bootstrap=bootstrap,
            brokers=len(pids.get("brokers", [])),
            acceptors=acceptors,
        )


@contextlib.contextmanager
def notary_on(brokers: int, workers: int = 1, *, acceptors: int = 0, parties: Sequence[str] = (PARTY,)) -> Iterator[RunningNotary]:
    """Yields a new notary on new brokers for the length of a block; 0 brokers: the embedded log."""
    with brokers_of(brokers) as cluster, workers_on(cluster, workers, acceptors=acceptors, parties=parties) as running:
        yield running


def interrupt_once() -> None:
    """Handle Ctrl-C, SIGTERM and SIGHUP as Ctrl-C, but only once, so that the shutdown that follows is not interrupted again."""

    numbers = ending()

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in numbers:
        signal.signal(each, interrupt)


def ending() -> list[signal.Signals]:
    """Returns the signals that end a measurement in order; without SIGHUP if that is ignored, as under nohup."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]
