"""The machine and the versions of a figure, and the CPU time and memory of processes. Linux; elsewhere some are null."""

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from deploy.local.jars import BROKER

PACKAGES = ("aiokafka", "rocksdict", "msgspec", "cryptography", "httptools", "uvloop")

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ROOT = Path(__file__).parents[2]


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """Returns the facts that stay the same during a run."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _first_line_of(Path("/proc/cpuinfo"), "model name") or platform.processor() or None,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kafka": BROKER.version,
        **{package: _version(package) for package in PACKAGES},
        "git": _git_commit(),
    }


def load_average() -> float:
    """Returns the load average of the last minute, which also shows other users of this machine."""
    return round(os.getloadavg()[0], 2)


def family(pids: Iterable[int]) -> list[int]:
    """Returns these processes and all their descendants, now."""
    found = list(pids)
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything; the parent is the second field after it.
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    for pid in found:  # the list grows during the loop
        found += parents.get(pid, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the user and system time of these processes so far, all threads; 0 for one that has exited."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        # utime and stime are the 12th and 13th fields after the name.
        fields = stat.rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS_PER_S


def resident_bytes(pids: Iterable[int]) -> int:
    """Returns the resident memory of these processes now (shared pages count once for each); 0 for one that has exited."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(directory: Path) -> int:
    """Returns the disk space of all files below a directory, in bytes; files deleted meanwhile count as 0."""
    blocks = 0
    for file in directory.rglob("*"):
        with contextlib.suppress(OSError):
            blocks += file.lstat().st_blocks
    return blocks * 512


def machine_cpu_seconds() -> float:
    """Returns the CPU seconds of all processes of this machine so far; 0 where /proc/stat is missing."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq = [int(field) for field in fields[:7]]
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    # A figure of a modified tree belongs to no commit, and is marked so.
    return f"{commit}-changed" if commit and git("status", "--porcelain") else commit


def _first_line_of(file: Path, name: str) -> str | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
