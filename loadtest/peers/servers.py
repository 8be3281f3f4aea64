"""The processes of one peer and the folder of their data: on loopback, known by their pids, stopped in every case.

    with Servers.opened("postgresql") as servers:
        servers.start("postmaster", [...])      # a process of its own session; its output is in the folder
        servers.kill("postmaster", SIGKILL)     # like a crash
    # the processes have ended and the folder is gone

A watcher stops them when the block's own process dies without leaving the block (SIGKILL, a time limit): `deploy.local.tether`.
"""

import contextlib
import os
import pwd
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson

from deploy.local import CannotRun, tether
from deploy.local.commands import run
from deploy.local.process import BrokerProcess, spawn
from loadtest.rig.machine import family
from ordering.durable import replace_file

START_S_MAX = 60.0
END_S_MAX = 10.0
LOG_TAIL_LINES = 12

_END_ALL = """
from pathlib import Path
from loadtest.peers.servers import end_all
end_all(Path(sys.argv[1]))
"""


class Servers:
    """The processes of one peer, by name."""

    def __init__(self, folder: Path) -> None:
        """Called by `Servers.opened` only."""
        self.folder = folder
        self._running: dict[str, tuple[BrokerProcess, signal.Signals]] = {}

    @classmethod
    @contextlib.contextmanager
    def opened(cls, peer: str) -> Iterator["Servers"]:
        """Yields an object with a new folder for the length of a block; all processes started with it end with the block."""
        folder = Path(tempfile.mkdtemp(prefix=f"peer-{peer}-"))
        folder.chmod(0o711)  # a server that runs as another user finds its own folder in here
        watcher = tether.tie(folder, _END_ALL)
        try:
            yield cls(folder)
        finally:
            end_all(folder)
            tether.release(watcher)

    def start(
        self,
        name: str,
        command: list[str],
        ready: Callable[[], bool],
        *,
        user: str | None = None,
        end_with: signal.Signals = signal.SIGTERM,
    ) -> None:
        """Start a process, as `user` if we are root, and wait until it is ready. Raises `CannotRun` with the end of its log."""
        log = self.folder / f"{name}.log"
        process = spawn([*_as_user(user), *command], log)
        self._running[name] = (process, end_with)
        # A crash between these two lines leaves a process that nothing stops; the window is short.
        self._write_down()
        deadline = time.monotonic() + START_S_MAX
        while not ready():
            if not process.alive:
                raise CannotRun(f"{name} ended while it started:\n{_tail(log)}")
            if time.monotonic() > deadline:
                raise CannotRun(f"{name} was not ready after {START_S_MAX:g} s:\n{_tail(log)}")
            time.sleep(0.05)

    def run(self, command: list[str], *, user: str | None = None) -> None:
        """Run a command to its end. Raises `CannotRun` with its output when it fails."""
        run([*_as_user(user), *command], self.folder)

    def folder_for(self, name: str, user: str | None = None) -> Path:
        """Create a folder for a server's data, owned by its user."""
        made = self.folder / name
        made.mkdir(mode=0o700)
        if user is not None and _as_user(user):
            entry = pwd.getpwnam(user)
            os.chown(made, entry.pw_uid, entry.pw_gid)
        return made

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End one process with that signal, and wait until it is gone."""
        process, _ = self._running.pop(name)
        process.send(number)
        process.wait(END_S_MAX)
        self._write_down()

    def pids(self, *names: str) -> list[int]:
        """Returns the pids of those processes and of all their descendants now."""
        return family([self._running[name][0].pid for name in names])

    def _write_down(self) -> None:
        rows = [[process.pid, process.born, int(number)] for process, number in self._running.values()]
        replace_file(self.folder / "processes.json", orjson.dumps(rows))


def end_all(folder: Path) -> None:
    """End all processes that were started in that folder, the last one first, and remove it."""
    file = folder / "processes.json"
    rows = orjson.loads(file.read_bytes()) if file.exists() else []
    for pid, born, number in reversed(rows):
        process = BrokerProcess(pid, born)
        process.send(signal.SIGCONT)
        process.send(signal.Signals(number))
        if not process.wait(END_S_MAX):
            process.send(signal.SIGKILL)
            process.wait(END_S_MAX)
    # Their children end with them, but not at the same moment: a file may still appear while the folder is removed.
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(0.05)


def _as_user(user: str | None) -> list[str]:
    # setpriv execs the command, so that the pid is the command's.
    if user is None or os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise CannotRun(f"as root this server runs as the user {user}, and there is none: add it, or be another user") from None
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]


def _tail(log: Path) -> str:
    return "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
