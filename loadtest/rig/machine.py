"""The machine and the versions of a measurement; the environment of processes, and their CPU time and memory, by psutil."""

import contextlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from deploy.local.jars import BROKER
from deploy.local.process import python_path

PACKAGES = ("aiokafka", "rocksdict", "msgspec", "cryptography", "httptools", "uvloop")

_ROOT = Path(__file__).parents[2]


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """Returns the facts that stay the same during a run."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_name() or platform.processor() or None,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kafka": BROKER.version,
        **{package: version(package) for package in PACKAGES},
        "git": _git_commit(),
    }


def load_average() -> float:
    """Returns the load average of the last minute, which also shows other users of this machine."""
    return round(os.getloadavg()[0], 2)


def environment() -> dict[str, str]:
    """Returns the environment of a process under test, or of a load."""
    # Leave out the settings in the caller's shell.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NOTARY_") or name == "NOTARY_KAFKA_HOME"}
    return kept | {"PYTHONPATH": python_path()}


def family(pids: Iterable[int]) -> list[int]:
    """Returns these processes and all their descendants, now."""
    found = list(pids)
    for pid in tuple(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the user and system time of these processes so far, all threads; 0 for one that has exited."""
    return _sum(pids, lambda process: sum(process.cpu_times()[:2]))


def resident_bytes(pids: Iterable[int]) -> int:
    """Returns the resident memory of these processes now (shared pages count once for each); 0 for one that has exited."""
    return int(_sum(pids, lambda process: process.memory_info().rss))


def own_cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of all that it started, those that ended included."""
    # The first four of the times: user and system, of the process and of its children that ended.
    return _sum(family([os.getpid()]), lambda process: sum(process.cpu_times()[:4]))


def _sum(pids: Iterable[int], read: Callable[[psutil.Process], float]) -> float:
    """Returns the sum of what `read` returns for each process that exists."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += read(psutil.Process(pid))
    return total


class OthersMeter:
    """Measures the share of the machine that others take: all processes that this one did not start, and other virtual machines (steal)."""

    SECONDS_MIN = 0.5
    """The kernel counts in hundredths of a second, so a shorter period is not measured: `share` returns the share of the last one."""

    def __init__(self) -> None:
        self._share: float | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a new period."""
        self._began_s, self._others_s = time.monotonic(), _others_cpu_seconds()

    def share(self) -> float | None:
        """Returns the share of all cores that others took since the last call, or since `begin`, and begins a new period.

        Returns None if no period was long enough yet.
        """
        took_s, others_s = time.monotonic() - self._began_s, _others_cpu_seconds() - self._others_s
        if took_s >= self.SECONDS_MIN:
            self._share = max(0.0, others_s) / took_s / machine()["cores"]
            self.begin()
        return self._share


def _others_cpu_seconds() -> float:
    # A hypervisor that gives the processor to another machine takes it from ours, though no process here uses it.
    return machine_cpu_seconds() + getattr(psutil.cpu_times(), "steal", 0.0) - own_cpu_seconds()


def disk_bytes(directory: Path) -> int:
    """Returns the disk space of all files below a directory, in bytes; files deleted meanwhile count as 0."""
    blocks = 0
    for file in directory.rglob("*"):
        with contextlib.suppress(OSError):
            blocks += file.lstat().st_blocks
    return blocks * 512


def machine_cpu_seconds() -> float:
    """Returns the CPU seconds of all processes of this machine so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0))


def costs(pids: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """Returns the CPU seconds so far of these processes by name, of this process (`load`), and of the machine (`machine`)."""
    return {name: cpu_seconds(of_name) for name, of_name in pids.items()} | {"load": time.process_time(), "machine": machine_cpu_seconds()}


def _git_commit() -> str | None:
    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    # A measurement of a modified tree belongs to no commit, so mark it.
    return f"{commit}-changed" if commit and git("status", "--porcelain") else commit


def _cpu_name() -> str | None:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: *(.+)", info.read_text(), re.MULTILINE) if info.exists() else None
    return None if found is None else found[1]
