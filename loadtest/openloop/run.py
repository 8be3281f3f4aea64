"""The coordinator of a run, in the master or in the only process, and the members: all processes that send.

The coordinator plans, and waits until all submissions are generated and every user has started. Then it sends the start time, collects the
reports of the members, and prints the result. A member has a child that generates and sends (`process`). In a plain `locust` with one
process they call each other; under `--processes` and `--worker`, Locust's own connection between master and workers carries the same
messages:

| from | message | fields |
|---|---|---|
| coordinator | generate your share | `kind`: make, `plan` |
| coordinator | start at this time | `kind`: go, `run`, `at_unix_s` |
| member | the share is generated | `run`, `process`, `made` |
| member | the run is impossible | `run`, `process`, `problem` |
| member | results so far | `run`, `process`, `tally`, `seen_positions` |
"""

import contextlib
import logging
import os
import subprocess
import sys
import time
import urllib.request
import uuid
from argparse import Namespace
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import gevent
import msgspec
import orjson
from gevent.event import Event
from locust.env import Environment

from deploy.local.process import python_path
from loadtest.openloop.checker import Ledger
from loadtest.openloop.plan import FILES, LoadPlan, Unusable, plan_of, urls_of_session
from loadtest.openloop.process import CONNECT_S_MAX, Start, TimedSubmission, read_next, write
from loadtest.openloop.tally import Tally, decode, figure, lines_of, reasons_against, total
from loadtest.rig.machine import load_average, machine
from loadtest.rig.schedule import arrivals_count
from ordering.durable import replace_file

MESSAGE = "openloop"
GRACE_S = 15.0
"""The time after the last deadline by which every process has reported its share, or never will."""
START_IN_S = 0.5
"""The time between the message and the start, so that the message arrives before it."""

logger = logging.getLogger("openloop")

Send = Callable[[Mapping[str, Any]], None]


