"""A process identified by its pid and its start time, so that a signal never reaches another process that got the same pid
later."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""The child processes of this Python process, which must reap them. Init reaps those of Python processes that have ended."""

_PROC = Path("/proc")


@dataclass(frozen=True)
class BrokerProcess:
    """One process. `born` is its start time in the system's format: boot id and clock ticks on Linux, the date of `ps`
    elsewhere."""

    pid: int
    born: str

    @property
    def alive(self) -> bool:
        """True if this process, not just one with its pid, still runs. A zombie does not."""
        if (child := _CHILDREN.get(self.pid)) is not None and child.poll() is not None:
            del _CHILDREN[self.pid]
        return bool(self.born) and _stat(self.pid)[0] == self.born

    @property
    def frozen(self) -> bool:
        """True if it is alive, and all its threads are stopped by SIGSTOP."""
        born, condition = _stat(self.pid)
        if not born or born != self.born or not condition.startswith("T"):
            return False
        threads = (_PROC / str(self.pid) / "task").glob("*/stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return all(_fields(stat)[0].startswith(("T", "t")) for stat in threads)
        return False

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process had already ended."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def freeze(self, timeout_seconds: float = 10.0) -> bool:
        """Send SIGSTOP, and wait until all threads are stopped: on a busy machine they still run for a moment.

        Return False if the process had already ended, or still runs after the timeout.
        """
        if not self.send(signal.SIGSTOP):
            return False
        deadline = time.monotonic() + timeout_seconds
        while not self.frozen:
            if not self.alive or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the process has ended; return False if it still runs after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


_TIED = """
import os, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, which `exec` keeps
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied() -> list[str]:
    """Returns the words before a command that end its process when this one dies, however it dies. Elsewhere than on Linux they do nothing.

    The kernel sends SIGTERM when the thread that started the process ends. A temporary folder stays behind when this process is killed.
    """
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())]


def python_path(*first: Path) -> str:
    """Returns PYTHONPATH for a process that imports from this checkout, and before that from these folders."""
    return os.pathsep.join(filter(None, [*map(str, first), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


def spawn(command: list[str], log: Path) -> BrokerProcess:
    """Start a process that outlives this one and does not get this terminal's Ctrl-C. Its output is appended to `log`."""
    _reap()
    with log.open("ab") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    _CHILDREN[child.pid] = child
    return BrokerProcess(child.pid, _stat(child.pid)[0])


def _reap() -> None:
    """Reap the children that have ended."""
    for pid, child in list(_CHILDREN.items()):
        if child.poll() is not None:
            del _CHILDREN[pid]


atexit.register(_reap)


def _stat(pid: int) -> tuple[str, str]:
    """Return (born, condition letter) of the process that has this pid now; ("", "") if there is none that is alive."""
    # Not by psutil: the brokers of the tutorial run without it, and it has neither ticks since the boot nor the condition of a thread.
    if (_PROC / "self" / "stat").exists():
        try:
            fields = _fields(_PROC / str(pid) / "stat")
        except (FileNotFoundError, ProcessLookupError):
            return "", ""
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        condition, born = fields[0], f"{boot}:{fields[19]}"
    else:
        answer = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        condition, _, born = answer.strip().partition(" ")
    return ("", "") if not condition or condition.startswith(("Z", "X")) else (born.strip(), condition)


def _fields(stat: Path) -> list[str]:
    """Return the fields of a process or a thread from its condition letter on."""
    # The field before is the program's name in brackets. The name may contain brackets too, so count from the last one.
    return stat.read_text().rpartition(")")[2].split()
