"""The system under test, from start to stop: brokers or an embedded log, workers, and their directories. It leaves nothing behind."""

import contextlib
import signal
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

from deploy.local import Cluster
from loadtest.bench.facts import family
from loadtest.bench.report import progress
from loadtest.bench.service import make, worker


class Place(msgspec.Struct, frozen=True):
    """A running notary under test."""

    urls: Sequence[str]
    """The URLs of its workers."""
    pids: Mapping[str, list[int]]
    """`worker`: all workers, with the processes that each started; `brokers` where there are any."""
    index: Path
    """The directory of the workers' indexes."""
    log: Path
    """The directory of the embedded log, or of the brokers' data."""
    bootstrap: str | None
    brokers: int
    intake: int = 0
    """The number of acceptor processes (`intake`) of each worker."""

    @property
    def log_name(self) -> str:
        """The description of its log for a report."""
        return log_name(self.brokers)


def log_name(brokers: int) -> str:
    """Returns the description of a log with that many brokers; 0 is the embedded one."""
    return f"{brokers} brokers" if brokers > 1 else "1 broker" if brokers else "embedded log"


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
def workers_on(cluster: Cluster | None, workers: int = 1, added: Mapping[str, str] | None = None, *, intake: int = 0) -> Iterator[Place]:
    """Yields a new notary with `workers` workers for the length of a block, on these brokers or on an embedded log of its own.

    `added` is added to the workers' environment.
    """
    assert cluster is not None or workers == 1, "an embedded log has one worker"
    with tempfile.TemporaryDirectory(prefix="bench-notary-") as directory, contextlib.ExitStack() as stack:
        bootstrap = cluster.bootstrap if cluster else None
        config = make(Path(directory) / "notary", bootstrap, f"bench-{uuid.uuid4().hex[:8]}")
        # The whole load comes from one address.
        settings = {"NOTARY_HTTP_INTAKE_PROCESSES": str(intake), "NOTARY_HTTP_CONNECTIONS_PER_ADDRESS_MAX": "0"}
        added = settings | dict(added or {})
        running = [stack.enter_context(worker(config, f"w{number}", added)) for number in range(1, workers + 1)]
        pids = {"worker": family([service.pid for service in running])}
        if cluster is not None:
            pids["brokers"] = [broker.process.pid for broker in cluster.state.brokers if broker.process]
        log = cluster.directory if cluster is not None else config.parent / "log"
        yield Place(
            [service.url for service in running], pids, config.parent / "index", log, bootstrap, len(pids.get("brokers", [])), intake
        )


def interrupt_once() -> None:
    """Handle Ctrl-C and SIGTERM as Ctrl-C, but only once, so that the shutdown that follows is not interrupted again."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupt)