class Member:
    """The state of this process in a run, if there is one. Its child generates and sends (`process`)."""

    def __init__(self, environment: Environment, send: Send) -> None:
        self._environment = environment
        self._send = send
        self._plan: LoadPlan | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._relaying: gevent.Greenlet[..., Any] | None = None
        self._over = Event()

    def handle(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the coordinator."""
        if message["kind"] == "make":
            self.drop()
            self._over.clear()
            self._plan = plan = msgspec.convert(message["plan"], LoadPlan)
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "loadtest.openloop.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": python_path()},
                start_new_session=True,  # a Ctrl-C is for Locust, which then ends this one
            )
            self._write(plan)
            self._relaying = gevent.spawn(self._relay, plan, self._child)
        elif message["kind"] == "go" and self._plan is not None and self._plan.run == message["run"]:
            # Locust's own rates start here too, not with the generation.
            self._environment.stats.clear_all()
            runner = self._environment.runner
            self._write(Start(message["at_unix_s"], max(1, runner.user_count if runner is not None else 1)))

    def work(self) -> None:
        """Return when the run is over. Locust's users only wait: the child has a connection for each."""
        self._over.wait()

    def drop(self) -> None:
        """Stop and forget the run."""
        if self._relaying is not None:
            self._relaying.kill()
        if self._child is not None:
            with self._child:
                self._child.kill()
        self._plan = self._child = self._relaying = None
        self._over.set()

    def _write(self, message: Any) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        # If the child is gone, `_relay` reports it.
        with contextlib.suppress(BrokenPipeError):
            write(self._child.stdin, message)
            self._child.stdin.flush()

    def _relay(self, plan: LoadPlan, child: "subprocess.Popen[bytes]") -> None:
        """Pass on what the child reports."""
        assert child.stdout is not None
        began_s, finished = time.perf_counter(), False
        own = {"run": plan.run, "process": plan.process}
        while not finished:
            message = read_next(child.stdout)
            if message is None:
                message = {"problem": f"a process that sends ended with {child.wait()}"}
            if "progress" in message:
                made, took_s = message["progress"], time.perf_counter() - began_s
                text = "process %d: %s of %s submissions made and signed after %.0f s"
                logger.info(text, plan.process, f"{made:,}", f"{plan.submissions:,}", took_s)
                continue
            for timed in message.pop("timed", ()):
                self._record(TimedSubmission(*timed))
            finished = "problem" in message or ("tally" in message and message["tally"]["finished"])
            self._send({**own, **message})
        self._over.set()

    def _record(self, timed: TimedSubmission) -> None:
        """Add two rows to Locust's table: submissions are its requests; transactions are next to them, and not in the total."""
        environment, ms, why = self._environment, timed.ms, timed.failure
        name = f"submissions, {timed.stage}"
        environment.events.request.fire(
            request_type="POST", name=name, response_time=ms, response_length=timed.octets, exception=why, context={}
        )
        transactions = environment.stats.get(f"transactions, {timed.stage}", "in them")
        for _ in range(timed.requests):
            transactions.log(ms, 0)  # type: ignore[arg-type]  # Locust itself passes a float here
            if why is not None:
                transactions.log_error(why)


class Coordinator:
    """Runs one load: `begin`; then `handle` and `spawned` as messages arrive, and `tick` until it is over; then `end`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._given = dict(vars(environment.parsed_options))
        """The options of the command line. Locust's form changes any option, also one that it does not show."""
        self._runs = 0
        self._seed = ""
        self.exit_code: int | None = None
        """The exit code of the last run: 0 with a figure, 1 without."""
        self.lines: list[str] = []
        """The figure of the last run as text; empty without one."""
        self._forget()

    @property
    def _options(self) -> Namespace:
        options: Namespace | None = self._environment.parsed_options
        assert options is not None
        return options

    def _forget(self) -> None:
        self._plan: LoadPlan | None = None
        self._sends: list[Send] = []
        self._tallies: dict[int, Tally] = {}
        self._made: set[int] = set()
        self._problems: list[str] = []
        self._spawned = False
        self._over_at_s = float("inf")
        self._began_unix_s = 0.0
        self._ledger = Ledger(0)
        self._begun = False

    def begin(self, sends: list[Send]) -> None:
        """Begin a run with these processes. `end` reports any problem with it."""
        self._forget()
        self._begun, self.exit_code, self.lines = True, 1, []
        self._sends = sends
        options = self._options
        try:
            self._keep_files()
            _remove_figure(options.figure)
            urls = urls_of_session(self._environment.host, self._given["host"])
            about, position_first = _ask(urls)
            plan = plan_of(
                options, urls, run=uuid.uuid4().hex, seed=self._next_seed(options.seed), notary_name=about["name"],
                verifier_key=about["verifier_key"],
            )  # fmt: skip
        except (Unusable, OSError) as problem:
            self._problems.append(str(problem))
            return
        except Exception as problem:
            # Locust logs it and waits for ever; a reason ends the run.
            self._problems.append(f"the run cannot begin: {problem!r}")
            return
        if (options.num_users or 1) < len(sends):
            self._problems.append(f"--users {options.num_users} is less than the {len(sends)} processes: each sends as one user at least")
            return
        self._plan, self._ledger = plan, Ledger(position_first)
        logger.info(
            "seed %s, %d processes, %s",
            plan.seed,
            len(sends),
            ", ".join([f"{stage.name} for {stage.seconds:g} s" for stage in plan.stages]),
        )
        for process, send in enumerate(sends):
            own = msgspec.structs.replace(plan, process=process, processes=len(sends))
            send({"kind": "make", "plan": msgspec.to_builtins(own)})

    def handle(self, message: Mapping[str, Any]) -> None:
        """Handle a message of a process."""
        plan = self._plan
        if plan is None or message["run"] != plan.run:
            return
        if "problem" in message:
            self._problems.append(message["problem"])
        elif "made" in message:
            self._made.add(message["process"])
            self._go_if_ready()
        else:
            self._tallies[message["process"]] = decode(message["tally"])
            self._ledger.add(message["seen_positions"])

    def spawned(self) -> None:
        """Note that every user has started."""
        self._spawned = True
        self._go_if_ready()

    def lost(self, process: str) -> None:
        """Note that a process of the run is gone: its share will never be accounted for."""
        if self._plan is not None and not self._finished():
            self._problems.append(f"a process of the load is gone: {process}")

    def tick(self) -> tuple[int, float] | None:
        """Returns (users, users a second to start) for Locust's shape, or None when the run is over."""
        self._keep_files()
        if self._begun and (self._problems or self._finished() or time.monotonic() > self._over_at_s):
            return None
        return max(1, self._options.num_users or 1), max(1.0, self._options.spawn_rate or 1.0)

    def end(self) -> None:
        """End the run: print a figure, or the reasons why there is none."""
        if not self._begun:
            return
        self._begun = False
        plan, problems = self._plan, self._problems
        if plan is None:
            reasons = problems or ["the run has no plan"]
        else:
            tally = total(list(self._tallies.values()), len(plan.stages))
            missing = set(range(len(self._sends))) - {number for number, tally in self._tallies.items() if tally.finished}
            tally.finished = not missing
            self._ledger.close(alone=not self._options.not_alone and not missing and not tally.failed)
            reasons = reasons_against(
                tally, self._ledger, submissions=arrivals_count(plan.stages, plan.mix.submission_requests), problems=problems
            )
        if plan is None or reasons:
            self._refuse(reasons)
            return
        self.exit_code = 0
        found = figure(plan, tally) | {"began_unix_s": round(self._began_unix_s, 3)}
        written = {"figure": found, "parameters": self._parameters(plan), "machine": machine(), "load_average": load_average()}
        self.lines = ["", *lines_of(found), ""]
        print("\n".join(self.lines), flush=True)
        if self._given["figure"]:
            replace_file(Path(self._given["figure"]), orjson.dumps(written, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    def _keep_files(self) -> None:
        """Set the options that name files to those of the command line."""
        vars(self._options).update({name: self._given[name] for name in FILES if name in self._given})

    def _refuse(self, reasons: list[str]) -> None:
        self.exit_code = 1
        print("\n".join(["", f"NO FIGURE: {reasons[0]}", *[f"  {reason}" for reason in reasons[1:]], ""]), file=sys.stderr, flush=True)
        # So that Locust's own reports of this run do not look like those of a good run.
        self._environment.stats.log_error("RUN", "no figure", reasons[0])

    def _go_if_ready(self) -> None:
        plan = self._plan
        if plan is None or not self._spawned or len(self._made) < len(self._sends):
            return
        self._environment.stats.clear_all()
        self._over_at_s = time.monotonic() + START_IN_S + plan.seconds + plan.deadline_s + GRACE_S
        self._began_unix_s = time.time() + START_IN_S
        logger.info("the schedule begins at %.3f", self._began_unix_s)
        for send in self._sends:
            send({"kind": "go", "run": plan.run, "at_unix_s": self._began_unix_s})

    def _finished(self) -> bool:
        return bool(self._sends) and len([tally for tally in self._tallies.values() if tally.finished]) == len(self._sends)

    def _next_seed(self, given: str) -> str:
        """Returns a new seed for each further run of one web session: the same requests again would only be retries."""
        self._runs = self._runs + 1 if given == self._seed else 1
        self._seed = given
        if not given:
            return uuid.uuid4().hex
        return given if self._runs == 1 else f"{given}.{self._runs}"

    def _parameters(self, plan: LoadPlan) -> dict[str, Any]:
        shown = ("seed", "mix", "stages", "deadline_s", "receipt_sample", "urls")
        found: dict[str, Any] = {name: msgspec.to_builtins(getattr(plan, name)) for name in shown}
        return found | {"users": self._options.num_users, "processes": len(self._sends), "receipts": plan.verifier_key is not None}


def _remove_figure(name: str) -> None:
    """Remove the figure of an earlier run, which must not be taken for this one's. Raises `Unusable` for a file that is no figure."""
    file = Path(name)
    if not name or not file.exists():
        return
    try:
        found = orjson.loads(file.read_bytes()) if file.is_file() else None
        is_figure = isinstance(found, dict) and "figure" in found
    except ValueError:
        is_figure = False
    if not is_figure:
        raise Unusable(f"--figure: {name} is there and is not the figure of a load; give the name of another file")
    file.unlink()


def _ask(urls: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    """Returns the notary's description of itself, and the number of decisions: the highest that any worker reports."""
    # A checkpoint's second line is the size of the tree.
    sizes = [int(_get(f"{url}/v1/checkpoint").split(b"\n")[1]) for url in urls]
    return orjson.loads(_get(f"{urls[0]}/v1/notary")), max(sizes)


def _get(url: str) -> bytes:
    # The load's connections use no proxy either.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=CONNECT_S_MAX) as reply:
            body: bytes = reply.read()
            return body
    except (OSError, HTTPException) as problem:
        raise OSError(f"{url}: {problem!r}" if isinstance(problem, HTTPException) else f"{url}: {problem}") from problem
