"""`Drill`: one disaster. A notary under load, the page of the runbook that is followed, and the measurement.

    drill.strikes()                                   # the clock starts
    await asyncio.to_thread(drill.wipe, 2)            # the thing is destroyed
    await drill.notice(condition, "`a message`", ...) # as the page says
    await drill.follow()                              # the page's commands
    await drill.over(condition)                       # the clock stops
    await drill.verify()                              # the log, all indexes and all answers; and Spark

Every quoted message must be on the page, and each of the page's commands is read from it: a page that differs from the code fails.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from deploy.local import Cluster
from notary.cli.top import brokers_of, samples_of
from tests.chaos.deployment import SETTINGS, Deployment
from tests.checkers.history import History
from tests.clients.load import until
from tests.deploy.installed import make_kafka, make_program
from tests.kafka.workers import Notary, Worker
from tests.rehearsals.registry import Rehearsal
from tests.rehearsals.runbook import ROOT, Page
from tests.spark.archived import archive

Verifier = Callable[[Sequence[str]], int]
"""Runs a command line of `spark_join` in the session of the rehearsals; returns its exit code."""

_UNIT = re.compile(r"ssh (?P<host>\S+) systemctl (?P<verb>start|stop) (?:notary-worker|kafka-broker|notary-mirror)")
_VARIABLE = re.compile(r"ssh (?P<host>\S+) systemctl (?:un)?set-environment NOTARY_(?P<setting>\w+)(?:=(?P<value>\S*))?")
_HOST = re.compile(r"ssh (?P<host>\S+) (?P<command>.*)", re.DOTALL)
_SPARK = re.compile(r"(?:python -P -m spark_join|notary verify-log) ?(?P<words>.*)")


class Measured(msgspec.Struct, frozen=True):
    """One rehearsal's figures."""

    name: str
    page: str
    loses: str
    decided: int
    """The decisions in the log at the end."""
    lost: int
    """The decisions that were answered before, and that the log does not have or has otherwise."""
    noticed_s: float
    """From the disaster to the first sign that the page names."""
    outage_s: float
    """The longest time in which no client got a decision, from the disaster to its end."""
    over_s: float
    """From the disaster to the end of it. The page's commands follow one another: nobody had to read or decide."""
    blocks: int
    """The blocks of commands on the page."""
    followed: tuple[int, ...]
    """The blocks that this rehearsal ran."""


