"""A process as a member of a run: executes the coordinator's messages (make, go) and reports its progress.

In a plain `locust` with one process it is called directly; under `--processes` and `--worker`, Locust's own connection to the master
carries the same messages.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import gevent
import msgspec
from gevent.event import Event
from locust.env import Environment

from loadtest.openloop.plan import LoadPlan
from loadtest.openloop.process import LoadProcess
from loadtest.openloop.tally import encode

MESSAGE = "openloop"
REPORT_S = 1.0

logger = logging.getLogger("openloop")

Send = Callable[[dict[str, Any]], None]


class Member:
    """The state of this process in a run, if there is one."""

    def __init__(self, environment: Environment, send: Send) -> None:
        self._environment = environment
        self._send = send
        self._process: LoadProcess | None = None
        self._ready = Event()
        self._busy: gevent.Greenlet[..., Any] | None = None

    def hear(self, words: Mapping[str, Any]) -> None:
        """Handle a message of the coordinator."""
        if words["say"] == "make":
            self.drop()
            plan = msgspec.convert(words["plan"], LoadPlan)
            self._process = LoadProcess(plan, self._record)
            self._busy = gevent.spawn(self._make, self._process)
        elif words["say"] == "go" and self._process is not None and self._process.plan.run == words["run"]:
            # Locust's own rates start here too, not with the generation.
            self._environment.stats.clear_all()
            self._process.go(words["at_unix_s"])
            self._busy = gevent.spawn(self._keep_reporting, self._process)

    def work(self) -> None:
        """Send submissions as one user. Returns when the schedule is finished; waits while there is none."""
        self._ready.wait()
        if self._process is not None:
            self._process.work()

    def drop(self) -> None:
        """Stop and forget the run."""
        if self._busy is not None:
            self._busy.kill()
        if self._process is not None:
            self._process.close()
        self._ready.clear()
        self._process = self._busy = None

    def _make(self, process: LoadProcess) -> None:
        plan = process.plan
        began_s = time.perf_counter()

        def progress(made: int, of: int) -> None:
            took_s = time.perf_counter() - began_s
            logger.info("process %d: %s of %s submissions made and signed after %.0f s", plan.process, f"{made:,}", f"{of:,}", took_s)

        try:
            process.make(progress)
        except Exception as problem:
            self._send({"run": plan.run, "process": plan.process, "problem": f"making the requests: {type(problem).__name__}: {problem}"})
            return
        self._ready.set()
        self._send({"run": plan.run, "process": plan.process, "made": True})

    def _keep_reporting(self, process: LoadProcess) -> None:
        finished = False
        while not finished:
            gevent.sleep(REPORT_S)
            finished = process.tally.finished
            tally, heard = process.report()
            self._send({"run": process.plan.run, "process": process.plan.process, "tally": encode(tally), "heard": heard})

    def _record(self, stage: str, ms: float, octets: int, requests: int, why: str | None) -> None:
        """Add two rows to Locust's table: submissions are its requests; transactions are next to them, and not in the total."""
        environment = self._environment
        environment.events.request.fire(
            request_type="POST", name=f"submissions, {stage}", response_time=ms, response_length=octets, exception=why, context={}
        )
        transactions = environment.stats.get(f"transactions, {stage}", "in them")
        for _ in range(requests):
            transactions.log(ms, 0)  # type: ignore[arg-type]  # Locust itself passes a float here
            if why is not None:
                transactions.log_error(why)
