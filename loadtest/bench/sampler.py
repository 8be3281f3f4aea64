"""The sampler of the figure `stages`: it runs inside a worker and sums up all of its CPU time by stage.

It starts before all other code and imports only the standard library. Without `BENCH_STAGES` it does nothing. After every few milliseconds
of CPU time a signal makes the main thread sample its stack, and add the CPU time since the last sample to the stage found there. At each
SIGUSR2 the sums are appended to a file.

    CPU time of the process, by the kernel's clock
      = main thread           by the stage of the code that runs, with the garbage collector and the sampler separate
      + threads of Python     by their names: the embedded log's, for example
      + the rest              threads without Python: RocksDB's, which flush and compact

So the sum is the CPU time of the process, by construction; only the division of the main thread's time is sampled. Samples are taken where
the interpreter checks for signals: after a long call of C code that is still the caller's frame, so C code counts for its caller. The event
loop's work between two callbacks appears as the very first instruction of the next one, and counts for the loop: polling, and the reading
of sockets.
"""

import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

DIRECTORY = "BENCH_STAGES"
"""The environment variable that names the directory for the files."""
MAP = "stages.json"
"""The file in it that maps code to stages: the fields of `StageMap`."""
INTERVAL_S = 0.004
"""In CPU time of all threads of the process. Kernels round it up to their tick."""

_ROOT = str(Path(__file__).parents[2])
_RUNNERS = ("asyncio/runners.py", "asyncio/base_events.py", "asyncio/events.py", "uvloop/__init__.py")
_RESUME = opmap["RESUME"]
"""The first instruction of a function, or of a resumed coroutine."""


class StageMap:
    """The stage of each piece of code. The innermost frame with a stage counts; frames without one (None) count for their callers."""

    def __init__(self, code: dict[str, str | None], called_from: list[tuple[str, str, str]], threads: dict[str, str]) -> None:
        """`code`: by package (`notary/http/`), module (`notary/gate.py`) or function in it; the longest match counts.

        `called_from`: (innermost stage, stage further out, the stage to count instead). `threads`: by the prefix of a thread's name.
        """
        self._code = code
        self.called_from = {(inner, outer): stage for inner, outer, stage in called_from}
        self._threads = threads

    def of_function(self, file: str, function: str) -> str | None:
        """Returns the stage of a function, by its file: a path below the checkout, or below the directory of installed libraries."""
        if (line := f"{file}:{function}") in self._code:
            return self._code[line]
        while file:
            if file in self._code:
                return self._code[file]
            folder = file.removesuffix("/").rpartition("/")[0]
            file = folder + "/" if folder else ""
        return None

    def of_thread(self, name: str) -> str:
        """Returns the stage of a thread of Python besides the main one."""
        return next((stage for prefix, stage in self._threads.items() if name.startswith(prefix)), "other")


class Sampler:
    """The CPU times of one process, by stage."""

    def __init__(self, file: Path, stages: StageMap) -> None:
        self._file = file
        self._map = stages
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._stages: dict[CodeType, str | None] = {}
        self._files: dict[CodeType, str] = {}
        self._collected_s = self._collecting_since_s = 0.0
        self._main = threading.get_ident()
        self._sampled_s = time.thread_time()
        self.samples = 0

    def sample(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: add the main thread's time since the last sample to the stage that runs now."""
        now_s = time.thread_time()
        self._spent[self._stage(frame)] += now_s - self._sampled_s - self._collected_s
        self._spent["garbage collector"] += self._collected_s
        self._collected_s = 0.0
        self.samples += 1
        self._sampled_s = time.thread_time()
        self._spent["sampler"] += self._sampled_s - now_s

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        """Measure a garbage collection; called at its start and end."""
        if threading.get_ident() == self._main:
            if phase == "start":
                self._collecting_since_s = time.thread_time()
            else:
                self._collected_s += time.thread_time() - self._collecting_since_s

    def write(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: append the sums so far to the file."""
        self.sample(number, frame)
        spent, beside = self._spent.copy(), defaultdict[str, float](float)
        for thread in threading.enumerate():
            if thread.ident == self._main or thread.ident is None:
                continue
            thread_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            stage = self._map.of_thread(thread.name)
            spent[stage] += thread_s
            beside[stage] += thread_s
        process_s = time.process_time()
        spent["native threads"] = process_s - sum(spent.values())
        with self._file.open("a") as lines:
            print(json.dumps({"spent_s": spent, "beside_s": beside, "process_s": process_s, "samples": self.samples}), file=lines)

    def _stage(self, frame: FrameType | None) -> str:
        if frame is None or self._at_the_beginning(frame):
            return "event loop"
        found: str | None = None
        while frame is not None:
            code = frame.f_code
            if code not in self._stages:
                self._stages[code] = self._map.of_function(self.file_of(code), code.co_qualname)
            stage = self._stages[code]
            if found is None:
                found = stage
                if found is None and self.file_of(code).startswith(_RUNNERS):
                    return "event loop"
            if found is not None and stage is not None and (found, stage) in self._map.called_from:
                return self._map.called_from[found, stage]
            frame = frame.f_back
        return found or "other"

    def _at_the_beginning(self, frame: FrameType) -> bool:
        """Returns True if the event loop has just called this frame: then the time was the loop's."""
        back = frame.f_back
        return (
            back is not None
            and self.file_of(back.f_code).startswith(_RUNNERS)
            and frame.f_lasti >= 0
            and frame.f_code.co_code[frame.f_lasti] == _RESUME
        )

    def file_of(self, code: CodeType) -> str:
        """Returns a function's file, relative to the checkout or to the directory of installed libraries."""
        if code not in self._files:
            file = code.co_filename
            # The longest first: the directory of installed libraries may be in the checkout.
            parents = [folder for path in (_ROOT, *sys.path) if path and file.startswith(folder := path.rstrip(os.sep) + os.sep)]
            self._files[code] = file[len(max(parents, key=len, default="")) :]
        return self._files[code]


def start() -> None:
    """Start sampling, if this process is to be measured."""
    directory = os.environ.get(DIRECTORY)
    if directory is None:
        return
    stages = StageMap(**json.loads((Path(directory) / MAP).read_text()))
    sampler = Sampler(Path(directory) / f"{os.getpid()}.jsonl", stages)
    for number, handler in ((signal.SIGPROF, sampler.sample), (signal.SIGUSR2, sampler.write)):
        signal.signal(number, handler)
        # Interrupted system calls are resumed: RocksDB's threads do not handle EINTR.
        signal.siginterrupt(number, False)
    callbacks: list[Any] = gc.callbacks
    callbacks.append(sampler.collecting)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    # Stop the timer before the handlers disappear: a signal without a handler would end the process.
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0.0)
    # The file shows that this process is ready for signals.
    sampler.write(signal.SIGUSR2, None)
