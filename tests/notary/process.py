"""Real workers for tests: `notary init`, `party add` and `serve` as processes on an embedded log in a directory.

    directory = NotaryDirectory.create(tmp_path / "notary")
    directory.register(bank)
    with NotaryProcess.start(directory.config, "worker-1") as worker:
        httpx.post(worker.url + "/v1/submissions", ...)

Kafka tests make the directory with `options=["--kafka", …]`. Tests wait for the ready line on stdout, never for a time.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from notary import cli
from tests.notary.party import NOTARY, Bank

ROOT = Path(__file__).resolve().parents[2]
EXIT_S_MAX = 120.0
LONG_DEADLINES = ("-m", "tests.notary.long_deadlines")
"""A program that has the commands of `notary`."""
COMPLAINTS = ("Traceback", "ResourceWarning", "was never awaited", "was destroyed but it is pending", "never retrieved")


class NotaryDirectory:
    """A notary's directory, as `notary init` makes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "notary.toml"

    @classmethod
    def create(cls, path: Path, *, name: str = NOTARY, origin: str = "notary.example/test", options: Sequence[str] = ()) -> Self:
        """Run `notary init` with these options; without any it makes an embedded log with 4 payload partitions."""
        names = ["--name", name, "--origin", origin]
        assert cli.main(["init", str(path), *names, "--partitions", "4", *options]) == 0
        return cls(path)

    def register(self, bank: Bank, *options: str) -> None:
        """Run `notary party add`."""
        self.register_pem(bank.name, bank.public_pem, *options)

    def register_pem(self, name: str, pem: bytes, *options: str) -> None:
        """Run `notary party add` with any key or certificate."""
        file = self.path / "public-key.pem"
        file.write_bytes(pem)
        assert cli.main(["party", "add", name, "--public-key", str(file), "--config", str(self.config), *options]) == 0
        file.unlink()


class NotaryProcess:
    """A worker process that is ready, or has been ready."""

    def __init__(self, process: "subprocess.Popen[str]", stderr: IO[str], name: str, url: str, ready_line: str) -> None:
        """Use `start`."""
        self.ends_tls = False
        """True if its log is reached by TLS: aiokafka does not wait until the other side has closed such a connection, too."""
        self.process = process
        self.name = name
        self.url = url
        self.ready_line = ready_line
        self._stderr = stderr
        self._was_asked_to_end = False

    @classmethod
    def start(
        cls,
        config: Path,
        name: str = "worker-1",
        listen: str = "127.0.0.1:0",
        *,
        settings: Mapping[str, object] | None = None,
        flags: Sequence[str] = (),
    ) -> Self:
        """Run `notary serve` until its ready line; `settings` are environment variables without `NOTARY_`."""
        stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed with the process
        process = serve(config, name, listen, settings=settings, flags=flags, stderr=stderr)
        assert process.stdout is not None
        line = process.stdout.readline()
        started = cls(process, stderr, name, line.split()[-1] if line else "", line)
        if not line:
            printed = started.stderr()
            code = started.wait()
            raise AssertionError(f"the worker did not become ready, exit {code}:\n{printed}")
        return started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def stderr(self) -> str:
        """The text written to stderr so far."""
        if self._stderr.closed:
            return ""
        # The process writes at its own descriptor's position, so reading must not move that.
        return os.pread(self._stderr.fileno(), 64 << 20, 0).decode(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self._was_asked_to_end |= number in (signal.SIGTERM, signal.SIGINT)
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process. Returns its exit code."""
        code = self.process.wait(EXIT_S_MAX)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._stderr.close()
        return code

    def stop(self) -> int:
        """Send SIGTERM if needed. Returns the exit code; fails if stderr shows a bug."""
        if self.process.poll() is None and not self._was_asked_to_end:
            self.signal(signal.SIGTERM)
        self.process.wait(EXIT_S_MAX)
        self.check_quiet()
        return self.wait()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()

    def check_quiet(self, *never: str) -> None:
        """Fail if stderr shows a traceback, a leak, or one of these texts."""
        printed = self.stderr()
        if self.ends_tls:
            printed = "".join([line for line in printed.splitlines(keepends=True) if "unclosed resource <TCPTransport" not in line])
        for word in (*COMPLAINTS, *never):
            assert word not in printed, f"{word!r} on stderr:\n{printed[-8000:]}"


def wait_until(holds: Callable[[], bool], every_s: float = 0.05) -> None:
    """Wait until the condition holds; only the test's time limit bounds it."""
    while not holds():
        time.sleep(every_s)


def is_running(pid: int) -> bool:
    """Returns false for a process that has ended, even before its parent has read its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def serve(
    config: Path,
    name: str = "worker-1",
    listen: str = "127.0.0.1:0",
    *,
    settings: Mapping[str, object] | None = None,
    flags: Sequence[str] = (),
    stdout: IO[bytes] | int = subprocess.PIPE,
    stderr: IO[bytes] | IO[str] | int = subprocess.PIPE,
    entry: Sequence[str] = LONG_DEADLINES,
) -> "subprocess.Popen[str]":
    """Start `notary serve`, or the program `entry` with the same words, without waiting for it."""
    environment = {variable: text for variable, text in os.environ.items() if not variable.startswith("NOTARY_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default::ResourceWarning"}
    environment |= {f"NOTARY_{variable.upper()}": str(value) for variable, value in (settings or {}).items()}
    command = [sys.executable, *entry, "serve", "--config", str(config), "--name", name, "--listen", listen, *flags]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, text=True, env=environment)


@contextmanager
def killed_at_the_end(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """Yields a process that is killed at the end of the block, if it still runs then."""
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def serve_fails(config: Path, name: str = "worker-1", listen: str = "127.0.0.1:0", **settings: object) -> str:
    """Returns the stderr of a `notary serve` that should not start, but exit with 2 and without a traceback."""
    with killed_at_the_end(serve(config, name, listen, settings=settings)) as process:
        ready, printed = process.communicate(timeout=EXIT_S_MAX)
    assert (ready, process.returncode, "Traceback" in printed) == ("", 2, False), printed
    return printed
