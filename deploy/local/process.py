"""A process known by its pid and its start time, so that a pid which the system has given to another process is never
signalled."""

import atexit
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""The processes that this Python started, to be reaped here. Those of other Pythons are reaped by init."""

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One life of one process. `born` names the moment in the system's own words: boot id and ticks on Linux, `ps`'s
    date elsewhere."""

    pid: int
    born: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not."""
        if (child := _CHILDREN.get(self.pid)) is not None and child.poll() is not None:
            del _CHILDREN[self.pid]
        return bool(self.born) and _look(self.pid)[0] == self.born

    @property
    def frozen(self) -> bool:
        """Whether it is alive and stopped by SIGSTOP."""
        born, condition = _look(self.pid)
        return bool(born) and born == self.born and condition.startswith("T")

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process had ended already."""
        if not self.alive:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until it has ended; False when it still runs after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def spawn(command: list[str], log: Path) -> Process:
    """Start a process that outlives this one and does not hear this terminal's Ctrl-C. What it prints is appended to
    `log`."""
    _reap()
    with log.open("ab") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    _CHILDREN[child.pid] = child
    return Process(child.pid, _look(child.pid)[0])


def _reap() -> None:
    """Let go of children that have ended and that nobody has asked after since."""
    for pid, child in list(_CHILDREN.items()):
        if child.poll() is not None:
            del _CHILDREN[pid]


atexit.register(_reap)


def _look(pid: int) -> tuple[str, str]:
    """Return (born, condition letter) of whatever has this pid now, ("", "") when nothing alive has."""
    if (_PROC / "self" / "stat").exists():
        try:
            # The second field is the program's name in brackets, which may itself hold anything: count from the last
            # bracket.
            fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return "", ""
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        condition, born = fields[0], f"{boot}:{fields[19]}"
    else:
        answer = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        condition, _, born = answer.strip().partition(" ")
    return ("", "") if not condition or condition.startswith(("Z", "X")) else (born.strip(), condition)
