"""`notary mirror` as a process, started and ended by a test. It reports every half second, not every ten seconds."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.local.process import python_path
from notary import cli, mirror

ENDS_S_MAX = 30.0


class Mirror:
    """One process, which runs inside the `with` block. `stop` or `kill` may end it before, and `start` starts it again."""

    def __init__(self, config: Path, to: str, flag: str = "--to", *options: str) -> None:
        """It copies the log of `config`, from the brokers that the file names at the start, to the brokers `to`."""
        self._command = [sys.executable, "-P", "-m", "tests.kafka.mirrors", "mirror", "--config", str(config), flag, to, *options]
        self._messages = config.parent / f"mirror-{len(list(config.parent.glob('mirror-*')))}.err"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def messages(self) -> str:
        """The text that it wrote to stderr."""
        return self._messages.read_text()

    def start(self) -> None:
        """Start it."""
        with self._messages.open("ab") as errors:
            self._process = subprocess.Popen(self._command, stderr=errors, env=os.environ | {"PYTHONPATH": python_path()})

    def check_alive(self) -> None:
        """Fail with its messages if it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self.messages

    def ended(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        assert self._process is not None
        return self._process.wait(ENDS_S_MAX)

    def stop(self) -> None:
        """End it in order (SIGTERM)."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            assert self._process.wait(ENDS_S_MAX) == 0, self.messages

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(ENDS_S_MAX)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): the mirror falls behind."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        print("--- notary mirror:", self.messages[-4000:], sep="\n")


if __name__ == "__main__":
    mirror.REPORT_S = 0.5  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[1:]))
