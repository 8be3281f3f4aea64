"""The part inside a process: sums up the CPU time of each stage, and appends the sums to a file at each SIGUSR2.

It imports only the standard library, because it starts before anything else. Where `BENCH_STAGES` is not set, it does nothing.
"""

import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from loadtest.bench.stages.places import CALLED_FROM, THREADS, place_of

DIRECTORY = "BENCH_STAGES"
"""The environment variable that names the directory for the files."""
INTERVAL_S = 0.004
"""In CPU time of the whole process. Kernels round it up to their tick."""

_ROOT = str(Path(__file__).parents[3]) + os.sep
_RUNNERS = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py", "uvloop/__init__.py")
_RESUME = opmap["RESUME"]
"""The first instruction of a function, or of a resumed coroutine."""


class Sampler:
    """The CPU times of one process, by stage."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._spent: dict[str, float] = {}
        self._stages: dict[CodeType, str | None] = {}
        self._files: dict[CodeType, str] = {}
        self._collected_s = self._collecting_since_s = 0.0
        self._main = threading.get_ident()
        self._looked_s = time.thread_time()
        self.looks = 0

    def look(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: add the main thread's time since the last sample to the stage that runs now."""
        now_s = time.thread_time()
        self._add(self._stage(frame), now_s - self._looked_s - self._collected_s)
        self._add("garbage collector", self._collected_s)
        self._collected_s = 0.0
        self.looks += 1
        self._looked_s = time.thread_time()
        self._add("sampler", self._looked_s - now_s)

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """Measure a garbage collection; called at its start and end."""
        if threading.get_ident() == self._main:
            if phase == "start":
                self._collecting_since_s = time.thread_time()
            else:
                self._collected_s += time.thread_time() - self._collecting_since_s

    def tell(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: append the sums so far to the file."""
        self.look(number, frame)
        spent = dict(self._spent)
        known_s, beside = sum(spent.values()), dict[str, float]()
        for thread in threading.enumerate():
            if thread.ident == self._main or thread.ident is None:
                continue
            thread_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            stage = next((stage for name, stage in THREADS.items() if thread.name.startswith(name)), "other")
            spent[stage] = spent.get(stage, 0.0) + thread_s
            beside[stage] = beside.get(stage, 0.0) + thread_s
            known_s += thread_s
        process_s = time.process_time()
        spent["native threads"] = process_s - known_s
        with self._file.open("a") as lines:
            print(json.dumps({"spent_s": spent, "beside_s": beside, "process_s": process_s, "looks": self.looks}), file=lines)

    def _add(self, stage: str, seconds: float) -> None:
        self._spent[stage] = self._spent.get(stage, 0.0) + seconds

    def _stage(self, frame: FrameType | None) -> str:
        if frame is None or self._at_the_beginning(frame):
            return "event loop"
        found: str | None = None
        while frame is not None:
            code = frame.f_code
            if code not in self._stages:
                self._stages[code] = place_of(self._file_of(code), code.co_name)
            stage = self._stages[code]
            if found is None:
                found = stage
                if found is None and self._file_of(code).startswith(_RUNNERS):
                    return "event loop"
            if found is not None and stage is not None and (found, stage) in CALLED_FROM:
                return CALLED_FROM[found, stage]
            frame = frame.f_back
        return found or "other"

    def _at_the_beginning(self, frame: FrameType) -> bool:
        """Returns True if the event loop has just called this frame: then the time was the loop's."""
        back = frame.f_back
        return (
            back is not None
            and self._file_of(back.f_code).startswith(_RUNNERS)
            and frame.f_lasti >= 0
            and frame.f_code.co_code[frame.f_lasti] == _RESUME
        )

    def _file_of(self, code: CodeType) -> str:
        """Returns a function's file, relative to the checkout or to the directory of installed libraries."""
        if code not in self._files:
            file = code.co_filename
            for parent in (_ROOT, *[path.rstrip(os.sep) + os.sep for path in sorted(sys.path, key=len, reverse=True) if path]):
                if file.startswith(parent):
                    file = file[len(parent) :]
                    break
            self._files[code] = file
        return self._files[code]


def start() -> None:
    """Start sampling, if this process is to be measured."""
    directory = os.environ.get(DIRECTORY)
    if directory is None:
        return
    sampler = Sampler(Path(directory) / f"{os.getpid()}.jsonl")
    for number, handler in ((signal.SIGPROF, sampler.look), (signal.SIGUSR2, sampler.tell)):
        signal.signal(number, handler)
        # Interrupted system calls are resumed: RocksDB's threads do not handle EINTR.
        signal.siginterrupt(number, False)
    callbacks: list[Any] = gc.callbacks
    callbacks.append(sampler.collecting)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    # Before the handlers disappear: a signal without one would end the process.
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0.0)
    # The file shows the sender of the signals that this process is ready.
    sampler.tell(signal.SIGUSR2, None)