class Drill(Deployment):
    """A notary, its brokers and its workers, and the page that is followed on them."""

    def __init__(self, rehearsal: Rehearsal, page: Page, notary: Notary, brokers: Cluster, note: Callable[[str], None], verifier: Verifier):
        super().__init__(notary, brokers, note, seed=1)
        self.rehearsal, self.page, self._verifier = rehearsal, page, verifier
        self.words: dict[str, str] = {}
        """More names of the page, and what they are here."""
        self.units: dict[str, Callable[[str], None]] = {}
        """More machines of the page; each is called with the verb of `systemctl`."""
        self.measured: Measured | None = None
        self._followed: set[int] = set()
        self._struck_s = self._noticed_s = self._over_s = 0.0
        self.programs, self._kafka = notary.directory / "programs", notary.directory / "kafka"
        make_program(self.programs / "notary", f"exec {sys.executable} -P -m notary")
        make_program(self.programs / "scp", "exec cp")
        make_program(self.programs / "chown", "exec true")  # there is no user kafka here

    def strikes(self, what: str = "") -> None:
        """Start the clock: what follows destroys something."""
        self._struck_s = time.monotonic()
        self.note(f"it strikes: {what or self.rehearsal.name}")

    async def anomaly(self, condition: Callable[[], bool | Awaitable[bool]], *quoted: str) -> None:
        """Wait for the sign of the disaster; `quoted` are the parts of it that the page must quote. The first call stops the time."""
        for text in quoted:
            assert self.page.quotes(text), f"the page '{self.page.title}' does not quote: {text}"
        await self.until(condition)
        self._noticed_s = self._noticed_s or time.monotonic()
        self.note(f"noticed: {', '.join(quoted)}")

    async def over(self, condition: Callable[[], bool | Awaitable[bool]], *quoted: str) -> None:
        """Wait until the disaster is over, by the page's sign; `quoted` are the parts of it that the page must quote."""
        for text in quoted:
            assert self.page.quotes(text), f"the page '{self.page.title}' does not quote: {text}"
        await self.until(condition)
        self._over_s = time.monotonic()
        self.note("over")

    async def until(self, condition: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait until the condition holds. A worker that does not answer now, or has closed an idle connection, is asked again."""

        async def holds() -> bool:
            try:
                met = condition()
                return met if isinstance(met, bool) else await met
            except (ConnectionError, TimeoutError):
                return False

        await until(holds)

    async def metric(self, worker: Worker, name: str) -> float:
        """Returns a metric as `Notary.metric` does; a worker that has closed an idle connection is asked again."""
        while True:
            try:
                return await self.notary.metric(worker, name)
            except (ConnectionError, TimeoutError):
                assert worker.process.poll() is None, worker.messages
                await asyncio.sleep(0.05)

    async def ready(self, *names: str) -> bool:
        """Returns whether these workers, or all of them, are ready now."""
        return all([await self.notary.says(self.workers[name], 200) for name in names or self.workers])

    async def follow(self, block: int = 0) -> str:
        """Run the commands of a block of the page, one after the other; returns their output. Fails if one fails."""
        self._followed.add(block)
        printed = []
        for line in self.page.blocks[block]:
            self.note(f"$ {line}")
            if variable := _VARIABLE.fullmatch(line):
                self._set_variable(variable["host"], variable["setting"].lower(), variable["value"])
            elif unit := _UNIT.fullmatch(line):
                await self._systemctl(unit["host"], unit["verb"])
            elif spark := _SPARK.fullmatch(line):
                await self.spark(f"verify {spark['words']}" if line.startswith("notary") else spark["words"])
            else:
                printed.append(await asyncio.to_thread(self.shell, line))
        return "".join(printed)

    async def spark(self, command: str) -> None:
        """Run a command of `spark_join` on folders of the notary's, in the session of the rehearsals. Fails if it fails."""
        words = self.translate(command).split()
        for at, word in enumerate(words):
            if word in ("--archive", "--parties", "--out"):
                words[at + 1] = str(self.notary.directory / words[at + 1])
        assert await asyncio.to_thread(self._verifier, words) == 0, command

    async def in_sync_with(self, worker: Worker, broker: int, *, expected: bool) -> bool:
        """Returns whether this worker's metrics report the broker as in sync with a partition, or as in sync with none."""
        seen = brokers_of(samples_of((await self.notary.http.get(worker.url, "/metrics")).body.decode()))[str(broker)]
        return bool(seen.in_sync) is expected

    async def _systemctl(self, host: str, verb: str) -> None:
        if host in self.units:
            await asyncio.to_thread(self.units[host], verb)
        elif broker := re.fullmatch(r"broker-(\d)", host):
            await asyncio.to_thread(self.brokers.start if verb == "start" else self.brokers.stop, int(broker[1]))
        elif verb == "start":
            assert host not in self.workers or self.workers[host].process.poll() is not None, f"{host} runs already"
            self.begin(host)
        elif self.workers[host].process.poll() is None:
            self.workers[host].process.terminate()
            await self.workers[host].ended()

    def _set_variable(self, host: str, setting: str, value: str | None) -> None:
        """Change the environment in which a worker starts from now on; None removes the variable."""
        settings = self._settings.setdefault(host, dict(SETTINGS))
        if value is None:
            settings.pop(setting)
        else:
            settings[setting] = value

    def translate(self, line: str) -> str:
        line = re.sub(r"broker-1:9092", self.notary.bootstrap, line)
        line = re.sub(r"\bnotary\.(ordering|payload)\b", rf"{self.notary.prefix}.\1", line)
        line = re.sub(r"\bbroker-(\d):(?=data)", rf"{self.brokers.directory}/broker-\1/", line)
        line = re.sub(r"http://(w\d):8080", lambda found: self.workers[found[1]].url, line)
        for word, here in self.words.items():
            line = line.replace(word, here)
        return line

    def shell(self, line: str) -> str:
        """Run a command of the page in the notary's folder, or in that of the broker that `ssh` names; returns its output."""
        folder = self.notary.directory
        if there := _HOST.fullmatch(line):
            line = there["command"].strip("'")
            if there["host"].startswith("broker-"):
                folder = self.brokers.directory / there["host"]
        if re.search(r"\bkafka-[a-z-]+\.sh\b", line) and not self._kafka.exists():
            make_kafka(self._kafka)
        environment = os.environ | {"PATH": f"{self.programs}:{self._kafka}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        command = ["sh", "-euc", self.translate(line)]
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"exit code {done.returncode} of {line}\n{done.stdout}{done.stderr}"
        return done.stdout

    async def verify(self, *, roots_right: bool = True, forged: bool = False, violations: Sequence[str] = ()) -> None:
        """Stop the workers, and check the log, every index, every answer and every receipt; then have Spark decide the log again.

        `violations`: the types of those that Spark must report; by default none. The other flags are those of `Notary.check`.
        """
        await asyncio.to_thread(self.brokers.wait_until_serving)
        workers = [worker for worker in self.workers.values() if worker.process.poll() is None]
        answered = self.notary.history.answered()
        decisions = await self.notary.check(*workers, roots_right=roots_right, forged=forged)
        known = {decision["transaction_id"]: decision for decision in decisions}
        lost = {asked for asked, decision in answered.items() if known.get(asked) != decision}
        await self._decide_again(len(decisions), violations)
        self.measured = Measured(
            self.rehearsal.name,
            self.page.title,
            self.rehearsal.loses,
            len(decisions),
            len(lost),
            self._noticed_s - self._struck_s,
            outage_s(self.notary.history, self._struck_s, self._over_s),
            self._over_s - self._struck_s,
            len(self.page.blocks),
            tuple(sorted(self._followed)),
        )

    async def _decide_again(self, decisions: int, violations: Sequence[str]) -> None:
        log = self.notary.directory / "archived"
        where: Sequence[str] = ("--bootstrap", self.notary.bootstrap, "--prefix", self.notary.prefix)
        if not self.notary.bootstrap:
            archive((await self.notary.remains()).by_partition, log)
            where = ("--archive", str(log))
        parties = self.notary.directory / "parties.json"
        self.note(await asyncio.to_thread(decide_again, self._verifier, where, parties, decisions, violations))


def decide_again(verifier: Verifier, where: Sequence[str], parties: Path, decisions: int, violations: Sequence[str] = ()) -> str:
    """Have Spark decide a log again; fails unless it finds so many decisions, and violations of these types. Returns a line about it."""
    out = parties.with_name("verified")
    code = verifier(["verify", *where, "--parties", str(parties), "--out", str(out)])
    report: dict[str, Any] = msgspec.json.decode((out / "report.json").read_bytes())
    assert (code, [*report["violations"]], report["decisions"]) == (bool(violations), [*violations], decisions), report
    return f"Spark: {report['decisions']} decisions, violations {report['violations']}"


def outage_s(history: History, struck_s: float, over_s: float) -> float:
    """Returns the longest time in which no client got a decision, from the disaster to its end."""
    answers = [call.answered_s for call in history.calls if call.status == 200]
    between = sorted(answered_s for answered_s in answers if struck_s < answered_s < over_s)
    return max(later - earlier for earlier, later in pairwise([struck_s, *between, over_s]))
